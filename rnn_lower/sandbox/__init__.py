"""Work in child processes: of runtimes that may end a process, and, with `resource_limits`, on untrusted input.

What is run there is defined elsewhere. Signals are in `signals`.
"""
