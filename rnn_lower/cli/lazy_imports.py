"""Modules that the command line imports only when something reads an attribute of them.

onnx_ir imports sympy for arithmetic on symbolic sizes, which rnn_lower does not use; that takes a third of the time for
a small model. A library must not change the imports of its host; a command owns its process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

NAMES = ("sympy", "onnx_ir._symbolic_shapes")
"""sympy, and the only module that reads it while it is imported. Names that no longer exist do no harm."""


class _Deferring(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in NAMES else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer() -> None:
    """Defer the imports from now on; modules that are imported already do not change."""
    if not any(isinstance(finder, _Deferring) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Deferring())
