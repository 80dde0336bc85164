"""Replace operators that a target lacks with equivalents that it supports.

Independent of gates, directions and models.
"""
