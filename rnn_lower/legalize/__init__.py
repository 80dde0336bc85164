"""Replace operators that a target lacks with equivalents that it supports.

Knows nothing of gates, directions or models.
"""
