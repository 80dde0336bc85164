"""The three axes of a recurrent node: what it means, one step of it, many steps. Knows no model and no opset."""
