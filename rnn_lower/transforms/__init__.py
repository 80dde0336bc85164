"""Rewrites of whole models that change no value: constant folding, inlining, and the evaluator of constants.

Nothing here knows of recurrent nodes, targets or files.
"""
