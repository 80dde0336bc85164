"""The options of lowering: names, defaults and help texts, for Python and for the command line.

Imports only the standard library, so that the command line shows its help at once.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from rnn_lower.errors import RnnLowerError
from rnn_lower.validation import check_number, check_numbers

if TYPE_CHECKING:
    from rnn_lower.lowering.node import RecurrentNode

OP_TYPES = ("RNN", "GRU", "LSTM")
QUANTIZED = "DynamicQuantizeLSTM"
"""An operator of onnxruntime (domain com.microsoft) that is treated as an LSTM."""
FORMS = ("auto", "scan", "loop", "unroll")

RTOL, ATOL = 1e-3, 1e-5
"""The default tolerances of a comparison."""

Select = Callable[["RecurrentNode"], bool]

Dims = Mapping[str, int | Sequence[int]]
"""Sizes to fix, by symbol or INPUT[AXIS]; the name of an input stands for all its sizes."""


def _option(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of lowering, validated as far as possible without a model."""

    form: str = _option(
        "auto", "how the lowered model computes the steps; with auto, this depends on the model and the target"
    )
    target: str | None = _option(
        None, "emit only operators that this runtime supports (a name from `rnn-lower targets`, or a .toml file)"
    )
    op_types: Sequence[str] | str = _option(OP_TYPES, "lower only these operators")
    select: Select | None = _option(None, "a function that takes a RecurrentNode and returns whether to lower the node")
    opset: int | None = _option(
        None,
        "convert the whole model to this opset (default: the model's opset or, if the target does not support it, the "
        "nearest one that it does)",
    )
    dims: Dims | None = _option(
        None,
        "first set a symbolic size, and those that are expressions of it, or the size of an axis INPUT[AXIS]; accepts "
        "several NAME=SIZE pairs",
    )
    fold: bool = _option(
        False,
        (
            "before lowering, fold the constants of the whole model and inline the functions that contain recurrent "
            "nodes; automatic if the target needs static sizes, but the model computes some sizes at run time, and if "
            "no test shows that the target runs calls of these functions"
        ),
    )
    keep_native: bool = _option(
        False,
        "do not lower nodes that, in tests, the target computed correctly and at least as fast as lowered nodes",
    )
    as_function: bool = _option(
        False,
        "replace each lowered node with a function call; nodes with the same sizes and attributes share a function",
    )
    fuse_directions: bool = _option(
        False,
        (
            "compute both directions of a node in one loop, if it has at most 64 hidden units and no sequence_lens; a "
            "NaN in one direction then also affects the results of the other direction"
        ),
    )
    loops: bool = _option(
        False, "also unroll the model's own Loop and Scan nodes; automatic for a target that supports neither"
    )
    raise_loops: bool = _option(
        False, "before lowering, replace loops with recurrent nodes that are proved equivalent to the loops"
    )
    legalize_all: bool = _option(
        False, "also replace other nodes that the target does not support, if supported equivalents exist"
    )
    dequantize: bool = _option(
        False, "convert the weights of DynamicQuantizeLSTM nodes to floats and compute in floats"
    )
    max_nodes: int = _option(
        200_000,
        "maximum number of emitted nodes, a guard against accidentally unrolling long sequences (default 200000)",
    )

    def __post_init__(self) -> None:
        if self.dims is not None and not isinstance(self.dims, Mapping):
            raise RnnLowerError(f"dims is {self.dims!r}; it must map names to sizes")
        if isinstance(self.op_types, str):
            object.__setattr__(self, "op_types", (self.op_types,))
        if not isinstance(self.op_types, (list, tuple, set, frozenset)):
            raise RnnLowerError(f"op_types is {self.op_types!r}; it must be a list or tuple of operator names")
        for name, sizes in (self.dims or {}).items():
            if not isinstance(name, str):
                raise RnnLowerError(f"dims has the key {name!r}; every key must be a string")
            for size in _sizes_in(sizes):
                check_number(name, size)
        if self.opset is not None:
            check_numbers(opset=self.opset)  # conversion checks whether it exists
        check_numbers(max_nodes=self.max_nodes)
        if self.keep_native and self.target is None:
            raise RnnLowerError(
                "--keep-native needs a target, because it keeps the nodes that the target runs "
                "correctly; add --target RUNTIME"
            )
        if self.legalize_all and self.target is None:
            raise RnnLowerError(
                "--legalize-all needs a target, because it replaces the nodes that the target does not "
                "support; add --target RUNTIME"
            )
        if self.select is not None and not callable(self.select):
            raise RnnLowerError("select must be a function that takes a RecurrentNode and returns a bool")
        for what, value, known in (("form", self.form, FORMS), *(("operator", op, OP_TYPES) for op in self.op_types)):
            if value not in known:
                raise RnnLowerError(f"unknown {what} '{value}'; known {what}s: {', '.join(known)}")


def _sizes_in(sizes: object) -> Sequence[Any]:
    return sizes if isinstance(sizes, (list, tuple)) else [sizes]


class Keywords(TypedDict, total=False):
    """The fields of `Options` as keyword arguments."""

    form: str
    target: str | None
    op_types: Sequence[str] | str
    select: Select | None
    opset: int | None
    dims: Dims | None
    fold: bool
    keep_native: bool
    as_function: bool
    fuse_directions: bool
    loops: bool
    raise_loops: bool
    legalize_all: bool
    dequantize: bool
    max_nodes: int


F = TypeVar("F", bound=Callable[..., Any])


def takes_options(function: F) -> F:
    """Show the options, with their defaults, in the signature of a function with `**options`."""
    own = inspect.signature(function)
    parameters = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in dataclasses.fields(Options)
    ]
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function
