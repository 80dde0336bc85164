"""Convert a model to another opset, node by node.

`semantic_changes` lists what converters miss, and `step_down` converts where onnx has no converter.
"""
