"""Exact arithmetic: elements of a prime field, the operators on them, and the equations of RNN, GRU and LSTM."""
