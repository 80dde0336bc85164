"""Rewrites of whole models that change no value: constant folding and inlining."""
