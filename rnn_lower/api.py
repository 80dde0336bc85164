"""The public functions: lower or stream a model or a file, list its recurrent nodes, compare two models."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import onnx
import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lower.driver.lower_pass import Record, lower_document, lower_in_place, lower_model, prepared
from rnn_lower.driver.plan import read_document, read_nodes
from rnn_lower.driver.suggestions import unlogged
from rnn_lower.errors import RnnLowerError, UnsupportedError, public
from rnn_lower.ir import protobuf
from rnn_lower.loops.model import loops
from rnn_lower.lowering import function_body as function_bodies
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio import files, output_path, stale_files
from rnn_lower.modelio.document import Document
from rnn_lower.options import ATOL, RTOL, Dims, Keywords, Options, takes_options
from rnn_lower.sandbox.resource_limits import one_child
from rnn_lower.targeting import TARGETS, Target, find_target
from rnn_lower.targeting import lint as linting
from rnn_lower.targeting.lint import LintReport

if TYPE_CHECKING:
    import numpy as np

    from rnn_lower.proving.report import CheckReport, Proof
    from rnn_lower.raising.inspecting import LoopInfo
    from rnn_lower.raising.raise_loops import Raised
    from rnn_lower.reporting.gathering import Report
    from rnn_lower.streaming.comparison.proof import StreamProof
    from rnn_lower.streaming.stream_model import StreamOptions, StreamResult
    from rnn_lower.streaming.unstream import Whole

M = TypeVar("M", onnx.ModelProto, ir.Model)
R = TypeVar("R")


@takes_options
@public
def lower(model: M | str | os.PathLike[str], **options: Unpack[Keywords]) -> M | onnx.ModelProto:
    """Replace the RNN, GRU and LSTM nodes of a model with primitive operators that compute the same values.

    model: an onnx.ModelProto, which stays unchanged, or the path of a file; for both, a new onnx.ModelProto is
        returned. An onnx_ir.Model or a torch.onnx.ONNXProgram is lowered in place and returned. The opset may be any
        from 1 on. Nodes in subgraphs and functions are lowered, too.
    form: "scan" (opset 9 or newer), "loop" or "unroll" (known sequence length). "auto" selects Scan, or Loop below
        opset 9; it unrolls a sequence of one step, or of as many steps as run faster unrolled on the target.
    target: a runtime. The result uses only what this runtime supports, and form "auto" follows its preference. None
        returns the canonical graph, which is independent of any runtime.
    op_types: one or several of "RNN", "GRU" and "LSTM"; only these operators are lowered.
    select: a function that is called with each RecurrentNode; it returns False for nodes to keep.
    opset: convert the whole model to this opset, and lower the recurrent nodes at it. By default, a model is converted
        only if the target does not support its opset, to the nearest opset that it supports; the conversion is logged.
    dims: sizes for free dimensions of the inputs, e.g. {"batch": 4, "x[1]": 100}, or for all axes of an input, e.g.
        {"x": (4, 100, 16)}. They are fixed before lowering.
    fold: first fold the constants of the whole model (with onnxscript), and inline functions that depend on the call
        site (with onnx_ir). This is automatic if the target needs static sizes and the model computes sizes, and if no
        test shows that the target runs calls of such functions.
    keep_native: keep the nodes that, in tests, the target computed correctly, and at least as fast as lowered nodes.
    as_function: replace each lowered node with a call of a model-local function that has its weights as inputs. Nodes
        with the same sizes and attributes call the same function. The IR version of an older model becomes 8.
    loops: also unroll Loop and Scan nodes of the original model. A loop with an unknown number of steps raises
        UnsupportedError. For a target that supports neither operator, unrolling is automatic where possible.
    raise_loops: first replace loops that are proved equal to recurrent nodes, like `raise_loops`.
    fuse_directions: compute both directions of a node (hidden size up to 64, all sequences as long as X) in one loop,
        as a block-diagonal cell. A NaN or infinity in one direction then also affects the other.
    legalize_all: with a target, also replace other nodes that the target does not support, if supported equivalents
        exist.
    max_nodes: the maximum number of emitted nodes; it guards against accidental unrolling.

    Raises InvalidNodeError if a node contradicts the ONNX specification of its version, UnsupportedError if the request
    is impossible, and RnnLowerError for an unknown form, target, operator or dimension. After an error, the model is
    unchanged.
    """
    chosen = Options(**options)
    held = model if isinstance(model, ir.Model) else getattr(model, "model", None)  # an ONNXProgram has one
    if isinstance(held, ir.Model):
        lower_in_place(held, chosen)
        return model  # type: ignore[return-value]
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        document, path = files.open_model(copy)
    else:
        document, path = files.open_model(model)

    def result() -> onnx.ModelProto:
        work, remaining = prepared(*_raised(document, chosen))
        lower_document(work, remaining)
        return _whole(work, remaining.dims)

    return _naming_file(path, result)


@takes_options
@public
def lower_file(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    accept: Callable[[str], bool] | None = None,
    progress: files.Progress | None = None,
    **options: Unpack[Keywords],
) -> list[Record]:
    """Lower the model in one file and write it to another, like `lower`; return one Record per lowered node.

    Models of any size are supported. Source and destination may be the same file. The destination is replaced by one
    rename, so it is never incomplete. Links are followed, devices and FIFOs are written to, and "-" means standard
    output. Weights in external files are copied, without being loaded, to one new file in the same folder,
    `DESTINATION.<16 hex digits>.data`. The data file of the replaced model is removed unless another model in the
    folder refers to it. Data files with other names are kept.

    accept: a function that is called with the path of the finished file before the rename; if it returns False, the
        destination stays unchanged.
    progress: a function that is called with (name, index, total) for each written weight.

    Raises the errors of `lower`, with the file in the message, and RnnLowerError if a file cannot be read or written.
    """
    chosen = Options(**options)
    document = files.load(source)

    def work() -> list[Record]:
        ready, remaining = prepared(*_raised(document, chosen))
        records = lower_document(ready, remaining)
        with files.staged(
            ready, destination, progress, remaining.dims, _data_of_source(document, source, destination)
        ) as staged:
            if accept is None or accept(os.fspath(staged.path)):
                staged.commit()
        return records

    return _naming_file(source, work)


@takes_options
@public
def stream(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str], *,
    axis: str | None = None, step: int | None = None,
    set_inputs: Mapping[str, Any] | None = None, reset: bool = False, delay: bool = False,
    states: Literal["each", "packed"] = "each", state_names: str | None = None,
    **options: Unpack[Keywords],
) -> onnx.ModelProto:  # fmt: skip
    """Convert a model to one that processes a sequence chunk by chunk, with its states as inputs and outputs.

    The states are inputs NAME/h_in, outputs NAME/h_out, and so on. To continue the sequence, pass these outputs to the
    next run as inputs, as `rnn_lower.StreamingSession` does. The original model stays unchanged.

    axis: the axis of the stream, as the name of a symbolic size or as INPUT[AXIS]; for several inputs, separate the
        axes with commas. It is not needed if the model can be streamed over only one axis.
    step: the only length of chunks; with form "auto", the recurrent nodes are unrolled.
    keep_native: do not lower the recurrent nodes, or, with a target, keep those that the target runs correctly.
    set_inputs: values, by name, for inputs that become constants; branches that depend on them are folded.
    reset: add an input `reset`, bool [batch], which resets rows to their initial states.
    delay: also accept right padding: the outputs are delayed, and their last frames follow when the stream continues.
    states: "each" for one tensor per state, or "packed" for one tensor per element type.  state_names: a template for
        their names, such as "{state}_{end}"; the default is {node}/{state}_{end}.

    Other options are the same as for `lower`.

    A table of rules (docs/streaming.md) proves that every value is computed frame by frame. The first node for which
    the rules cannot prove it raises UnsupportedError. Other errors are the same as for `lower`.
    """
    from rnn_lower.streaming import stream_model  # loaded only for streaming

    document, path = files.open_model(model)
    requested = stream_model.StreamOptions(
        axis, step, options.pop("keep_native", False), set_inputs, reset, delay, states, state_names
    )
    chosen = _of_stream(options)

    def result() -> onnx.ModelProto:
        streamed = _streamed(document, requested, chosen)
        return _whole(streamed.document, streamed.dims)

    return _naming_file(path, result)


@takes_options
@public
def stream_file(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], *,
    axis: str | None = None, step: int | None = None,
    set_inputs: Mapping[str, Any] | None = None, reset: bool = False, delay: bool = False,
    states: Literal["each", "packed"] = "each", state_names: str | None = None,
    accept: Callable[[str, StreamResult], bool] | None = None, progress: files.Progress | None = None,
    **options: Unpack[Keywords],
) -> StreamResult:  # fmt: skip
    """Convert the model in one file to a streaming model in another, like `stream`.

    The file is written as by `lower_file`, and the initial states are written to DESTINATION.state.npz.

    accept: a function that is called with the path of the finished file and the result before the rename.
    """
    from rnn_lower.streaming import stream_model  # loaded only for streaming

    document = files.load(source)
    requested = stream_model.StreamOptions(
        axis, step, options.pop("keep_native", False), set_inputs, reset, delay, states, state_names
    )
    chosen = _of_stream(options)

    def work() -> StreamResult:
        result = _streamed(document, requested, chosen)
        with (
            files.staged(
                result.document, destination, progress, result.dims, _data_of_source(document, source, destination)
            ) as staged,
            stream_model.staged_states(destination, result.plan) as commit_states,
        ):
            if accept is None or accept(os.fspath(staged.path), result):
                commit_states(staged.commit)
        return result

    return _naming_file(source, work)


def _streamed(document: Document, requested: StreamOptions, options: Options) -> StreamResult:
    """Return the streaming model. Errors suggest to raise the loops of a model if this was not requested."""
    from rnn_lower.streaming import stream_model  # loaded only for streaming

    raised, remaining = _raised(document, options)
    try:
        return stream_model.make(raised, requested, remaining)
    except UnsupportedError as error:
        if options.raise_loops or "cannot run chunk by chunk" not in str(error) or not any(loops(document.model)):
            raise
        raise UnsupportedError(f"{error}; if a loop computes an RNN, GRU or LSTM, add --raise-loops") from None


def _raised(document: Document, options: Options) -> tuple[Document, Options]:
    """Return the document, with loops raised if requested, and the remaining options."""
    if not options.raise_loops:
        return document, options
    from rnn_lower.raising.raise_loops import raise_document  # loaded only for raising

    raised, loops = raise_document(document, options.dims)
    for loop in loops:
        if loop.why:
            logging.getLogger("rnn_lower").warning("loop '%s' was not replaced: %s", loop.name, loop.why)
    return raised, dataclasses.replace(options, raise_loops=False, dims=None)


@public
def raise_loops(model: onnx.ModelProto | str | os.PathLike[str], *, dims: Dims | None = None) -> onnx.ModelProto:
    """Replace loops, and nodes that `lower` emitted, with the RNN, GRU and LSTM nodes to which they are proved equal.

    The functions and weights of a step suggest a node, and exact arithmetic proves that it is the same function
    (docs/loops.md). A loop for which the proof fails stays unchanged.  dims: sizes to fix first, as for `lower`.
    """
    from rnn_lower.raising.raise_loops import raise_document  # loaded only for raising

    document, path = files.open_model(model)

    def result() -> onnx.ModelProto:
        return _whole(raise_document(document.copied(), Options(dims=dims).dims)[0], None)

    return _naming_file(path, result)


@public
def raise_file(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], *, dims: Dims | None = None,
    progress: files.Progress | None = None,
) -> list[Raised]:  # fmt: skip
    """Raise the loops of the model in one file and write it to another, like `raise_loops`; return a result per loop.

    Nothing is written if no loop is replaced.
    """
    from rnn_lower.raising.raise_loops import raise_document  # loaded only for raising

    document = files.load(source)

    def work() -> list[Raised]:
        raised, loops = raise_document(document, Options(dims=dims).dims)
        if any(loop.op_type for loop in loops):
            with files.staged(
                raised, destination, progress, None, _data_of_source(document, source, destination)
            ) as staged:
                staged.commit()
        return loops

    return _naming_file(source, work)


@public
def inspect_loops(model: onnx.ModelProto | str | os.PathLike[str], *, dims: Dims | None = None) -> list[LoopInfo]:
    """List the loops of a model with their trip counts, their states and the command that replaces each of them.

    A loop that is proved equal to a recurrent node is listed with this node.  dims: as for `inspect`.
    """
    from rnn_lower.raising import inspecting  # loaded only for loops

    document, path = _opened(model, dims)
    return _naming_file(path, lambda: inspecting.inspect_loops(document))


def _data_of_source(document: Document, source: Any, destination: Any) -> frozenset[stale_files.Inode]:
    """Return the data files of a source that is kept."""
    in_place = os.path.realpath(source) == os.path.realpath(output_path.name_of(destination))
    return frozenset() if in_place else files.data_of(document)


def _of_stream(options: Keywords) -> Options:
    chosen = Options(**options)
    if chosen.as_function:
        raise RnnLowerError("rnn_lower.stream cannot write the model as a function; call it without as_function")
    if chosen.dequantize:
        raise RnnLowerError("rnn_lower.stream cannot dequantize a DynamicQuantizeLSTM; call it without dequantize")
    return chosen


@public
def check_streaming(
    result: StreamResult, model: Any, *, runs: int = 3, seed: int = 0, rtol: float = RTOL, atol: float = ATOL
) -> CheckReport:
    """Compare runs of the original on whole sequences with runs of its streaming model in random chunks.

    Lowered recurrent nodes are also compared in exact arithmetic if that is cheap.
    """
    from rnn_lower.checking import subprocess_run  # loads onnxruntime
    from rnn_lower.streaming.comparison import checking

    streamed = result.streamed
    arguments = (streamed.original, streamed.document, model, result.plan, runs, seed, rtol, atol)
    return subprocess_run.run_guarded(model, None, checking.check_streaming, *arguments)


@public
def prove_streaming(original: Any, model: Any, *, points: int = 2, seed: int = 0) -> StreamProof:
    """Prove in exact arithmetic that a streaming model, in chunks of any length, equals the original.

    original, model: models or paths. Inputs that were set for `stream` must also be set in the original.
    """
    from rnn_lower.streaming import plan as plans
    from rnn_lower.streaming.comparison import proof

    (before, _), (after, path) = files.open_model(original), files.open_model(model)
    plan = plans.read_plan(after.proto)
    if plan is None:
        raise RnnLowerError("the model is not a streaming model; create a streaming model with rnn-lower stream")
    return _naming_file(path, lambda: proof.prove_streaming(before, after, plan, points, seed))


@public
def unstream(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str], *,
    states: Mapping[str, str] | None = None, axis: str | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """Convert a streaming model to one that runs on whole sequences.

    Its step becomes the body of a Scan, or its axis of frames becomes free. The original model stays unchanged.

    states: the output for each input to which it is fed back, for a model that `stream` did not create.
    axis: the axis of its frames, as INPUT[AXIS]; without it, each run is one step, and a new axis comes first. Known
        initial states become constants; the others stay inputs and outputs.
    """
    from rnn_lower.streaming.unstream import unstreamed

    document, path = files.open_model(model)
    return _naming_file(path, lambda: _whole(unstreamed(document, states, axis).document, None))


@public
def unstream_file(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], *,
    states: Mapping[str, str] | None = None, axis: str | None = None,
    accept: Callable[[str, Whole], bool] | None = None,
) -> Whole:  # fmt: skip
    """Convert the streaming model in one file to a model on whole sequences in another, like `unstream`.

    accept: a function that is called with the finished file before the rename.
    """
    from rnn_lower.streaming.unstream import unstreamed

    document = files.load(source)

    def work() -> Whole:
        result = unstreamed(document, states, axis)
        data = _data_of_source(document, source, destination)
        with files.staged(result.document, destination, None, None, data) as staged:
            if accept is None or accept(os.fspath(staged.path), result):
                staged.commit()
        return result

    return _naming_file(source, work)


@public
def compare_whole(
    result: Whole, model: Any, check: bool, prove: bool, *, runs: int = 3, seed: int = 0, rtol: float = RTOL,
    atol: float = ATOL,
) -> list[CheckReport | StreamProof]:  # fmt: skip
    """Compare a result of `unstream` with chunks of its source; return a report of the runs and one of the proof."""
    from rnn_lower.checking import subprocess_run  # loads onnxruntime
    from rnn_lower.streaming.comparison import checking, proof

    (whole, _), reports = files.open_model(model), list[Any]()
    if check:
        arguments = (whole, result.source, result.source, result.plan, runs, seed, rtol, atol, True)
        reports.append(subprocess_run.run_guarded(model, None, checking.check_streaming, *arguments))
    if prove:
        reports.append(proof.prove_streaming(whole, result.source, result.plan, seed=seed, whole_is_new=True))
    return reports


@public
def function_body(
    op_type: str, version: int, *, hidden_size: int, opset: int | None = None, form: str = "auto",
    inputs: Sequence[str] = ("X", "W", "R"), outputs: Sequence[str] | None = None, dtype: str = "float",
    seq_length: int | None = None, domain: str = "", **attributes: Any,
) -> onnx.FunctionProto:  # fmt: skip
    """Build a function of primitive operators for RNN, GRU or LSTM, as the ONNX standard could include it.

    This is a context-dependent body. The context consists of the specification of a node: hidden_size and the other
    attributes (direction, activations, activation_alpha, activation_beta, clip, layout, linear_before_reset,
    input_forget), the inputs and outputs that the node has, and their element type ("float", "double", "float16",
    "bfloat16"). The body reads the sizes of time, batch and features at run time. Its formal inputs are all inputs of
    the operator, in order; it does not read those that are not in `inputs`. Its outputs are those of the operator up to
    the last one in `outputs`. Inputs and outputs are therefore matched by position.

    version: the version of the operator.  opset: the opset of the body, 9 or newer, at which the operator has this
    version; the default is the first such opset.  form: "scan", "loop", or "unroll" with a known `seq_length`.  domain:
    the domain of a function in a model.

    Raises UnsupportedError for an opset below 9 or an opset with another version, InvalidNodeError for attributes that
    contradict the ONNX specification, and RnnLowerError for unknown names.
    """
    limit = Options(form=form, op_types=op_type).max_nodes  # validates both
    arguments = {"hidden_size": hidden_size, **attributes}
    context = (op_type, version, opset, arguments, inputs, outputs, dtype, seq_length)
    return ir.serde.serialize_function(function_bodies.body(*context, form, domain, limit))


@public
def inspect(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str], *, dims: Dims | None = None
) -> list[RecurrentNode]:
    """Read and validate all recurrent nodes of a model, in any graph or function.

    dims: sizes that the model will have, as for `lower`; the model stays unchanged.

    Raises InvalidNodeError for an invalid node, and RnnLowerError if a file cannot be read or a dimension is unknown.
    """
    if isinstance(model, ir.Model):
        return inspect(ir.to_proto(model), dims=dims) if dims else read_nodes(model)
    return inspect_file(model, dims=dims)[1]


@public
def inspect_file(
    model: onnx.ModelProto | str | os.PathLike[str], *, dims: Dims | None = None
) -> tuple[list[ir.Value], list[RecurrentNode]]:
    """Return the inputs that a caller has to provide, and the recurrent nodes. For the rest, see `inspect`."""
    document, path = _opened(model, dims)

    def result() -> tuple[list[ir.Value], list[RecurrentNode]]:
        plain, nodes = read_document(document)
        return [value for value in plain.model.graph.inputs if not value.is_initializer()], nodes

    return _naming_file(path, result)


def _opened(model: Any, dims: Dims | None) -> tuple[Document, str | os.PathLike[str] | None]:
    """Return the document of a model that is only read, with its sizes fixed, and its path."""
    document, path = files.open_model(ir.to_proto(model) if isinstance(model, ir.Model) else model)
    if dims:
        document = _naming_file(path, lambda: document.copied().fixed(Options(dims=dims).dims or {}))
    return document, path


@public
def targets() -> list[Target]:
    """Return all runtimes that `target` accepts by name; `explained()` lists what each of them supports."""
    return list(TARGETS.values())


@public
def lint(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str], target: str, *, dims: Dims | None = None
) -> LintReport:
    """List the nodes of a whole model that a runtime does not support, with the violated rule and the remedy.

    The report also states whether lowering replaces a node.

    target: a name (see `targets`) or the path of a .toml file.  dims: sizes that the model will have, as for `lower`.
    The model stays unchanged.

    Raises the errors of `inspect`, and RnnLowerError for an unknown target.
    """
    opened, path = _opened(model, dims)
    document, _ = _naming_file(path, lambda: read_document(opened))

    def attempt(wanted: RecurrentNode) -> None:
        again, site = document.again(), (wanted.name, wanted.path)
        options = Options(target=target, select=lambda node: (node.name, node.path) == site)
        with unlogged():
            lower_model(again.model, options, again.outline)

    def mends() -> dict[str, tuple[str, bool]]:
        from rnn_lower.raising import inspecting  # loaded only for loops

        return {
            loop.node: (loop.mend, bool(loop.recognized) or loop.unrolls) for loop in inspecting.inspect_loops(document)
        }

    return _naming_file(
        path, lambda: linting.lint(document.model, find_target(target), document.shape_info, attempt, mends)
    )


@public
def check(
    original: Any, lowered: Any, *, inputs: Mapping[str, np.ndarray] | str | os.PathLike[str] | None = None,
    runs: int = 3, seed: int = 0, rtol: float = RTOL, atol: float = ATOL,
    on: str | None = None, counterexample: str | os.PathLike[str] | None = None, proof: Proof | None = None,
) -> CheckReport:  # fmt: skip
    """Compare two models by a proof and by running both; each is an onnx.ModelProto, an onnx_ir.Model or a path.

    inputs: arrays by input name, or an .npz file with such arrays. They are used for one run; `check` samples other
    inputs only for nodes in branches and loops that this run does not reach. By default, `seed` determines `runs` sets
    of inputs: symbolic sizes are sampled by name unless the lowered model fixes them, an input that feeds sequence_lens
    is in [0, T], and numbers are in [-1, 1] at first and between 0.1 and 1e4 later.

    `check` first proves what it can within a few seconds, like `prove`, unless the `proof` is provided. A node that is
    a different function counts as a difference, unless other tools have changed the model since; a proved node need not
    run. The runs then test rounding and the runtime. If all nodes are proved and nothing else has changed, integers may
    differ, because they depend on rounding. Every other replaced node must run three steps, with rows of different
    length if it has sequence_lens. `check` samples further inputs for such a node. If the node still has not run, it is
    listed as unreached, and the models do not agree. They do not agree either if all outputs are empty or the same in
    all runs, unless all nodes are proved.

    Floating-point numbers agree when |lowered - original| <= rtol * |original| + atol * size. Here, size is the largest
    |original| at the same index of the last axis, or that of most indices. NaN agrees with NaN. In a type that is
    coarser than rtol, one unit in the last place is allowed. Everything else must be equal.

    counterexample: an .npz file to write, with inputs that show a difference; `inputs` accepts this file.
    on: run the lowered model on this runtime, which must be installed: "openvino", "tract", "opencv", "onnx2torch",
    "tinygrad", "tvm", "iree" or "onnx-reference"; with fixed input sizes if it does not run the model as it is.

    By default, both models run on onnxruntime in a child process, because some models crash it. They run in this
    process if it cannot fork or has other threads. If onnxruntime cannot run the fused operators (double, bfloat16,
    layout 1, opsets below 7, empty sequences or batches), the original runs on onnx.reference with
    rnn_lower.proving.exact.reference; the report states this.

    Raises RnnLowerError if a model cannot be read, if no inputs were found with which the original runs, or if the
    runtime has ended its process.
    """
    from rnn_lower.checking import checker, subprocess_run  # loads onnxruntime

    arguments = (
        original,
        lowered,
        inputs,
        runs,
        seed,
        rtol,
        atol,
        True if proof is None else proof,
        on,
        counterexample,
    )
    return subprocess_run.run_guarded(original, on, checker.compare_models, *arguments)


@public
def prove(
    original: Any, lowered: Any, *, points: int = 2, seed: int = 0,
    counterexample: str | os.PathLike[str] | None = None,
) -> Proof:  # fmt: skip
    """Prove that a lowered model is the same function as the original, without inputs and without a tolerance.

    The models are specified as for `check`. Every replaced recurrent node is compared with its subgraph in exact
    arithmetic modulo a prime, at `points` random points that `seed` determines. docs/proof.md explains the argument and
    its limits, of which rounding is the most important. Everything else must be unchanged. The proof needs no runtime,
    and supports every element type and opset.

    counterexample: an .npz file to write, with inputs that show a difference; they are found by running both models.

    Raises RnnLowerError if a model cannot be read; errors in a lowered model are reported in the Proof.
    """
    from rnn_lower.proving import prover
    from rnn_lower.raising.raise_loops import raised_document  # loaded only for raising

    proof = prover.prove_models(original, lowered, points, seed, raised=raised_document)
    if counterexample is None or proof.ok:
        return proof
    from rnn_lower.checking import checker, subprocess_run  # loads onnxruntime

    compared = (original, lowered, None, 3, seed, RTOL, ATOL, False, None, counterexample)
    report = subprocess_run.run_guarded(original, None, checker.compare_models, *compared)
    return dataclasses.replace(proof, counterexample=report.counterexample)


@takes_options
@public
def report(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str], *,
    inputs: Mapping[str, np.ndarray] | str | os.PathLike[str] | None = None,
    runs: int = 3, seed: int = 0, rtol: float = RTOL, atol: float = ATOL,
    **options: Unpack[Keywords],
) -> Report:  # fmt: skip
    """Report how the recurrent nodes of a model are lowered, checked and proved; `.html` is a page.

    The model is lowered with the options of `lower`, compared (`inputs` to `atol` have the same meaning as for
    `check`), proved, and lowered for each target; it stays unchanged. The page contains drawings as SVG and loads no
    other files. Drawing needs the packages of the extra `report`.

    Raises the errors of `lower`, and RnnLowerError if these packages are missing.
    """
    from rnn_lower.reporting import gathering  # loads onnxruntime

    ask = gathering.CheckOptions(inputs, runs, seed, rtol, atol)
    return _of_file(model, lambda: gathering.gather(model, Options(**options), ask))


@takes_options
@public
def draw(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str], node: str | None = None, **options: Unpack[Keywords]
) -> str:
    """Draw a recurrent node and the nodes that replace it, as SVG.

    node: the name of the node; it is not needed if there is only one.  The options are those of `lower`, except
    `select`.

    Raises the errors of `lower`, and RnnLowerError if no node has this name or the packages of the extra `report` are
    missing.
    """
    from rnn_lower.reporting import gathering  # loads onnxruntime

    return _of_file(model, lambda: gathering.draw(model, node, Options(**options)))


def _of_file(model: Any, work: Callable[[], R]) -> R:
    return _naming_file(model if isinstance(model, (str, os.PathLike)) else None, work)


def _whole(document: Document, dims: Dims | None) -> onnx.ModelProto:
    """Return the lowered model with its weights embedded."""
    proto = document.write_back(dims)
    if document.folder is not None:
        protobuf.embed(proto, document.folder)
    return proto


def _naming_file(path: str | os.PathLike[str] | None, work: Callable[[], R]) -> R:
    """Return the result of `work`; its errors name the file."""
    try:
        with one_child():
            return work()
    except RnnLowerError as error:
        if path is None or str(error).startswith(f"{os.fspath(path)}: "):
            raise
        raise type(error)(f"{os.fspath(path)}: {error}") from None
