"""Write a kit: every feature as a fused model and lowered in each form, with inputs and expected outputs."""

from __future__ import annotations

import difflib
import fnmatch
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

import rnn_lower
from rnn_lower.checking.runners import open_onnxruntime, open_reference
from rnn_lower.checking.samples import Feeds
from rnn_lower.driver.lower_pass import lower_document
from rnn_lower.driver.plan import read_nodes
from rnn_lower.errors import RnnLowerError, UnsupportedError, public
from rnn_lower.ir.walk import nodes as all_nodes
from rnn_lower.modelio.arrays import write_arrays
from rnn_lower.modelio.document import Document
from rnn_lower.modelio.output_path import name_of
from rnn_lower.options import Options
from rnn_lower.targeting import Target, find_target
from rnn_lower.targeting.native_refusals import refused_by_onnxruntime
from rnn_lower.targeting.probe.features import FEATURES, suited
from rnn_lower.targeting.probe.manifest import FUSED, TARGET, KitCase, Manifest, Refused, Tensor
from rnn_lower.targeting.probe.onenode import Case, build

LIMIT = 1e-4
"""The largest absolute difference in float32 that counts as correct."""


README = """# Conformance kit for {name}

`manifest.json` lists the cases: a model (`models/`), its inputs (`inputs/`, each array as .npy, all of them as .npz)
and the expected outputs (`expected/`). Run every model on your runtime and save each output as `CASE/NAME.npy`
in a folder of results, then

    rnn-lower kit-report THIS_FOLDER --results RESULTS -o mine.toml

or let the command start your program for each case:

    rnn-lower kit-report THIS_FOLDER --run 'python run.py {{model}} {{inputs}} {{outputs}}' -o mine.toml

The report lists which features are right, wrong or refused, and proposes a target:

    rnn-lower lower IN.onnx OUT.onnx --target mine.toml
"""
"""The README of a kit, for its recipient."""


@public
def write_kit(
    folder: str | os.PathLike[str], target: str, *, only: Sequence[str] = (), limit: float = LIMIT
) -> Manifest:
    """Write a kit of small models that show what a runtime supports, even if Python cannot call the runtime.

    The kit is written to a new folder. It contains a small model for every feature of RNN, GRU and LSTM, both unchanged
    and lowered for a target in each of its forms, as well as their inputs, the expected outputs (from onnxruntime's
    fused operators or the reference implementation) and manifest.json, which lists everything. Arrays are stored as
    .npy and .npz files. docs/new-target.md explains the use.

    target: a name (see rnn_lower.targets) or the path of a .toml file.  only: patterns of features, such as "LSTM *".
    limit: the largest absolute difference that counts as correct; 0.01 is suitable for devices that compute in float16.

    Raises RnnLowerError for an unknown target, a pattern that matches no feature, and a folder that is not empty or
    cannot be written.
    """
    root, chosen = Path(name_of(folder)), _chosen(only)
    if str(root) == "-":
        raise RnnLowerError("-: a kit is a folder, which stdout cannot take; name a folder")
    if not 0 < limit < math.inf:
        raise RnnLowerError(f"--limit is {limit:g}; it must be a number above 0")
    try:
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise RnnLowerError(f"{root}: already exists and is not empty; choose a new or empty folder")
        real = Path(os.path.realpath(root))
        staging = real.with_name(f".{real.name}.{secrets.token_hex(8)}")
        staging.mkdir()
        try:
            manifest = _write_all(staging, find_target(target), chosen, limit)
            os.replace(staging, real)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise RnnLowerError(f"{root}: cannot be written: {error.strerror or error}") from None
    return manifest


def _chosen(only: Sequence[str]) -> list[str]:
    for pattern in only:
        if not fnmatch.filter(FEATURES, pattern):
            near = difflib.get_close_matches(pattern, FEATURES, 3, 0.4)
            text = f"there are {len(FEATURES)} features, such as '{next(iter(FEATURES))}'"
            text = f"similar: {', '.join(map(repr, near))}" if near else text
            raise RnnLowerError(f"--include {pattern}: no feature matches this pattern; {text}")
    return [name for name in FEATURES if not only or any(fnmatch.fnmatchcase(name, wanted) for wanted in only)]


def _write_all(root: Path, target: Target, chosen: Sequence[str], limit: float) -> Manifest:
    for name in ("models", "inputs", "expected"):
        (root / name).mkdir()
    cases: list[KitCase] = []
    refused: list[Refused] = []
    for feature in chosen:
        case = suited(FEATURES[feature], target)
        if case is None:
            refused.append(
                Refused(feature, FUSED, f"this feature does not exist at any opset that target {target.name} supports")
            )
            continue
        for written in _of_feature(root, feature, case, target, limit):
            (cases if isinstance(written, KitCase) else refused).append(written)  # type: ignore[arg-type]
    manifest = Manifest(target.name, f"rnn_lower {rnn_lower.__version__}", tuple(cases), tuple(refused))
    manifest.write(root)
    shutil.copyfile(target.path, root / TARGET)
    (root / "README.md").write_text(README.format(name=target.name), encoding="utf-8")
    return manifest


def _of_feature(root: Path, feature: str, case: Case, target: Target, limit: float) -> Iterator[KitCase | Refused]:
    model, feeds = build(case)
    wanted = expected(Document(model), feeds)
    name = feature.replace(" ", "_")
    inputs = _save(root, f"inputs/{name}", feeds)
    outputs = _save(root, f"expected/{name}", dict(zip(case.wanted, wanted, strict=True)))
    for form in (FUSED, *target.forms):
        file = f"models/{name}.{form}.onnx"
        try:
            proto = model if form == FUSED else _lowered(model, form, target)
        except UnsupportedError as error:
            yield Refused(feature, form, str(error))
            continue
        (root / file).write_bytes(proto.SerializeToString(deterministic=True))
        operators = tuple(sorted({node.op_type for node, _ in all_nodes(Document(proto).model)}))
        yield KitCase(f"{name}.{form}", feature, form, file, case.opset, operators, inputs, outputs, limit)


def _lowered(model: onnx.ModelProto, form: str, target: Target) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    document = Document(copy)
    lower_document(document, Options(form=form, target=str(target.path)))
    return document.write_back(None)


def _save(root: Path, folder: str, values: Mapping[str, np.ndarray]) -> tuple[Tensor, ...]:
    """Save each array as FOLDER/NAME.npy, which any language can read, and all of them as FOLDER.npz."""
    (root / folder).mkdir()
    with open(root / f"{folder}.npz", "wb") as archive:
        write_arrays(archive, values)
    tensors = []
    for name, value in values.items():
        file = f"{folder}/{name}.npy"
        np.save(root / file, value)
        tensors.append(Tensor(name, str(value.dtype), value.shape, file))
    return tuple(tensors)


def expected(document: Document, feeds: Feeds) -> list[np.ndarray]:
    """Return the expected outputs of a model, from the native operators of onnxruntime or from the reference.

    The reference is used if onnxruntime is known to be wrong for a node, or if its Softplus is infinite.
    """
    nodes = read_nodes(document.model, document.shape_info)
    if not any(map(refused_by_onnxruntime, nodes)):
        fused = open_onnxruntime(document)(feeds)
        named = {function.name for node in nodes for functions in node.activations for function in functions}
        if "Softplus" not in named or all(bool(np.all(np.isfinite(result))) for result in fused):
            return fused
    return open_reference(document)(feeds)
