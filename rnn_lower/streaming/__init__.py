"""Streaming: a model of whole sequences becomes one that takes them chunk by chunk, its state in and out."""
