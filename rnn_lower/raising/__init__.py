"""Replace loops and chains of steps with recurrent nodes: guess the node, then prove that it is the same function.

The guess may be wrong: only proved nodes replace anything.
"""
