"""Writing a target's file: tables of texts, numbers, flags and lists, as people write them."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping
from typing import Any

WIDTH = 120


def to_toml(told: Mapping[str, Any]) -> str:
    """A document. Tables come after everything else; a table of tables becomes several."""
    plain = {key: value for key, value in told.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in told.items() if isinstance(value, Mapping)}
    text = "".join(line(key, value) for key, value in plain.items())
    for key, table in tables.items():
        nested = all(isinstance(value, Mapping) for value in table.values())
        for name, one in {f"{key}.{inner}": of for inner, of in table.items()}.items() if nested else [(key, table)]:
            text += f"\n[{name}]\n" + "".join(line(inner, value) for inner, value in one.items())
    return text


def line(key: str, value: Any) -> str:
    """A key with its value; a list that is too long for a line in several."""
    whole = f"{_key(key)} = {_value(value)}\n"
    if len(whole) <= WIDTH or not isinstance(value, list):
        return whole
    names = ", ".join(_value(one).replace(" ", "\0") for one in value)
    listed = textwrap.fill(names, WIDTH - 4, break_on_hyphens=False, break_long_words=False)
    return f"{_key(key)} = [\n{textwrap.indent(listed.replace(chr(0), ' '), '    ')},\n]\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)
