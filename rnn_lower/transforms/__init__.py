"""Rewrites of whole models that keep all values: constant folding, inlining, and the evaluator of constants.

This package contains nothing about recurrent nodes, targets or files.
"""
