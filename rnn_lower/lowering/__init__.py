"""Lower one recurrent node to a subgraph: its semantics (node), one step (cells), many steps (forms).

Knows no model, no file and no runtime.
"""
