"""The proof of one recurrent node: its equations against the nodes that replace it, at many sizes and lengths."""
