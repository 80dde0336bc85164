"""Read target files, and report errors in them in one line."""

from __future__ import annotations

import dataclasses
import difflib
import functools
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
"""unroll_up_to of runtimes that support only unrolled nodes."""

NOT_MEASURED = "not measured"
"""The value of `fused` for runtimes that have the recurrent operators, but whose features were not measured."""

NO_TARGET = Target(
    "no target",
    "the canonical graph: every operator of the opset, a Scan, or a Loop where there is none",
    "measured",
    "the ONNX operator text",
    ("scan", "loop", "unroll"),
)
"""The target if none is named."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a target file: a test for its value, a description of valid values, and whether it is required."""

    holds: Callable[[Any], bool]
    words: str
    required: bool = False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are(known: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(entry in known for entry in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)) and 1 <= value[0] <= value[1]


def _is_fused(value: Any) -> bool:
    """Whether the value is "not measured", or lists features under right and wrong for each operator."""
    return value == NOT_MEASURED or (
        isinstance(value, dict)
        and all(
            op_type in OP_TYPES
            and isinstance(text, dict)
            and text.keys() <= {"right", "wrong"}
            and all(isinstance(names, list) and all(map(_is_text, names)) for names in text.values())
            for op_type, text in value.items()
        )
    )


def _is_slow(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"steps", "seconds"} and all(map(_is_number, value.values()))


def _is_batches(value: Any) -> bool:
    """Whether the value has a batch size for each recurrent operator."""
    return isinstance(value, dict) and all(op_type in OP_TYPES and _is_count(size) for op_type, size in value.items())


def _is_saturation(value: Any) -> bool:
    return isinstance(value, dict) and all(name in _operators() and _is_number(limit) for name, limit in value.items())


@functools.cache
def _operators() -> frozenset[str]:
    """Return the operators of the default domain in the installed onnx."""
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == "")


def _are_operators(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) and entry in _operators() for entry in value)


def _is_pair(value: Any) -> bool:
    numbers = isinstance(value, list) and len(value) == 2 and all(type(number) in (int, float) for number in value)
    return numbers and value[0] <= value[1]


def _are_places(value: Any) -> bool:
    return isinstance(value, list) and all(type(entry) is int for entry in value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _are_types(value: Any) -> bool:
    known = set(onnx.TensorProto.DataType.keys())
    return isinstance(value, list) and bool(value) and all(isinstance(entry, str) and entry in known for entry in value)


def _table_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


def _are_rewrites(value: Any) -> bool:
    return isinstance(value, list) and all(name in REWRITES for name in value)


LIMITS: dict[str, Key] = {
    "inputs": Key(_is_pair, "the smallest and the largest number of inputs, such as [2, 2]"),
    "outputs": Key(_is_pair, "the smallest and the largest number of outputs, such as [1, 4]"),
    "constant": Key(_are_places, "a list of the indices of inputs that must be constants, such as [1]"),
    "variable": Key(_is_count, "the number of inputs that may be computed"),
    "ranks": Key(_is_pair, "the smallest and the largest rank of data inputs, such as [2, 4]"),
    "axes": Key(_are_places, "a list of axes, where negative axes count from the end"),
    "steps": Key(_are_places, "a list of steps, such as [1]"),
    "elements": Key(_is_count, "the number of elements of each parameter, such as 4"),
    "values": Key(_table_of(_is_pair), "a table with a range for each parameter, such as { min = [-inf, 0] }"),
    "attributes": Key(
        _table_of(lambda value: isinstance(value, list)), "a table with a list of values for each attribute"
    ),
    "types": Key(_are_types, 'a list of element types, such as ["FLOAT"]'),
    "broadcast": Key(_is_flag, "true or false"),
    "forward": Key(_is_flag, "true or false"),
    "states": Key(lambda value: value == "computed", '"computed"'),
}
"""The keys of `limits.OPERATOR`."""
assert LIMITS.keys() == CHECKS.keys()

NAMED = ("opsets", "rank", "static", "single_batch", "forms")
"""The constraints other than operators that `sources` may list."""


def _limits_error(keys: Any) -> str | None:
    """Return the first error in `limits` with its key, or None."""
    if not isinstance(keys, dict):
        return f"limits is {keys!r}; it must be a table of operators"
    for op_type, rules in keys.items():
        key = f"limits.{op_type}"
        if op_type not in _operators():
            return f"{key}: there is no operator of this name"
        if not isinstance(rules, dict):
            return f"{key} is {rules!r}; it must be a table of {', '.join(LIMITS)}"
        for name, value in rules.items():
            if name not in LIMITS:
                return f"{key}: unknown key {name!r}; known keys: {', '.join(LIMITS)}"
            if not LIMITS[name].holds(value):
                return f"{key}.{name} is {value!r}; it must be {LIMITS[name].words}"
    return None


def _sources_error(keys: Any) -> str | None:
    """Return the first error in `sources` with its key, or None."""
    if not _are_texts(keys):
        return f"sources is {keys!r}; it must be a table of strings"
    for name in keys:
        if name not in NAMED and name not in _operators():
            return f"sources.{name}: the name must be an operator or one of {', '.join(NAMED)}"
    return None


_OPERATORS = "a list of names of ONNX operators"
KEYS: dict[str, Key] = {
    "summary": Key(_is_text, "a line of text", required=True),
    "status": Key(("measured", "documented").__contains__, '"measured" or "documented"', required=True),
    "source": Key(_is_text, "a line of text: the version that was measured, or the document", required=True),
    "versions": Key(
        lambda value: isinstance(value, list) and all(map(_is_text, value)), 'a list of release lines, such as ["5"]'
    ),
    "forms": Key(_are(FORMS[1:]), 'a list of "scan", "loop" and "unroll" in order of preference', required=True),
    "unroll_up_to": Key(lambda value: value == "always" or _is_count(value), 'a number of steps, or "always"'),
    "opsets": Key(_is_range, "the first and the last opset, such as [13, 17]"),
    "static_batch": Key(_is_flag, "true or false"),
    "scan_captures": Key(_is_flag, "true or false"),
    "empty": Key(_is_flag, "true or false"),
    "rank": Key(lambda value: _is_count(value) and value > 0, "the highest rank, such as 4"),
    "static": Key(_is_flag, "true or false"),
    "single_batch": Key(_is_flag, "true or false"),
    "takes": Key(_are_operators, _OPERATORS),
    "avoid": Key(_are_operators, _OPERATORS),
    "fused": Key(
        _is_fused,
        'a table that contains, for RNN, GRU or LSTM, lists of features under right and wrong, or "not measured"',
    ),
    "faster_lowered": Key(_is_batches, "a table that contains a batch size for RNN, GRU or LSTM, such as { GRU = 1 }"),
    "limits": Key(lambda value: _limits_error(value) is None, "a table of operators"),
    "sources": Key(lambda value: _sources_error(value) is None, "a table of strings"),
    "slow": Key(_is_slow, "{ steps = NUMBER, seconds = NUMBER }"),
    "saturates": Key(
        _is_saturation, "a table that contains, for each operator, the argument beyond which its result is constant"
    ),
    "tune": Key(_are_rewrites, f"a list of rewrites from {', '.join(REWRITES)}"),
}


def load_target(path: Path) -> Target:
    """Read a target file. Raises RnnLowerError that names the file and the error."""
    return _target(path, read_keys(path))


def read_keys(path: Path) -> dict[str, Any]:
    """Return the validated contents of a target file. Raises the errors of `load_target`."""
    try:
        text = tomllib.loads(untrusted.plain(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RnnLowerError(f"{path}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise RnnLowerError(f"{path}: not a target: nested too deeply") from None
    except ValueError as error:  # from TOML, with line and column, or from UTF-8
        raise RnnLowerError(f"{path}: not a target: {error}") from None
    for name, value in text.items():
        if name not in KEYS:
            raise RnnLowerError(f"{path}: unknown key {name!r}; known keys: {', '.join(KEYS)}")
        wrong = _limits_error(value) if name == "limits" else _sources_error(value) if name == "sources" else None
        if wrong is not None:
            raise RnnLowerError(f"{path}: {wrong}")
        if not KEYS[name].holds(value):
            raise RnnLowerError(f"{path}: {name} is {value!r}; it must be {KEYS[name].words}")
    for name, key in KEYS.items():
        if key.required and name not in text:
            raise RnnLowerError(f"{path}: {name} is missing; it must be {key.words}")
    return text


def _target(path: Path, keys: dict[str, Any]) -> Target:
    takes = frozenset(keys["takes"]) if "takes" in keys else None
    constraints = OpConstraints(
        takes, frozenset(keys.get("avoid", ())), keys.get("rank"), keys.get("static", False),
        tuple(keys.get("opsets", (1, 99))), keys.get("limits", {}), keys.get("sources", {}), keys.get("saturates", {}),
    )  # fmt: skip
    steps, slow, fused = keys.get("unroll_up_to", 1), keys.get("slow"), keys.get("fused", {})
    return Target(
        path.stem, keys["summary"], keys["status"], keys["source"], tuple(keys["forms"]),
        constraints, tuple(keys.get("tune", ())),
        ALWAYS if steps == "always" else steps, keys.get("static_batch", False), keys.get("single_batch", False),
        None if slow is None else (slow["steps"], slow["seconds"]), keys.get("scan_captures", True),
        tuple(keys.get("versions", ())),
        {op_type: Measured(*(frozenset(kinds.get(kind, ())) for kind in ("right", "wrong")))
         for op_type, kinds in ({} if fused == NOT_MEASURED else fused).items()},
        fused == NOT_MEASURED, keys.get("faster_lowered", {}), keys.get("empty", False), path,
    )  # fmt: skip


class _Files(Mapping[str, Target]):
    """The targets of a folder, each read on first use: most runs need one of them."""

    def __init__(self, folder: Path) -> None:
        self._paths = {path.stem: path for path in sorted(folder.glob("*.toml"))}
        self._read: dict[str, Target] = {}

    def __getitem__(self, name: str) -> Target:
        if name not in self._read:
            self._read[name] = load_target(self._paths[name])
        return self._read[name]

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


def find_target(name: str | None) -> Target:
    """Find a target by its name, ignoring case, or by the path of its file; None means the canonical graph.

    A version may follow, as in opencv@4; without one it is the newest that was measured.

    Raises RnnLowerError for an unknown name and for an invalid file.
    """
    if isinstance(name, str) and (name.endswith(".toml") or os.sep in name):
        return load_target(Path(name))
    if name is None:
        return NO_TARGET
    wanted = ALIASES.get(str(name).lower(), str(name).lower())
    target = TARGETS.get(wanted) or _of_version(wanted)
    if target is None:
        near = difflib.get_close_matches(wanted, [*TARGETS, *ALIASES], 3)
        similar = f"; similar names: {', '.join(near)}" if near else ""
        raise RnnLowerError(
            f"unknown target '{name}'{similar}; run `rnn-lower targets` for a list, or name a .toml file"
        )
    return target
