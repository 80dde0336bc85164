"""How a graph is rewritten for chunks: the states of nodes, and changes of nodes without one."""
