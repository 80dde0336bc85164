"""What lies in the folder of a kit, told so that a program in any language can run it: manifest.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rnn_lower import foreign
from rnn_lower.errors import RnnLowerError

SCHEMA = 1
"""Of manifest.json; a field that is removed, or means something else, makes another number."""

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
    """A feature that was not lowered, with the rule of the target that keeps it from being."""

    feature: str
    form: str
    why: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A kit. target: the name of the target it was made with, whose file lies beside the manifest as target.toml."""

    target: str
    made_by: str
    cases: tuple[KitCase, ...]
    refused: tuple[Refused, ...]

    def write(self, folder: Path) -> None:
        told = {"schema": SCHEMA, **dataclasses.asdict(self)}
        (folder / NAME).write_text(json.dumps(told, indent=1), encoding="utf-8")

    @property
    def features(self) -> list[str]:
        """In order, those that were refused in every form among them."""
        found = [*(case.feature for case in self.cases), *(one.feature for one in self.refused)]
        return list(dict.fromkeys(found))


def read_manifest(folder: Path) -> Manifest:
    """Raises RnnLowerError when there is no kit in the folder, or one of another schema."""
    path = folder / NAME
    try:
        told = foreign.loads(foreign.plain(path).read_text(encoding="utf-8"))
        if told["schema"] != SCHEMA:
            found = told["schema"]
            raise RnnLowerError(f"{path}: a kit of schema {found}, and {SCHEMA} is known here; write the kit again")
        return Manifest(
            told["target"], told["made_by"], tuple(map(_case, told["cases"])),
            tuple(Refused(**one) for one in told["refused"]),
        )  # fmt: skip
    except OSError as error:
        told = f"{error.strerror or error}; write a kit first: rnn-lower kit -o {folder} --target RUNTIME"
        raise RnnLowerError(f"{path}: cannot be read: {told}") from None
    except foreign.UNSOUND as error:
        if isinstance(error, RnnLowerError):
            raise
        raise RnnLowerError(f"{path}: not the manifest of a kit; write the kit again") from None


def _case(told: Mapping[str, Any]) -> KitCase:
    tensors = {
        place: tuple(Tensor(**{**one, "shape": tuple(one["shape"])}) for one in told[place])
        for place in ("inputs", "outputs")
    }
    return KitCase(**{**told, "operators": tuple(told["operators"]), **tensors})
