"""Stream a model from file to file: the streaming form, lowered or not, with its initial states in a second file."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from rnn_lower.driver.legalize_rest import MADE
from rnn_lower.driver.lower_pass import Record, at_opset_of_target, lower_document, prepared
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.ir.walk import opset_of, recurrent_nodes
from rnn_lower.modelio import files, stale_files
from rnn_lower.modelio.arrays import write_arrays
from rnn_lower.modelio.document import Document
from rnn_lower.modelio.output_path import checked_destination
from rnn_lower.options import Dims, Options
from rnn_lower.shapes.shape_info import ShapeInfo
from rnn_lower.shapes.sizes import GROWS
from rnn_lower.signals import signals_blocked
from rnn_lower.streaming.naming import packed, renamed
from rnn_lower.streaming.plan import Plan, fixed_step, read_plan
from rnn_lower.streaming.rewriting import StreamedModel, streamed
from rnn_lower.streaming.rewriting import StreamOptions as StreamOptions
from rnn_lower.targeting import find_target
from rnn_lower.targeting.lint import unsupported
from rnn_lower.targeting.profile import Target
from rnn_lower.validation import check_numbers, check_texts

logger = logging.getLogger("rnn_lower")

MARK = b"first states, written by rnn-lower stream"
"""The comment of archives with initial states."""


@dataclasses.dataclass(frozen=True)
class StreamResult:
    """A streaming model before it is written. dims: sizes that were fixed.  kept: nodes that were not lowered."""

    document: Document
    dims: Dims | None
    records: list[Record]
    streamed: StreamedModel
    kept: int = 0

    @property
    def plan(self) -> Plan:
        return self.streamed.plan

    @property
    def length(self) -> int | None:
        """The fixed length of a chunk, or None."""
        return fixed_step(self.document.proto, self.plan)


def make(document: Document, requested: StreamOptions, options: Options) -> StreamResult:
    """The streaming form, lowered unless native nodes are kept. The document stays unchanged."""
    check_texts(axis=requested.axis, state_names=requested.state_names)
    if requested.axis == "":
        raise RnnLowerError("the name of the stream's axis is empty; pass that of a symbolic size, or INPUT[AXIS]")
    if requested.step is not None:
        check_numbers(step=requested.step)
    if requested.set_inputs is not None and not isinstance(requested.set_inputs, Mapping):
        raise RnnLowerError(f"set_inputs is {requested.set_inputs!r}; it must map input names to values")
    target = find_target(options.target)
    chosen = at_opset_of_target(document.model, options)
    if chosen.opset is not None and chosen.opset > (opset_of(document.proto) or 0):
        requested = dataclasses.replace(requested, opset=chosen.opset)
    model = streamed(document, requested, options.dims)
    model = dataclasses.replace(model, plan=_arranged(model, requested))
    if requested.keep_native and model.late and requested.step is None:
        raise UnsupportedError(
            f"{model.late[0]}: its frames are delayed, so its input is empty in the first chunks, "
            "which native operators do not support; drop --keep-native"
        )
    length = requested.step or model.length
    dims: Dims | None = {model.time: length} if model.time is not None and length is not None else None
    if dims and requested.step is not None and options.form == "auto" and "unroll" in target.forms:
        options = dataclasses.replace(options, form="unroll")
    options = dataclasses.replace(options, dims=dims)
    if requested.step is None and options.target is not None and not target.empty:
        _refuse_empty_chunks(model, target)
    if model.late and requested.step is None and options.form in ("auto", "scan"):
        logger.info("using form loop, because frames are delayed and a Scan cannot run on a chunk without frames")
        options = dataclasses.replace(options, form="loop")
    if requested.keep_native and options.target is not None:
        options = dataclasses.replace(options, keep_native=True)
    elif requested.keep_native:
        options = dataclasses.replace(options, select=lambda _: False)
    ready, remaining_options = prepared(Document(model.document.proto, model.document.folder).copied(), options)
    records = lower_document(ready, remaining_options)
    if options.target is not None:
        _check_made(ready.model, target)
    for name, frames in model.plan.late.items():
        logger.info("output '%s' is delayed by %d frame%s", name, frames, "s" * (frames != 1))
    for name, frames in model.plan.warm_up.items():
        logger.info(
            "output '%s' starts with %d warm-up frame%s, which must be ignored", name, frames, "s" * (frames != 1)
        )
    native_count = sum(1 for _ in recurrent_nodes(model.document.model)) - len(records)
    return StreamResult(ready, remaining_options.dims, records, model, native_count)


def _check_made(model: ir.Model, target: Target) -> None:
    """Raise UnsupportedError if the target does not support a node that `stream` added."""
    for finding in unsupported(model, target, ShapeInfo(model)):
        if finding.node.startswith(MADE):
            raise UnsupportedError(
                f"target {target.name} does not support {finding.op} '{finding.node}', which computes or "
                f"stores the state of the streaming model: {finding.rule}"
            )


def _arranged(streamed_model: StreamedModel, requested: StreamOptions) -> Plan:
    """The plan with states packed and named as requested, also in the model."""
    plan, model = streamed_model.plan, streamed_model.document.proto
    if requested.states == "packed":
        plan = packed(model, plan)
    elif requested.states != "each":
        raise RnnLowerError(f"the argument 'states' is {requested.states!r}; it must be 'each' or 'packed'")
    if requested.state_names is not None:
        plan = renamed(model, plan, requested.state_names)
    if plan is not streamed_model.plan:
        plan.write(model)
    return plan


def _refuse_empty_chunks(model: StreamedModel, target: Target) -> None:
    """Raise UnsupportedError if delays vary, so that chunks may be empty, and the target does not support this."""
    grown = (state.node for state in model.plan.states if any(GROWS in dim.of for dim in state.shape))
    late = next(iter([*model.late, *grown]), None)
    if late is not None:
        raise UnsupportedError(
            f"{late}: its frames are delayed, so a chunk may be empty, and no test shows that target "
            f"{target.name} supports empty tensors; set a fixed chunk length (--step)"
        )


@contextlib.contextmanager
def staged_states(destination: str | os.PathLike[str], plan: Plan) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Write the initial states to a temporary file for OUT.state.npz next to the model.

    Yields a function that commits the model and then renames the file. The old states are moved away first, so that a
    killed run leaves no model beside the states of another; the model's metadata contains its states, too.
    """
    path, held = Path(os.path.realpath(destination)), plan.first(dict.fromkeys(plan.symbols, 1))
    if str(destination) == "-" or (path.exists() and not path.is_file()) or not (held or _has_states(path)):
        yield lambda commit: commit()
        return
    states_path = checked_destination(path.with_name(f"{path.name.removesuffix('.onnx')}.state.npz"), text=True)
    model = _model_of(states_path)
    if model is not None and model != path:
        raise RnnLowerError(f"{states_path}: this file contains the initial states of {model}; choose another output")
    if states_path.exists() and not (states_path.is_file() and (_has_states(path) or _is_ours(states_path))):
        raise RnnLowerError(
            f"{states_path}: rnn_lower did not write this file, and the initial states would "
            "overwrite it; move or rename the file"
        )
    staged, before = (
        states_path.with_name(f".{stale_files.stem_of(states_path)}.{secrets.token_hex(8)}{stale_files.TMP}")
        for _ in range(2)
    )

    def put(commit: Callable[[], None], file: BinaryIO) -> None:
        file.close()  # Windows cannot rename open files
        with signals_blocked():
            if states_path.exists():
                os.replace(states_path, before)
            try:
                commit()
            except BaseException:
                if before.exists():
                    os.replace(before, states_path)
                raise
            if held:
                os.replace(staged, states_path)
            before.unlink(missing_ok=True)

    try:
        try:
            if states_path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            with stale_files.folder_lock(states_path.parent) as locked:
                if locked:
                    stale_files.remove_unfinished(states_path)
            with stale_files.create_locked(staged) as file:
                write_arrays(file, held)
                _sign(file)
                files.sync(file)
                yield lambda commit: put(commit, file)
        except OSError as error:
            raise RnnLowerError(f"{states_path}: cannot be written: {error.strerror or error}") from None
    finally:
        staged.unlink(missing_ok=True)


def _model_of(states_path: Path) -> Path | None:
    """The streaming model whose initial states a file contains, or None."""
    name = states_path.name.removesuffix(".state.npz")
    models = (states_path.with_name(f"{name}{suffix}") for suffix in (".onnx", ""))
    return next((model for model in models if model.is_file() and _has_states(model)), None)


def _is_ours(path: Path) -> bool:
    """Whether an earlier run wrote this file of states."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.comment == MARK
    except (OSError, zipfile.BadZipFile):
        return False


def _sign(file: BinaryIO) -> None:
    """Write our mark as the comment of an archive without one; its last two bytes are the length."""
    file.seek(-2, os.SEEK_END)
    file.write(len(MARK).to_bytes(2, "little") + MARK)


def _has_states(path: Path) -> bool:
    """Whether a path contains a streaming model, which owns the states next to it."""
    try:
        plan = read_plan(onnx.load(path, load_external_data=False))
    except Exception:  # not a model, or of another schema version
        return False
    return plan is not None and any(state.first is not None for state in plan.states)
