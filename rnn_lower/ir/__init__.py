"""Graph traversal, operator properties from the schemas of onnx, and statistics of a model.

Holds nothing about shapes (`shapes/`), files (`modelio/`) or recurrent nodes (`lowering/`).
"""
