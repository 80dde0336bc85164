"""Modules that the command line imports only when something reads an attribute of theirs.

onnx_ir imports sympy for arithmetic on symbolic sizes, which nothing here asks for: a third of the time that a small
model takes. In a library this would meddle with whoever else imports it; the process of a command is our own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

NAMES = ("sympy", "onnx_ir._symbolic_shapes")
"""sympy, and the one module that reads it while it is imported. A name that does not exist any more does no harm."""


class _Deferring(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in NAMES else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer() -> None:
    """From now on; what is imported already stays as it is."""
    if not any(isinstance(finder, _Deferring) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Deferring())
