"""Showing that a lowered model computes the same. Nothing here reads how a node is lowered."""
