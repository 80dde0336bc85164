"""Quantize lowered models: information about states for quantizers, and Q/DQ nodes where no quantizer adds them."""
