"""The states of a streaming model, and the nodes that read and return them."""
