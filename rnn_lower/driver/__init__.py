"""The pass: choose the nodes of a model, lower each, put the subgraph in its place, leave the rest as it is."""
