"""Suggest options for a request that failed: derive them from the missing requirements, and try them first."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import itertools
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import onnx_ir as ir

from rnn_lower.driver.plan import read_nodes
from rnn_lower.errors import ConversionError, Requirement, RnnLowerError, UnmetRequirementError, UnsupportedError
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, newest_opset
from rnn_lower.ir.walk import is_quantized, nodes, recurrent_nodes, upstream
from rnn_lower.loops.model import loops
from rnn_lower.lowering.node import axes_of
from rnn_lower.options import Options
from rnn_lower.shapes.fixed_dims import axis_name, declared_shapes, free_dims, one_by_one
from rnn_lower.shapes.shape_info import plain_dim
from rnn_lower.targeting import find_target

SIZES: Mapping[str, tuple[int, ...]] = {
    "batch_size": (1,),
    "seq_length": (16, 100),
    "other": (16, 100, 512, 1536, 4000, 16000),
    "samples": (512, 1536, 4000, 16000, 100, 16),
}
"""Sizes to try, by the role of the axis in the recurrent nodes; audio inputs need many samples.

Small sizes come first, because each trial unrolls the model, and a refusal must not take long."""

COMMON_OPSET, OPSETS = 17, 5
"""The opset that nearly every runtime supports, and the maximum number of opsets to try."""

ATTEMPTS, TRIED_NODES = 20, 20_000
"""The maximum number of trial lowerings, and of nodes of the model in all of them; the first trial always runs."""

MOST_NODES = 500_000

Attempt = Callable[[Options], object]
"""Lowers a fresh copy of the model to find out whether this raises an error."""

Change = dict[str, Any]
"""Other options."""

T = TypeVar("T")

_TRIAL = contextvars.ContextVar("rnn_lower.trial", default=False)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Suppress log messages in a trial; other threads log as before."""
    token = _TRIAL.set(True)
    try:
        yield
    finally:
        _TRIAL.reset(token)


logging.getLogger("rnn_lower").addFilter(lambda record: not _TRIAL.get())


def advised(work: Callable[[], T], options: Options, fresh: Callable[[], ir.Model], attempt: Attempt) -> T:
    """Run `work`; append suggestions to the error if other options work, or state that no option helps.

    fresh: gives a copy of the model as it was.
    """
    try:
        return work()
    except UnmetRequirementError as error:
        text, lacks = str(error), error.requirements
    except ConversionError as error:
        first, last = find_target(options.target).opsets
        text, lacks = str(error), (Requirement("", opsets=(first, min(last, newest_opset()))),)
    raise UnsupportedError(f"{text}; {_suggestion(lacks, options, fresh(), attempt)}")


def _suggestion(lacks: Sequence[Requirement], options: Options, model: ir.Model, attempt: Attempt) -> str:
    common = set.intersection(*(set(lack.forms) for lack in lacks))  # the forms without any of these requirements
    forms = [{"form": form} for form in lacks[0].forms if form in common]
    ways = [_written(change, options) for change in forms if _error(attempt, options, change) is None]
    message = [f"use {' or '.join(ways)}"] if ways else []
    suggestion, error = _first_that_works(lacks, options, model, attempt)
    if suggestion is not None and suggestion not in ways:
        replaces = options.opset is not None and "--opset" in suggestion
        message.append(f"{'use' if replaces else 'add'} {suggestion}")
    if message:
        return ", or ".join(message)
    opsets = next((lack.opsets for lack in lacks if lack.opsets), None)
    exports = list(dict.fromkeys(lack.export for lack in lacks if lack.export))
    of_sizes = any(lack.sizes or lack.resizable for lack in lacks)
    other = "set other sizes with --dim, or " if options.dims is not None and of_sizes else ""
    again = f"; {other}export the model again {' and '.join(exports)}" if exports else ""
    if isinstance(error, ConversionError) and opsets and options.opset is None:
        last = min(opsets[1], newest_opset())
        again = f"; export the model again at an opset from {opsets[0]} to {last}"
    if any(lack.sizes for lack in lacks) and (error is None or isinstance(error, UnmetRequirementError)):
        why = "this size stays unknown even if all input sizes are known"
        tries = ""
        if not options.loops and any(loops(model)):
            sizes = [{}, *_sizes(lacks, options, model)][:2]
            if any(_error(attempt, options, {"loops": True, **size}) is None for size in sizes):
                tries = "unroll the loops of the model (--loops), or "
        if hiding := _hiding_operators(model):
            why = f"{why}, because shape inference does not know the results of {', '.join(hiding)}"
        return f"{why}; {tries}export the model {'without such operators' if hiding else 'with a fixed size'}"
    return f"no option avoids this{f'; the last attempt failed with: {error}' if error else ''}{again}"


def _hiding_operators(model: ir.Model) -> list[str]:
    """The operators of other domains from which inputs of recurrent nodes are computed."""
    read = (value for node, _ in recurrent_nodes(model) for value in node.inputs)
    producers = {value.producer() for value in upstream(read, lambda node, _: node.inputs)}
    foreign = [node for node in producers if node and node.domain not in DEFAULT_DOMAINS and not is_quantized(node)]
    return sorted({f"{n.op_type} of domain {n.domain}" for n in foreign if n.op_identifier() not in model.functions})


def _written(change: Change, options: Options) -> str:
    """How a change of options is written on the command line."""
    words = []
    for name, value in change.items():
        if name == "dims":
            new = {symbol: size for symbol, size in value.items() if symbol not in (options.dims or {})}
            words += [shlex.join(["--dim", f"{symbol}={size}"]) for symbol, size in new.items()]
        else:
            words.append("--fold" if name == "fold" else f"--{name.replace('_', '-')} {value}")
    return " ".join(words)


def _first_that_works(
    lacks: Sequence[Requirement], options: Options, model: ir.Model, attempt: Attempt
) -> tuple[str | None, Exception | None]:
    """The smallest change of options that works, or the last error."""
    last: Exception | None = None
    hopeless: set[int] = set()
    opsets, sizes = _opsets(lacks, options, model), _sizes(lacks, options, model)
    kinds = [_folding(lacks, options), opsets, _needed_forms(lacks), sizes, _limits(lacks, options)]
    if not any(map(any, kinds)):
        return None, None
    attempts = max(1, min(ATTEMPTS, TRIED_NODES // (1 + sum(1 for _ in nodes(model)))))
    for changes in itertools.islice(itertools.product(*kinds), attempts):
        merged = {key: value for change in changes for key, value in change.items()}
        if merged.get("opset") in hopeless:
            continue
        error = _error(attempt, options, merged)
        if error is None:
            return _written(merged, options), None
        if isinstance(error, ConversionError):
            hopeless.add(merged.get("opset", 0))
        elif isinstance(error, UnmetRequirementError) and not _kinds(error.requirements) <= _kinds(lacks):
            # What was missing is there now, and something else is missing that nobody had come to before.
            return _first_that_works([*lacks, *error.requirements], options, model, attempt)
        last = error
    return None, last


def _kinds(lacks: Sequence[Requirement]) -> set[str]:
    """The unmet requirements, by the kind of option that would meet them."""
    sizes = {size for lack in lacks for size in lack.sizes}
    return sizes | {"nodes" for lack in lacks if lack.nodes} | {"opset" for lack in lacks if lack.opsets}


def _error(attempt: Attempt, options: Options, change: Change) -> Exception | None:
    try:
        with unlogged():
            attempt(dataclasses.replace(options, **change))
    except RnnLowerError as error:
        return error
    return None


# -- what could be changed --------------------------------------------------------------------------------------------

NOTHING: list[Change] = [{}]


def _opsets(lacks: Sequence[Requirement], options: Options, model: ir.Model) -> list[Change]:
    """The opsets within all limits: those near the wanted one, and a widely supported one, first if none is requested.

    That of the model is one of them, to which functions that import another can be converted.
    """
    limits = [lack.opsets for lack in lacks if lack.opsets]
    if not limits:
        return NOTHING
    first, last = max(low for low, _ in limits), min(high for _, high in limits)
    current = model.opset_imports.get("", 1)
    wanted = current if options.opset is None else options.opset
    served = set(range(first, min(last, newest_opset()) + 1)) - {options.opset}
    near = sorted(served, key=lambda opset: abs(opset - wanted))[: OPSETS - 1]
    common = [COMMON_OPSET] if COMMON_OPSET in served else []
    tried = [*common, *near] if options.opset is None else [*near, *common]
    return [{"opset": opset} for opset in dict.fromkeys(tried)] or NOTHING


def _needed_forms(lacks: Sequence[Requirement]) -> list[Change]:
    """Other forms, if no other option meets a requirement."""
    bound = [set(lack.forms) for lack in lacks if lack.forms and not (lack.sizes or lack.opsets or lack.nodes)]
    if not bound:
        return NOTHING
    forms = [form for form in ("scan", "loop", "unroll") if all(form in some for some in bound)]
    return [{"form": form} for form in forms] or NOTHING


def _folding(lacks: Sequence[Requirement], options: Options) -> list[Change]:
    """Constant folding, which finds more sizes and drops dead branches; tried last."""
    return [*NOTHING, {"fold": True}] if not options.fold and any(lack.sizes for lack in lacks) else NOTHING


def _limits(lacks: Sequence[Requirement], options: Options) -> list[Change]:
    helps = any(lack.nodes for lack in lacks) and options.max_nodes < MOST_NODES
    return [{"max_nodes": MOST_NODES}] if helps else NOTHING


def _sizes(lacks: Sequence[Requirement], options: Options, model: ir.Model) -> list[Change]:
    """Sizes for input axes: first those that the nodes need, then all free ones."""
    needed = {size for lack in lacks for size in lack.sizes}
    if not needed:
        return NOTHING
    fixed = {name for name, _ in one_by_one(declared_shapes(model), options.dims or {})}
    roles = _free(model)  # which names all axes
    fixed |= {dim for name, axis, dim in free_dims(declared_shapes(model)) if axis_name(name, axis) in fixed}
    free = {name: role for name, role in roles.items() if name not in fixed}
    few = {name: role for name, role in free.items() if role in needed or role not in SIZES}
    choices = [chosen for chosen in (few, free) if chosen]
    changes = []
    for chosen in choices:
        lists = {name: SIZES.get(role) or (int(role),) for name, role in chosen.items()}
        for turn in range(max(len(SIZES.get(role, ())) for role in chosen.values())):
            sizes = {name: known[min(turn, len(known) - 1)] for name, known in lists.items()}
            changes.append({"dims": {**(options.dims or {}), **sizes}})
    return changes or NOTHING


def _free(model: ir.Model) -> dict[str, str]:
    """The name of each free input axis, and its role for the recurrent nodes.

    Each gets that name in the model, so that inference says where it comes to.
    """
    roles: dict[str, str] = {}
    inputs, main_inputs = {str(value.name): value for value in model.graph.inputs}, set(model.graph.inputs)
    consumed = [(node, name, value) for node in read_nodes(model) for name, value in node.inputs.items()]
    direct = [(node, name, value) for node, name, value in consumed if value in main_inputs]
    for node, name, value in direct:
        if value.shape is None:  # the operator tells its rank, and some sizes
            shape = node.known_shape(name)
            value.shape = ir.Shape(shape)
            roles.update({axis_name(str(value.name), k): str(n) for k, n in enumerate(shape) if n is not None})
    for name, axis, symbol in free_dims(declared_shapes(model)):
        value, dims = inputs[name], list(inputs[name].shape or ())
        is_float = value.dtype is not None and value.dtype.is_floating_point()
        is_sound = is_float and all(size == 1 for k, size in enumerate(dims) if k not in (0, axis))
        other = "samples" if is_sound else "other"
        roles.setdefault(symbol, "batch_size" if axis == 0 or "batch" in symbol.lower() else other)
        value.shape = ir.Shape([*dims[:axis], symbol, *dims[axis + 1 :]])
    for node in read_nodes(model):
        for size in ("batch_size", "seq_length"):
            roles.update({symbol: size for symbol in roles if symbol == getattr(node, size)})
    for node, name, value in direct:
        axes = axes_of(name, node.operator.gates, node.layout)
        names = [plain_dim(dim) for dim in value.shape or ()]
        for dim, known, (_, size) in zip(names, node.known_shape(name), axes, strict=False):
            if dim in roles and known is not None:
                roles[str(dim)] = str(known)
            elif dim in roles and size in SIZES:
                roles[str(dim)] = size
    return roles
