"""Check a lowered model by running both it and the original: samples, runners and comparison."""
