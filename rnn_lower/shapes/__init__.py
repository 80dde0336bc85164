"""Shapes of values, and of the values that compute shapes: inference, sizes computed here, fixed sizes, stale shapes.

`shape_info` answers what is known of a value; it changes no model. Constant folding lives in `transforms/`.
"""
