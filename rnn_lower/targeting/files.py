"""Read target files, and report errors in them in one line."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

from rnn_lower import untrusted
from rnn_lower.errors import RnnLowerError
from rnn_lower.legalize.constraints import CHECKS, OpConstraints
from rnn_lower.options import FORMS, OP_TYPES
from rnn_lower.targeting.native_support import Measured
from rnn_lower.targeting.profile import Target
from rnn_lower.tune import REWRITES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ALWAYS = 10**9
"""The value of `unroll_up_to` for runtimes that support only unrolled nodes."""

NOT_MEASURED = "not measured"
"""The value of `fused` for runtimes that have the recurrent operators, but whose features were not measured."""

NO_TARGET = Target(
    "no target",
    (
        "the default graph, which may contain any operator of the opset, including a Scan (or a "
        "Loop if the opset has no Scan)"
    ),
    "measured",
    "the ONNX specification of the operators",
    ("scan", "loop", "unroll"),
)
"""The target if none is named."""


Test = Callable[[Any], bool]
"""Whether a value of a target file is valid."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a target file: a test for its value, a description of valid values, and how the value is stored."""

    holds: Test
    words: str
    parse: Callable[[Any], Any] = lambda value: value
    required: bool = False


def _is_operator(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and bool(onnx.defs.has(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_count(value: Any) -> bool:
    return _is_whole(value) and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def _is_pair(value: Any) -> bool:
    """Whether the value is a range of numbers."""
    numbers = isinstance(value, list) and len(value) == 2 and all(type(number) in (int, float) for number in value)
    return numbers and value[0] <= value[1]


def _one_of(*known: Any) -> Test:
    return lambda value: value in known


def _list_of(test: Test, least: int = 0) -> Test:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(test, value))


def _table_of(test: Test, is_key: Test = _is_text) -> Test:
    return lambda value: isinstance(value, dict) and all(map(is_key, value)) and all(map(test, value.values()))


_is_op_type = _one_of(*OP_TYPES)
_are_features = _table_of(_table_of(_list_of(_is_text), _one_of("right", "wrong")), _is_op_type)
_is_speed = _table_of(_is_number, _one_of("steps", "seconds"))


def _measured(value: Any) -> dict[str, Measured] | None:
    """Return the measured features, by operator."""
    return (
        None
        if value == NOT_MEASURED
        else {
            op_type: Measured(*(frozenset(features.get(kind, ())) for kind in ("right", "wrong")))
            for op_type, features in value.items()
        }
    )


_FLAG = Key(lambda value: isinstance(value, bool), "true or false")
_TYPE = _one_of(*onnx.TensorProto.DataType.keys())
_OPERATORS = Key(_list_of(_is_operator), "a list of names of ONNX operators", frozenset)

LIMITS: dict[str, Key] = {
    "inputs": Key(_is_pair, "the smallest and the largest number of inputs, such as [2, 2]"),
    "outputs": Key(_is_pair, "the smallest and the largest number of outputs, such as [1, 4]"),
    "constant": Key(_list_of(_is_whole), "a list of the indices of inputs that must be constants, such as [1]"),
    "variable": Key(_is_count, "the maximum number of inputs that are not constant"),
    "ranks": Key(_is_pair, "the smallest and the largest rank of data inputs, such as [2, 4]"),
    "axes": Key(_list_of(_is_whole), "a list of axes (negative axes count from the end)"),
    "steps": Key(_list_of(_is_whole), "a list of steps, such as [1]"),
    "elements": Key(_is_count, "the number of elements in each parameter input, such as 4"),
    "values": Key(
        _table_of(_is_pair), "a table with a range of values for each parameter, such as { min = [-inf, 0] }"
    ),
    "attributes": Key(_table_of(_list_of(lambda _: True)), "a table with a list of allowed values for each attribute"),
    "avoid_kernels": Key(_list_of(_list_of(_is_count, 1)), "a list of kernel shapes, such as [[9], [1, 9]]"),
    "explicit": Key(_list_of(_is_text), 'a list of names of attributes, such as ["value"]'),
    "types": Key(_list_of(_TYPE, 1), 'a list of element types, such as ["FLOAT"]'),
    "broadcast": _FLAG,
    "matrix_ranks": _FLAG,
    "last_axis": _FLAG,
    "strided_padding": _FLAG,
    "constant_zero_point": _FLAG,
    "in_place": _FLAG,
    "forward": _FLAG,
    "states": Key(_one_of("computed"), '"computed"'),
    "windows_last": _FLAG,
    "nested": _FLAG,
    "lists": Key(_one_of("empty"), '"empty"'),
}
"""The keys of `limits.OPERATOR`."""
assert LIMITS.keys() == CHECKS.keys()

NAMED = ("opsets", "rank", "static", "single_batch", "avoid_types", "forms")
"""The keys of `sources` that are not operators."""

KEYS: dict[str, Key] = {
    "summary": Key(_is_text, "a line of text", required=True),
    "status": Key(_one_of("measured", "documented"), '"measured" or "documented"', required=True),
    "source": Key(
        _is_text,
        "a line of text that names either the tested version or the document on which the entry is based",
        required=True,
    ),
    "versions": Key(_list_of(_is_text), 'a list of version prefixes, such as ["5"]', tuple),
    "forms": Key(
        _list_of(_one_of(*FORMS[1:]), 1), 'a list of "scan", "loop" or "unroll", in order of preference', tuple, True
    ),
    "unroll_up_to": Key(
        lambda value: value == "always" or _is_count(value),
        'a number of steps, or "always"',
        lambda value: ALWAYS if value == "always" else value,
    ),
    "opsets": Key(
        lambda value: _list_of(_is_count)(value) and _is_pair(value) and value[0] >= 1,
        "the first and the last opset, such as [13, 17]",
        tuple,
    ),
    "static_batch": _FLAG,
    "scan_captures": _FLAG,
    "empty": _FLAG,
    "functions": _FLAG,
    "sparse": _FLAG,
    "output_shapes": _FLAG,
    "own_outputs": _FLAG,
    "sizes_inside": _FLAG,
    "true_shapes": _FLAG,
    "named_sizes": _FLAG,
    "named_batch": _FLAG,
    "sequence_lens_opset": Key(_is_count, "the first opset, such as 11"),
    "rank": Key(lambda value: _is_whole(value) and value > 0, "the highest rank, such as 4"),
    "static": _FLAG,
    "single_batch": _FLAG,
    "takes": _OPERATORS,
    "avoid": _OPERATORS,
    "avoid_types": Key(_list_of(_TYPE), 'a list of element types, such as ["DOUBLE"]', frozenset),
    "other_domains": Key(
        _list_of(lambda value: _is_text(value) and "." in value),
        'a list of operators with their domains, such as ["com.microsoft.Gelu"]',
        frozenset,
    ),
    "fused": Key(
        lambda value: value == NOT_MEASURED or _are_features(value),
        (
            'a table such as { GRU = { right = ["plain"], wrong = ["clip"] } } with the operators RNN, '
            'GRU and LSTM, or "not measured"'
        ),
        _measured,
    ),
    "faster_lowered": Key(
        _table_of(_is_count, _is_op_type),
        "a table that gives a batch size for RNN, GRU or LSTM, such as { GRU = 1 }",
    ),
    "limits": Key(lambda value: isinstance(value, dict), "a table with one table of limits for each operator"),
    "sources": Key(_table_of(_is_text), "a table of strings"),
    "slow": Key(
        lambda value: _is_speed(value) and len(value) == 2,
        "{ steps = NUMBER, seconds = NUMBER }",
        lambda value: (value["steps"], value["seconds"]),
    ),
    "saturates": Key(
        _table_of(_is_number, _is_operator),
        (
            "a table that gives, for each operator, the argument beyond which its result is "
            "constant, such as { Tanh = 20 }"
        ),
    ),
    "tune": Key(_list_of(_one_of(*REWRITES)), f"a list of rewrites (available: {', '.join(REWRITES)})", tuple),
}
"""The keys of a target file; each is a field of `OpConstraints` or of `Target`."""


def load_target(path: Path) -> Target:
    """Read a target file. Raises RnnLowerError that names the file and the error."""
    return _target(path, read_keys(path))


def _target(path: Path, keys: Mapping[str, Any]) -> Target:
    """The target with these keys."""
    values = {name: KEYS[name].parse(value) for name, value in keys.items()}
    names = values.keys() & {field.name for field in dataclasses.fields(OpConstraints)}
    constraints = OpConstraints(**{name: values.pop(name) for name in names})
    return Target(path.stem, constraints=constraints, path=path, **values)


def read_keys(path: Path) -> dict[str, Any]:
    """Return the validated contents of a target file. Raises the errors of `load_target`."""
    return _checked(path, lambda: tomllib.loads(untrusted.plain(path).read_text(encoding="utf-8")))


def _checked(path: Path, parse: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The parsed contents of a target file. Raises RnnLowerError that names the file and the error."""
    try:
        keys = parse()
    except OSError as error:
        raise RnnLowerError(f"{path}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise RnnLowerError(f"{path}: not a target file: its tables are nested too deeply") from None
    except ValueError as error:  # from TOML, with line and column, from JSON or from UTF-8
        raise RnnLowerError(f"{path}: not a target file: {error}") from None
    if (wrong := next(_errors(keys), None)) is not None:
        raise RnnLowerError(f"{path}: {wrong}")
    return keys


def _errors(keys: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of a target file."""
    yield from _wrong_keys(keys, KEYS)
    for op_type, limits in keys.get("limits", {}).items():
        table = f"limits.{op_type}"
        if not _is_operator(op_type):
            yield f"{table}: ONNX has no operator of this name"
        if not isinstance(limits, dict):
            yield f"{table} is {limits!r}; it must be a table with some of the keys {', '.join(LIMITS)}"
        yield from _wrong_keys(limits, LIMITS, table)
    for name in keys.get("sources", {}):
        if name not in NAMED and not _is_operator(name):
            yield f"sources.{name}: the name must be an operator or one of {', '.join(NAMED)}"
    for name, key in KEYS.items():
        if key.required and name not in keys:
            yield f"{name} is missing; it must be {key.words}"


def _wrong_keys(keys: Mapping[str, Any], known: Mapping[str, Key], table: str = "") -> Iterator[str]:
    """Yield the errors of the keys in a table: unknown, or with an invalid value."""
    for name, value in keys.items():
        if name not in known:
            yield f"{table and f'{table}: '}unknown key {name!r}; known keys: {', '.join(known)}"
        elif not known[name].holds(value):
            yield f"{table and f'{table}.'}{name} is {value!r}; it must be {known[name].words}"


class _Files(Mapping[str, Target]):
    """The targets of a folder, each read on first use: most runs need one of them."""

    def __init__(self, folder: Path) -> None:
        self._paths = {path.stem: path for path in sorted(folder.glob("*.toml"))}
        self._read = functools.cache(load_target)

    def __getitem__(self, name: str) -> Target:
        return self._read(self._paths[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


TARGETS: Mapping[str, Target] = _Files(Path(__file__).parent)
ALIASES = {"tflite": "onnx2tf", "litert": "onnx2tf", "ort": "onnxruntime", "vela": "ethos-u", "tensorrt-dla": "dla"}
"""Other names of targets: by the converted format or by the tool."""


def _of_version(name: str) -> Target | None:
    """Return the target of NAME@VERSION or of its release line; the file of NAME covers the newest release lines."""
    base, _, version = name.partition("@")
    while version:
        if f"{base}@{version}" in TARGETS:
            return TARGETS[f"{base}@{version}"]
        newest = TARGETS.get(base)
        if newest is not None and version in newest.versions:
            return newest
        version = version.rpartition(".")[0]
    return None


def recorded(name: str) -> str:
    """What finds a target again without its file: its name, or else the contents of its file, as JSON in one line."""
    return f"{Path(name).name}{json.dumps(read_keys(Path(name)))}" if _is_path(name) else name


def _is_path(name: str) -> bool:
    return name.endswith(".toml") or os.sep in name


def recorded_target(text: str) -> Target:
    """The target that `recorded` describes, which is none of a file. Raises RnnLowerError for any other text."""
    name, brace, rest = text.partition("{")
    if brace:
        path = Path(name)
        return _target(path, _checked(path, lambda: json.loads(brace + rest)))
    if _is_path(text):
        raise RnnLowerError(f"{text}: the contents of this file are not known")
    return find_target(text)


def find_target(name: str | None) -> Target:
    """Find a target by its name, ignoring case, or by the path of its file; None means the canonical graph.

    A version may follow, as in opencv@4; without one it is the newest that was measured.

    Raises RnnLowerError for an unknown name and for an invalid file.
    """
    if isinstance(name, str) and _is_path(name):
        return load_target(Path(name))
    if name is None:
        return NO_TARGET
    wanted = ALIASES.get(str(name).lower(), str(name).lower())
    target = TARGETS.get(wanted) or _of_version(wanted)
    if target is None:
        near = difflib.get_close_matches(wanted, [*TARGETS, *ALIASES], 3)
        similar = f"; similar names: {', '.join(near)}" if near else ""
        raise RnnLowerError(
            f"unknown target '{name}'{similar}; run `rnn-lower targets` for a list, or pass a .toml file"
        )
    return target
