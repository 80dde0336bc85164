"""Prove in exact arithmetic that a lowered model computes the same as the original, without code of the lowering."""
