"""Rewrites of whole models that keep all values: constant folding, inlining, and the evaluator of constants.

Nothing here knows of recurrent nodes, targets or files.
"""
