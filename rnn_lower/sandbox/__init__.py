"""Work in child processes, for runtimes that may end a process and, with `resource_limits`, for untrusted input.

What is run there is defined elsewhere. Signals are in `signals`.
"""
