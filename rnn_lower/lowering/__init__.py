"""Lower one recurrent node to a subgraph: its semantics (node), one step (cells), many steps (forms).

Independent of models, files and runtimes.
"""
