"""The manifest of a kit, manifest.json, from which programs in any language can run the kit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rnn_lower import untrusted
from rnn_lower.errors import RnnLowerError

SCHEMA = 1
"""The schema version of manifest.json; it increases when a field is removed or its meaning changes."""

NAME = "manifest.json"
TARGET = "target.toml"
FUSED = "fused"


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input or output. dtype: as numpy writes it.  file: .npy, within the folder; NAME.npz beside its folder too."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str


@dataclasses.dataclass(frozen=True)
class KitCase:
    """One model to be run. form: "fused", or how it was lowered.  operators: that it is made of, bodies included.

    inputs, outputs: in the order of the graph.  limit: the largest absolute difference that counts as right.
    """

    case: str
    feature: str
    form: str
    model: str
    opset: int
    operators: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    limit: float


@dataclasses.dataclass(frozen=True)
class Refused:
    """A feature that was not lowered, with the reason."""

    feature: str
    form: str
    why: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A kit. target: the name of its target, whose file is stored next to the manifest as target.toml."""

    target: str
    made_by: str
    cases: tuple[KitCase, ...]
    refused: tuple[Refused, ...]

    def write(self, folder: Path) -> None:
        text = {"schema": SCHEMA, **dataclasses.asdict(self)}
        (folder / NAME).write_text(json.dumps(text, indent=1), encoding="utf-8")

    @property
    def features(self) -> list[str]:
        """The features in order, including those that were refused in every form."""
        names = [*(case.feature for case in self.cases), *(refusal.feature for refusal in self.refused)]
        return list(dict.fromkeys(names))


def read_manifest(folder: Path) -> Manifest:
    """Read a manifest. Raises RnnLowerError if the folder contains no kit, or one of another schema."""
    path = folder / NAME
    try:
        text = untrusted.loads(untrusted.plain(path).read_text(encoding="utf-8"))
        if text["schema"] != SCHEMA:
            schema = text["schema"]
            raise RnnLowerError(
                f"{path}: the manifest has schema version {schema}, but this version of rnn_lower "
                f"supports only version {SCHEMA}; write the kit again (rnn-lower kit)"
            )
        return Manifest(
            str(text["target"]), str(text["made_by"]), tuple(map(_case, text["cases"])),
            tuple(Refused(**entry) for entry in text["refused"]),
        )  # fmt: skip
    except OSError as error:
        text = f"{error.strerror or error}; write a kit first (rnn-lower kit -o {folder} --target RUNTIME)"
        raise RnnLowerError(f"{path}: cannot be read: {text}") from None
    except untrusted.UNSOUND as error:
        if isinstance(error, RnnLowerError):
            raise
        raise RnnLowerError(
            f"{path}: not a valid manifest of a test kit; write the kit again (rnn-lower kit)"
        ) from None


def _case(row: Mapping[str, Any]) -> KitCase:
    tensors = {side: tuple(map(_tensor, row[side])) for side in ("inputs", "outputs")}
    case = KitCase(**{**row, "operators": tuple(map(str, row["operators"])), **tensors})
    texts = (case.case, case.feature, case.form, case.model)
    if not all(isinstance(text, str) for text in texts) or "/" in case.case or not case.outputs:
        raise ValueError
    _inside(case.case)
    _inside(case.model)
    return dataclasses.replace(case, opset=int(case.opset), limit=float(case.limit))


def _tensor(row: Mapping[str, Any]) -> Tensor:
    return Tensor(str(row["name"]), str(row["dtype"]), tuple(map(int, row["shape"])), _inside(row["file"]))


def _inside(path: Any) -> str:
    """Return a path of the manifest. Raises RnnLowerError if it leaves the kit's folder."""
    if not isinstance(path, str) or "\\" in path or path.startswith("/") or ".." in path.split("/") or ":" in path:
        raise RnnLowerError(
            f"the manifest of the kit refers to {path!r}, which is outside the folder of the kit; "
            "write the kit again (rnn-lower kit)"
        )
    return path
