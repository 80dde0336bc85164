"""Prove in exact arithmetic that a lowered model computes what the original does. Reads no code of the lowering."""
