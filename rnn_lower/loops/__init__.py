"""Loop and Scan nodes of the model's own: how often they run, and their bodies written out step by step.

Nothing here knows of recurrent nodes, or of what a runtime supports.
"""
