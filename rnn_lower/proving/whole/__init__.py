"""The proof of whole models, for loops and streams, and the sizes and numbers at which a model may change."""
