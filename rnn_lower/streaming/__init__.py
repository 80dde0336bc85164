"""Convert a model for whole sequences to one that processes chunks, with its states as inputs and outputs."""
