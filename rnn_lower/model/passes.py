"""The pass: choose nodes, replace them, leave the rest of the model as it is."""

from __future__ import annotations

import dataclasses

import onnx
import onnx_ir as ir
from onnx_ir import convenience
from typing_extensions import Unpack

from rnn_lower.model import convert
from rnn_lower.model.document import Document
from rnn_lower.model.session import Session, remove_unused
from rnn_lower.options import Keywords, Options, takes_options
from rnn_lower.recurrent.node import RecurrentNode
from rnn_lower.targets import find_target


@dataclasses.dataclass(frozen=True)
class Record:
    """What became of one recurrent node: the form and the number of nodes emitted, bodies included."""

    node: RecurrentNode
    form: str
    emitted: int


class LowerRecurrentPass(ir.passes.InPlacePass):
    """Replace RNN, GRU and LSTM nodes by primitive operators.

    Requires: a valid model of opset 1 or newer. Changes: the chosen nodes, wherever they are (main graph, subgraphs,
    functions), and weights that nobody uses any more, which are removed. Everything else, the opset import included,
    stays, but for what the options `opset` and `dims` ask for. The result's `modified` tells whether any node was
    replaced; `records` of the pass tells which. Options as in `rnn_lower.lower`.

    Raises InvalidNodeError or UnsupportedError before anything is changed when a node cannot be lowered as asked.
    """

    @takes_options
    def __init__(self, **options: Unpack[Keywords]) -> None:
        super().__init__()
        self.options = Options(**options)
        find_target(self.options.target)
        self.records: list[Record] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        self.records = lower_in_place(model, self.options)
        return ir.passes.PassResult(model, bool(self.records))


def lower_in_place(model: ir.Model, options: Options) -> list[Record]:
    """Lower a model that someone else holds: an error leaves it as it was."""
    if options.opset is None and not options.dims:
        return replace_nodes(model, options)
    work = model.clone()  # weights are shared, not copied
    records = lower_model(work, options)
    convert.take_over(model, work)
    return records


def lower_document(document: Document, options: Options) -> list[Record]:
    """`lower_model` for the view of a document."""
    if options.dims:
        convert.fix_dims(document.model, options.dims)
        convert.fix_proto_dims(document.outline, options.dims)
    return lower_model(document.model, dataclasses.replace(options, dims=None), document.outline)


def lower_model(model: ir.Model, options: Options, outline: onnx.ModelProto | None = None) -> list[Record]:
    """Fix sizes, convert, lower; after an error the model is good for nothing. outline: as in `Facts`."""
    if options.dims:
        convert.fix_dims(model, options.dims)
    if options.opset is None:
        return replace_nodes(model, options, outline)
    # First, so that nodes are lowered with the operators of that opset.
    convert.convert_opset(model, options.opset, outline)
    records = replace_nodes(model, options, outline)
    convert.restamp_rest(model)
    return records


def replace_nodes(model: ir.Model, options: Options, outline: onnx.ModelProto | None = None) -> list[Record]:
    """Replace the chosen nodes, all or none of them."""
    session = Session(model, options, outline)
    for new in session.replacements:
        node = new.place.node.node
        convenience.replace_nodes_and_values(
            new.place.scope.graph, node, [node], new.nodes, new.old_values, new.new_values
        )
    remove_unused(session.places)
    return [Record(new.place.node, new.form, new.count) for new in session.replacements]
