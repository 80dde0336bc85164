"""Unroll the Loop and Scan nodes of the original model: count their steps, and write out their bodies step by step.

This package contains nothing about recurrent nodes or runtimes.
"""
