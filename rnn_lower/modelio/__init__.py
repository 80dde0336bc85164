"""Models in files: loading, validation, external data, atomic saving, stale files, and the protobuf view.

This package does not decide what is lowered; `document` writes the changes of a lowered view into the protobuf.
"""
