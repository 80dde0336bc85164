"""Work in child processes: `limited` for hostile input within limits, `isolated` for runtimes that may end a process.

What is run there is defined elsewhere. Signals are in `signals`.
"""
