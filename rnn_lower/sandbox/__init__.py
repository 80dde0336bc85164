"""Child processes: for runtimes that may crash and, with `resource_limits`, for untrusted input.

The work itself is defined elsewhere. Signals are in `signals`.
"""
