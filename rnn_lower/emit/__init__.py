"""Writing nodes that are valid at an opset and within what a target takes. Knows nothing of recurrent operators."""
