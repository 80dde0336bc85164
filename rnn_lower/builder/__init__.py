"""Write nodes: lazily folded constants, names, scopes, bodies, and the operator versions of an opset.

Independent of recurrent operators (see `lowering`) and runtimes (see `legalize`).
"""
