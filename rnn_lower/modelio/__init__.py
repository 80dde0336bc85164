"""Models in files: load, validate, external data, atomic save, stale files, and the protobuf view.

Nothing here decides what is lowered; `document` brings the changes of a lowered view into the protobuf.
"""
