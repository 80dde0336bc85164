"""Build a model without cyclic garbage collection: nodes and values of onnx_ir form cycles, but none is garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector, which would repeatedly traverse a growing number of nodes."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
