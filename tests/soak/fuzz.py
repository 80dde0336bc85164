"""Soak: random models, lowered, against the fused operator and the float64 oracle.

    python tests/soak/fuzz.py --minutes 10 --seed 1 [--count N] [--failures FOLDER] [--runtime openvino]

Ends with counts by feature, the errors against float64, and `N passed, N failed`; each failure is written as a .onnx
with its inputs (.npz) and the case (.txt). With --runtime the lowered models run there instead of on onnxruntime.
"""  # fmt: skip

from __future__ import annotations

import collections
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
import onnx
from judge import close, expected, lowered, refused, run_onnxruntime, run_reference
from onenode import Case, build
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from soaking import soak_parser
from strategies import random_case

import rnn_lower
from rnn_lower.targeting import TARGETS


def exact(case: Case) -> list[np.ndarray]:
    """The oracle in float64, on the same numbers as the model of a narrower type holds."""
    return run_reference(*widened(case))


def widened(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model and its inputs in double, with the same numbers."""
    model, feeds = build(case)
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen(wide)
    return wide, {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in feeds.items()}


def _widen(model: onnx.ModelProto) -> None:
    """Element types of everything to double."""
    narrow = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)

    def types(values: object) -> None:
        for value in values:
            if value.type.tensor_type.elem_type in narrow:
                value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE

    def double(tensor: onnx.TensorProto) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float64), tensor.name)

    def walk(graph: onnx.GraphProto) -> None:
        types(graph.input)
        types(graph.output)
        for tensor in graph.initializer:
            if tensor.data_type in narrow:
                tensor.CopyFrom(double(tensor))
        nodes(graph.node)

    def nodes(found: object) -> None:
        for node in found:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    walk(attribute.g)
                elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in narrow:
                    attribute.t.CopyFrom(double(attribute.t))

    walk(model.graph)
    for function in model.functions:
        nodes(function.node)


HUGE = 1e6
"""With values of this size in a sum, float32 leaves two digits of the others."""


def compare(case: Case, form: str) -> tuple[float, float] | None:
    """Raise when lowered and judge differ; answer the errors of lowered and fused against float64.

    Where they differ among huge values, the same model in double has to agree with the oracle instead.
    """
    model, feeds = lowered(case, form)
    got = run_onnxruntime(model, feeds)
    wanted = expected(case)
    try:
        close(got, wanted)
    except AssertionError:
        if not all(np.all(np.abs(result.astype(np.float64)) < HUGE) for result in (*got, *wanted)):
            model, feeds = widened(case)  # unbounded activations have led where float32 overflows or cancels
            close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), run_reference(model, feeds))
            return None
        raise
    if case.dtype != "float" or case.place == "loop" or refused(build(case)[0]):
        return None
    truth = exact(case)
    if not all(np.all(np.isfinite(result)) for result in (*wanted, *truth)):
        return None
    return largest_error(got, truth), largest_error(wanted, truth)


def runtime_case(rng: np.random.Generator, name: str) -> tuple[Case, str]:
    """A case and a form that a target promises to take."""
    case, _ = random_case(rng)
    form = str(rng.choice([*TARGETS[name].forms, "auto"]))
    static = TARGETS[name].static_batch or form != "scan" or case.lengths_as == "initializer"
    opset = int(rng.integers(13, 18))
    return case.replace(
        opset=opset, layout=case.layout if opset >= 14 else 0, dtype="float", place="main",
        T=int(rng.choice([1, 2, 5, 20])), dynamic=case.dynamic and not static,
    ), form  # fmt: skip


def compare_on(name: str, case: Case, form: str) -> bool:
    """Raise when the lowered model on another runtime and the judge differ; answer whether they were compared.

    They are not where the target refuses the model, or where values leave float32, each in its own way.
    """
    from runtimes.runners import RUNNERS, limit_of

    model, feeds = build(case)
    try:
        model = rnn_lower.lower(model, target=name, form=form)
    except rnn_lower.UnsupportedError:
        return False
    results = [np.asarray(result) for result in RUNNERS[name][1](model, feeds)]
    wanted = expected(case)
    if not all(np.all(np.abs(result) < 1e30) for result in wanted):
        return False
    close(results, wanted, rtol=1e-3, atol=limit_of(name, wanted))  # their exp and tanh are approximations too
    return True


def largest_error(results: list[np.ndarray], truth: list[np.ndarray]) -> float:
    pairs = zip(results, truth, strict=True)
    return max(float(np.max(np.abs(a.astype(np.float64) - b), initial=0.0)) for a, b in pairs)


def features(case: Case, form: str) -> list[str]:
    found = [f"op {case.op}", f"form {form}", f"opset {case.opset:2d}", f"type {case.dtype}", f"place {case.place}"]
    found += [f"direction {case.direction or 'default'}", f"weights {case.weights}", f"layout {case.layout}"]
    found += [f"input {name}" for name in case.optional]
    found += [f"attribute {name}" for name in ("activations", "clip", "lbr", "input_forget") if getattr(case, name)]
    return found + (["symbolic sizes"] if case.dynamic else [])


def main() -> int:
    parser = soak_parser(__doc__)
    parser.add_argument("--runtime", choices=TARGETS, help="a target whose runtime is installed")
    arguments = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    errors: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    passed = failed = skipped = 0
    end = time.monotonic() + 60 * arguments.minutes
    rng = np.random.default_rng(arguments.seed)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("models", total=60 * arguments.minutes)
        while time.monotonic() < end and passed + failed + skipped < arguments.count:
            name = arguments.runtime
            case, form = runtime_case(rng, name) if name else random_case(rng)
            try:
                pair = None
                if name and not compare_on(name, case, form):
                    skipped += 1
                    continue
                if not name:
                    pair = compare(case, form)
                passed += 1
                counts.update(features(case, form))
                if pair is not None:
                    errors[case.op].append(pair)
            except Exception as error:  # whatever goes wrong is a finding
                failed += 1
                _write(arguments.failures, failed, case, form, error)
            progress.update(
                task,
                completed=60 * arguments.minutes - (end - time.monotonic()),
                description=f"{passed} models, {failed} failed",
            )
    _report(counts, errors)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} not compared" if skipped else ""))
    return 1 if failed else 0


def _write(folder: Path, number: int, case: Case, form: str, error: Exception) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model, feeds = build(case)
    onnx.save(model, folder / f"failure_{number}.onnx")
    np.savez(folder / f"failure_{number}.npz", **feeds)
    (folder / f"failure_{number}.txt").write_text(f"{case}\n{form}\n{type(error).__name__}: {error}\n")
    print(f"FAILED {form} {case}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", file=sys.stderr)


def _report(counts: collections.Counter[str], errors: dict[str, list[tuple[float, float]]]) -> None:
    console = Console(width=100)
    table = Table("feature", "models")
    for feature, count in sorted(counts.items()):
        table.add_row(feature, str(count))
    console.print(table)
    table = Table("float32 against float64", "models", "lowered, median", "fused, median", "lowered / fused, median")
    for op, pairs in sorted(errors.items()):
        ours, theirs = np.array(pairs).T
        ratio = np.median(ours[theirs > 0] / theirs[theirs > 0])
        table.add_row(op, str(len(pairs)), f"{np.median(ours):.3g}", f"{np.median(theirs):.3g}", f"{ratio:.3f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
