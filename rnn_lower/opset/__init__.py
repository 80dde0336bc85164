"""Convert a model to another opset, node by node.

`semantic_changes` says what converters miss, `step_down` what onnx has no converter for. Lowering is not done here.
"""
