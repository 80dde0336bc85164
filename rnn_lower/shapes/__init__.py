"""Shapes of values, and values that compute shapes: inference, computed sizes, fixed sizes and stale shapes.

`shape_info` answers what is known of a value; it changes no model. Constant folding lives in `transforms/`.
"""
