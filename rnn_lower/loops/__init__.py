"""Unroll the Loop and Scan nodes of the original model: count their steps, and write out their bodies step by step.

Nothing here knows of recurrent nodes, or of what a runtime supports.
"""
