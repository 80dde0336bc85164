"""Loops, and chains of steps, that are a recurrent node: the node is guessed, and then proved to be the same function.

The guess may be wrong, the proof decides; nothing is replaced that is not proved.
"""
