"""Load, validate and save models: external data, atomic writes, stale files, and the protobuf view."""
