"""Lowered models in small numbers: what quantizers have to know of states, and Q/DQ where no quantizer reaches."""
