"""What a runtime is tried on when it cannot be had here: small models with inputs and results, and what came out."""
