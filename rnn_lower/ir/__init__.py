"""Walking graphs and what is known of operators from onnx's schemas; statistics of a model.

Holds nothing about shapes (`shapes/`), files (`modelio/`) or recurrent nodes (`lowering/`).
"""
