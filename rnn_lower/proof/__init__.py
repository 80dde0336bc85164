"""Showing that a lowered model computes the same. Nothing here reads the code that lowers."""
