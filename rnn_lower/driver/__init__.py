"""The lowering pass: select nodes, lower each of them, insert the subgraphs, and leave the rest unchanged."""
