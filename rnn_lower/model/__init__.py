"""Whole models: walking them, what is known of their values, choosing and replacing nodes, opsets, files."""
