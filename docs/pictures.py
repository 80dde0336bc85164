"""Draw docs/before_after.svg: a model of one LSTM node, and what it is lowered to.

    python docs/pictures.py [--docs docs]

Needs the command `dot` of Graphviz and the PyPI package `graphviz`.
"""  # fmt: skip

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import graphviz
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

import rnn_lower  # noqa: E402

FILLS = {"LSTM": "#f6c9b6", "MatMul": "#c9dcf2", "Sigmoid": "#f6dfa4", "Tanh": "#f6dfa4"}
OTHER_FILL, FRAME, FAINT, CARRIED = "#e9ecef", "#8a939c", "#4d555c", "#b3402a"
SCAN = "<<b>Scan</b>, its body run once per step (dashed: carried state)>"
FONT = "Helvetica,Arial,sans-serif"


def one_lstm(T: int = 20, N: int = 1, I: int = 16, H: int = 32) -> onnx.ModelProto:  # noqa: E741
    rng = np.random.default_rng(0)
    shapes = {"W": (1, 4 * H, I), "R": (1, 4 * H, H), "B": (1, 8 * H)}
    weights = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), name) for name, s in shapes.items()]
    outputs = {"Y": (T, 1, N, H), "Y_h": (1, N, H), "Y_c": (1, N, H)}
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["X", *shapes], list(outputs), name="lstm", hidden_size=H)], "one_lstm",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, (T, N, I))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Picture:
    """One graph; its weights are written into the nodes that read them. `side` keeps names of two graphs apart."""

    def __init__(self, canvas: graphviz.Digraph, side: str) -> None:
        self._canvas, self._side = canvas, side
        self._constants: dict[str, np.ndarray] = {}
        self._made_by: dict[str, str] = {}

    def draw(self, graph: onnx.GraphProto) -> None:
        self._remember(graph)
        for value in graph.input:
            self._value(self._canvas, value, _shape(value))
        for node in graph.node:
            body = next((a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH), None)
            if body is None:
                self._node(self._canvas, node)
            else:
                self._scan(node, body)
        for value in (*graph.output[-1:], *graph.output[:-1]):  # dot puts the first one last
            source = self._made_by[value.name]
            self._value(self._canvas, value, _shape(value))
            self._canvas.edge(source, self._made_by[value.name])

    def _remember(self, graph: onnx.GraphProto) -> None:
        self._constants |= {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def _value(self, canvas: graphviz.Digraph, value: onnx.ValueInfoProto, note: str) -> None:
        key = self._made_by[value.name] = f"{self._side} value {value.name}"
        canvas.node(key, f"<{_short(value.name)} {_faint(note)}>", style="rounded,filled", fillcolor="white")

    def _node(self, canvas: graphviz.Digraph, node: onnx.NodeProto, names: bool = False) -> None:
        key = f"{self._side} node {node.output[0]}"
        arrays = {name: self._constants[name] for name in node.input if name in self._constants}
        weights = [f"{_short(name)} {_sizes(a.shape)}" for name, a in arrays.items() if a.dtype.kind == "f"]
        first = f"<b>{node.op_type}</b>" + (f" {_faint(', '.join(map(_short, node.output)))}" if names else "")
        label = "<br/>".join([first, *map(_faint, weights)])
        canvas.node(key, f"<{label}>", fillcolor=FILLS.get(node.op_type, OTHER_FILL))
        for name in node.input:
            if name not in self._constants:
                canvas.edge(self._made_by[name], key)
        self._made_by |= dict.fromkeys(node.output, key)

    def _scan(self, node: onnx.NodeProto, body: onnx.GraphProto) -> None:
        """The body in a frame; dashed, the states that one step hands to the next."""
        self._remember(body)
        states = len(node.input) - onnx.helper.get_node_attr_value(node, "num_scan_inputs")
        with self._canvas.subgraph(name=f"cluster_{self._side}_scan") as inside:
            inside.attr(label=SCAN, labeljust="l", margin="16")
            inside.attr(style="rounded,filled", color=FRAME, fillcolor="#f7f9fb", fontsize="13")
            for value, outer in zip(body.input, node.input, strict=True):
                zeros = outer in self._constants and not self._constants[outer].any()
                self._value(inside, value, "starts at 0" if zeros else _shape(value))
                if outer not in self._constants:
                    self._canvas.edge(self._made_by[outer], self._made_by[value.name])
            for inner in body.node:
                self._node(inside, inner, names=True)
        for old, new in list(zip(body.input, body.output, strict=True))[:states]:
            ends = self._made_by[old.name], self._made_by[new.name]
            self._canvas.edge(*ends, style="dashed", color=CARRIED, dir="back")
        self._made_by |= {o: self._made_by[value.name] for o, value in zip(node.output, body.output, strict=True)}


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _sizes(shape: tuple[int, ...]) -> str:
    return "\N{MULTIPLICATION SIGN}".join(map(str, shape))


def _shape(value: onnx.ValueInfoProto) -> str:
    return _sizes(tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim))


def _faint(text: str) -> str:
    return f'<font point-size="10.5" color="{FAINT}">{text}</font>'


def before_after(path: Path) -> None:
    model = one_lstm()
    canvas = graphviz.Digraph("before_after")
    canvas.attr(bgcolor="white", fontname=FONT, nodesep="0.22", ranksep="0.22", pad="0.2")
    canvas.attr("node", shape="box", style="filled", color=FRAME, height="0.28", margin="0.1,0.04")
    canvas.attr("node", fontname=FONT, fontsize="12")
    canvas.attr("edge", color=FAINT, arrowsize="0.6")
    lowered = rnn_lower.lower(model, form="scan")
    for side, title, shown in (("before", "one LSTM node", model), ("after", "primitive operators", lowered)):
        with canvas.subgraph(name=f"cluster_{side}") as frame:
            frame.attr(label=f"<<b>{side}</b>: {title}>", fontsize="15", color="white", margin="10")
            Picture(frame, side).draw(shown.graph)
    canvas.render(outfile=path, cleanup=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    before_after(parser.parse_args().docs / "before_after.svg")


if __name__ == "__main__":
    main()
