"""Models in files: loading, validation, external data, atomic saving, stale files, and the protobuf view.

Nothing here decides what is lowered; `document` brings the changes of a lowered view into the protobuf.
"""
