"""Follow the stream through the graph, and refuse nodes that are not proved to be causal."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, malformed
from rnn_lower.ir.traits import RANDOM
from rnn_lower.ir.walk import Scope, is_read, known_tensor, roots, subgraphs
from rnn_lower.lowering.node import Dim
from rnn_lower.shapes.shape_info import NO_NAMES, ShapeInfo, plain_dim
from rnn_lower.shapes.size_values import LONGEST
from rnn_lower.shapes.sizes import TIME, size
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext, UnknownShapeError
from rnn_lower.streaming.constants import Constants, constant_content, content_of
from rnn_lower.streaming.rules.positions import index_offsets
from rnn_lower.streaming.rules.repetition import filled_shape
from rnn_lower.streaming.rules.table import RULES
from rnn_lower.streaming.states.delays import settle, settled, wait_for_each_other

INSTEAD = {"Loop": "; only loops that compute an RNN, GRU or LSTM can be streamed"}
"""What streaming supports of operators without a rule."""


class CausalityAnalysis:
    """The causality analysis: one pass over a model without functions, which stays unchanged.

    streams: the axis of the stream by input.
    delay: whether outputs may lack the last frames of a whole run.
    step: the only chunk length, or None. With it, chunks of delayed values are complete and start with invalid frames.
    baked: the stream length that the export fixed, which constants may contain.
    infos: by value, after `run`.  carried: edits of nodes.
    numbered: nodes that use frame indices only to select each frame.  divisors: divisors of the chunk length.
    """

    def __init__(
        self, model: ir.Model, shape_info: ShapeInfo, streams: dict[str, int], delay: bool = False,
        step: int | None = None, baked: int | None = None,
    ) -> None:  # fmt: skip
        self._model, self.shape_info, self.streams = model, shape_info, streams
        self.delay, self.step, self.baked = delay, step, baked
        self._names = {
            str(dim)
            for value in model.graph.inputs
            for axis, dim in enumerate(map(plain_dim, value.shape or ()))
            if streams.get(str(value.name)) != axis and dim not in (None, *NO_NAMES)
        }
        self.infos: dict[ir.Value, AxisInfo] = {}
        self.carried: list[Any] = []
        self.constants = Constants()
        self.numbered: set[ir.Node] = set()
        self.divisors: set[int] = set()

    @property
    def every(self) -> int:
        """The number of frames that a chunk has to be a multiple of, after `run`."""
        return math.lcm(*self.divisors, *(info.every.numerator for info in self.infos.values()))

    def run(self) -> None:
        """Run the analysis. Raises UnsupportedError for the first node that is not proved to be causal."""
        scope = roots(self._model)[0]
        for value in self._model.graph.inputs:
            self.infos[value] = self._input(value)
        self._graph(scope)
        for value in self._model.graph.outputs:
            info = self._info_of(value)
            if info.trail:
                info = self.infos[value] = settled(info, self.delay)
            if info.axis is None and info.is_timed:
                raise UnsupportedError(
                    f"output '{value.name}' contains the length of the stream, which is unknown while the "
                    "stream is running"
                )
            if info.lead:
                raise UnsupportedError(
                    f"output '{value.name}' is longer than the stream by {info.lead} frame{'s' * (info.lead != 1)}"
                )
            if info.last and info.cut:
                raise UnsupportedError(
                    f"output '{value.name}' is the last frame of the stream, but the nodes that compute it look ahead"
                )
            if info.axis is not None and info.outer != size(1):
                raise UnsupportedError(
                    f"output '{value.name}' merges the frames of the stream into its batch axis, so the "
                    "frames of one chunk are not adjacent in it"
                )

    def _input(self, value: ir.Value) -> AxisInfo:
        axis = self.streams.get(str(value.name))
        if value.shape is None:
            return AxisInfo(None)
        dims = enumerate(map(plain_dim, value.shape))
        shape = [size(f"{value.name}#{index}" if dim is None or dim in NO_NAMES else dim) for index, dim in dims]
        if axis is not None:
            shape[axis] = size(TIME)
        return AxisInfo(tuple(shape), axis)

    def _info_of(self, value: ir.Value) -> AxisInfo:
        if value not in self.infos:  # e.g. a weight
            self.infos[value] = self._fixed(value)
        return self.infos[value]

    def _fixed(self, value: ir.Value) -> AxisInfo:
        """The info of a value that is the same for every chunk."""
        tensor = known_tensor(value)
        held = tensor.numpy() if tensor is not None and tensor.size <= LONGEST else None
        if (known := self.constants.get(value) if tensor is None else held) is not None:
            return constant_content(known)
        shape = self.shape_info.shape(value)
        if shape is None:
            return AxisInfo(None)
        return AxisInfo(tuple(size(self.known_size(value, axis, n)) for axis, n in enumerate(shape)))

    def known_size(self, value: ir.Value, axis: int, dim: Dim) -> int | str:
        """An inferred size; a symbol becomes unique unless an input has it, too."""
        return dim if isinstance(dim, int) else str(dim) if dim in self._names else f"{value.name}#{axis}"

    def _graph(self, scope: Scope) -> list[AxisInfo]:
        for node in scope.graph:
            infos = self._node(node, scope)
            for value, info in zip(node.outputs, infos, strict=False):
                self.infos[value] = self._refined(value, info)
                self.constants.put(value, info, self.shape_info.dtype(value))
            for value in node.outputs[len(infos) :]:
                if is_read(value):
                    ctx = RuleContext(node, scope, [], self)
                    raise ctx.refuse(f"rnn-lower stream does not support output '{value.name}' of this node")
        return [self._info_of(value) for value in scope.graph.outputs]

    def _refined(self, value: ir.Value, info: AxisInfo) -> AxisInfo:
        """The info with inferred numbers in place of sizes that a rule left unknown."""
        inferred = self.shape_info.shape(value)
        if info.shape is None or inferred is None or len(inferred) != len(info.shape) or info.content is not None:
            return info
        pairs = enumerate(zip(info.shape, inferred, strict=True))
        shape = [size(n) if isinstance(n, int) and k != info.axis and dim.of else dim for k, (dim, n) in pairs]
        return dataclasses.replace(info, shape=tuple(shape))

    def _node(self, node: ir.Node, scope: Scope) -> list[AxisInfo]:
        ctx = RuleContext(node, scope, [None if value is None else self._info_of(value) for value in node.inputs], self)
        seen = [*(info for info in ctx.inputs if info), *self.captured(node)]
        if node.domain not in DEFAULT_DOMAINS:
            raise ctx.refuse(f"rnn-lower stream does not support operators of domain {node.domain}")
        if why := malformed(node, scope.opset):
            raise ctx.refuse(why)
        try:
            return self._apply_rule(ctx, seen, scope)
        except RnnLowerError:
            raise
        except UnknownShapeError:
            raise ctx.refuse("the shape of an input is unknown") from None
        except (IndexError, ValueError, ZeroDivisionError) as error:  # missing sizes or axes
            raise ctx.refuse("the number or the sizes of its inputs do not fit its attributes") from error

    def _apply_rule(self, ctx: RuleContext, seen: Sequence[AxisInfo], scope: Scope) -> list[AxisInfo]:
        node = ctx.node
        timed, last = any(info.is_timed for info in seen), any(info.last for info in seen)
        if not timed:
            self.constants.compute(node, scope.opset)
        rule = RULES.get(node.op_type)
        if node.op_type != "Shape":  # it reads no frames
            settle(ctx, passes=rule is not None and rule.lead)
        if (content := content_of(ctx)) is not None:
            return [content]
        if node.op_type in RANDOM:
            raise ctx.refuse("its output is random")
        if not timed:
            shape = filled_shape(ctx)
            infos = [self._fixed(value) if shape is None else AxisInfo(shape) for value in node.outputs]
            cut, opening = any(info.cut for info in seen), any(info.opening for info in seen)
            return [dataclasses.replace(info, last=last, cut=cut, opening=opening) for info in infos]
        if last:
            raise ctx.refuse("to compute each frame, it needs a final state or the last frame of the stream")
        if rule is None:
            raise ctx.refuse(f"rnn-lower stream does not support this operator{INSTEAD.get(node.op_type, '')}")
        if not rule.lead and any(info.lead for info in seen):
            raise ctx.refuse("its input has left padding, which rnn-lower stream does not support for this operator")
        if rule.operators != RULES["LSTM"].operators:
            ctx.require_opset(7)
        wait_for_each_other(ctx)
        return [dataclasses.replace(info, offsets=index_offsets(ctx, info)) for info in rule.follow(ctx)]

    def captured(self, node: ir.Node) -> list[AxisInfo]:
        """The infos of outer values that the bodies of a node use."""
        bodies = [body for _, body in subgraphs(node)]
        used = {value for body in bodies for inner in body.all_nodes() for value in inner.inputs if value is not None}
        used |= {value for body in bodies for value in body.outputs}
        graphs = {graph for body in bodies for graph in [body, *body.subgraphs()]}
        return [self._info_of(value) for value in used if value.graph not in graphs]

    def branch(self, scope: Scope, graph: ir.Graph) -> list[AxisInfo]:
        """The infos of the outputs of a body."""
        return self._graph(next(inner for inner in scope.bodies() if inner.graph is graph))
