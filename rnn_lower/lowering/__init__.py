"""One recurrent node becomes a subgraph: what it means (node), one step (cells), many steps (forms).

Knows no model, no file and no runtime.
"""
