"""The size of a model: nodes by operator, and bytes."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx

from rnn_lower.ir import protobuf


@dataclasses.dataclass(frozen=True)
class Count:
    """operators: node counts by operator, also in bodies and functions.  size: bytes, with external data."""

    operators: Mapping[str, int]
    size: int

    @property
    def nodes(self) -> int:
        return sum(self.operators.values())

    @property
    def shown_size(self) -> str:
        """The size for display."""
        if self.size < 1000:
            return f"{self.size} bytes"
        units = (("kB", 1e3), ("MB", 1e6), ("GB", 1e9))
        factor, unit = next(((f, u) for u, f in units if self.size < 999.5 * f), (1e9, "GB"))
        size = self.size / factor
        return f"{size:.0f} {unit}" if size >= 999.5 else f"{size:.3g} {unit}"


def count(model: onnx.ModelProto) -> Count:
    counts = Counter(node.op_type for holder in protobuf.holders(model) for node in holder.node)
    outside = (protobuf.size_of(tensor) or 0 for tensor in protobuf.tensors(model) if protobuf.is_external(tensor))
    return Count(dict(counts.most_common()), model.ByteSize() + sum(outside))


def count_file(path: str | os.PathLike[str]) -> Count:
    """Count the nodes and bytes of a file, without reading its external data."""
    return count(onnx.load(Path(path), load_external_data=False))
