"""Write nodes: constants that are folded lazily, names, scopes, bodies, and the operator versions of an opset.

Knows no recurrent operator and no runtime: what a node means is in `lowering`, what a target lacks in `legalize`.
"""
