"""Says operators that a target lacks by others that it has. Knows nothing of gates, directions or models."""
