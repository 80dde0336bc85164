"""Soak: random models, streamed in random chunks, against one whole run of the original.

    python tests/soak/streams.py --minutes 10 --seed 1 [--count N] [--failures FOLDER]

Half are one random recurrent node with every feature of `strategies.py`, half are random stacks of layers: causal and
strided convolutions, pooling, padding, dense layers, residuals, recurrent nodes over time and over another axis. Those
that are not causal have to be refused. Ends with `N passed, N failed, N refused as they must be`.
"""  # fmt: skip

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
import onnx
from judge import close, judged, refused, run_onnxruntime, run_reference
from layers import random_stack
from onenode import Case, build
from soaking import soak_parser
from strategies import make

import rnn_lower

HUGE = 1e6
"""With values of this size in a sum, float32 leaves two digits of the others."""


def chunk_lengths(rng: np.random.Generator, frames: int, every: int) -> list[int]:
    """Random lengths that come to the whole."""
    left, found = frames // every, []
    while left:
        found.append(int(rng.integers(1, left + 1)))
        left -= found[-1]
    return [every * length for length in found]


def in_chunks(model: onnx.ModelProto, feeds: dict[str, np.ndarray], lengths: list[int]) -> dict[str, np.ndarray]:
    """The outputs of a whole run, made chunk by chunk."""
    run = run_reference if refused(model) else run_onnxruntime
    session = rnn_lower.StreamingSession(model, run=lambda given: run(model, given))
    plan, begin, parts = session.plan, 0, []
    callers = {state.input for state in plan.states if state.first is None}
    for length in lengths:
        chunk = {name: array for name, array in feeds.items() if not begin or name not in callers}
        for name, axis in plan.inputs.items():
            chunk[name] = np.take(feeds[name], range(begin, begin + length), axis)
        parts.append(session.run(chunk))
        begin += length
    assert begin == next(feeds[name].shape[axis] for name, axis in plan.inputs.items())
    return {
        name: np.concatenate([part[name] for part in parts], what) if isinstance(what, int) else parts[-1][name]
        for name, what in plan.outputs.items()
    }


def same_in_chunks(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], axis: str, rng: np.random.Generator, lengths: list[int] | None,
    rtol: float = 1e-4, atol: float = 1e-5, **options: object,
) -> None:  # fmt: skip
    """Raise when chunks give something else than the whole. options: of `rnn_lower.stream`."""
    streaming = rnn_lower.stream(model, axis=axis, **options)
    if rng.integers(4) == 0:
        proof = rnn_lower.prove_streaming(model, streaming, points=1)
        assert proof, proof.verdict
    onnx.checker.check_model(streaming, full_check=True)
    every = rnn_lower.StreamingSession(streaming, run=lambda _: []).plan.every
    frames = next(
        feeds[v.name].shape[k]
        for v in model.graph.input
        for k, d in enumerate(v.type.tensor_type.shape.dim)
        if d.dim_param == axis
    )
    lengths = lengths or chunk_lengths(rng, frames, every)
    got = in_chunks(streaming, feeds, lengths)
    wanted = dict(zip([o.name for o in model.graph.output], judged(model, feeds), strict=True))
    for name in rnn_lower.StreamingSession(streaming, run=lambda _: []).plan.cut:
        wanted[name] = wanted[name][:, : got[name].shape[1]]
    if not all(np.all(np.abs(array.astype(np.float64)) < HUGE) for array in (*got.values(), *wanted.values())):
        return
    try:
        close([got[name] for name in wanted], list(wanted.values()), rtol, atol)
    except AssertionError:
        if options.get("keep_native"):
            raise
        whole = rnn_lower.lower(model)  # where gates are steep the two differ by more than that without any chunks
        alike = run_onnxruntime(whole, feeds)
        close([got[name] for name in wanted], alike, rtol, atol)


def random_one(rng: np.random.Generator) -> tuple[Case, dict[str, object]]:
    """One node, and how it is streamed."""

    def pick(choices: object) -> object:
        return choices[int(rng.integers(len(choices)))]

    case, form = make(pick)
    direction = pick((None, "forward", "forward", case.direction))
    if "bidirectional" in (direction, case.direction) and direction != case.direction:
        case = case.replace(activations=None, alpha=None, beta=None)
    case = case.replace(direction=direction, dynamic=True, T=int(rng.integers(1, 12)))
    if rng.integers(3) == 0:
        return case, {"keep_native": True}
    if form != "unroll" and rng.integers(2):
        return case, {"form": form}
    step = int(rng.integers(1, 4))
    return case.replace(T=step * int(rng.integers(1, 5))), {"step": step}


def tolerance(case: Case) -> tuple[float, float]:
    """A state is rounded to its type at every border, which the fused operator does at the end only."""
    return (1e-2, 1e-3) if case.dtype == "float16" else (1e-4, 1e-5)


def must_be_refused(case: Case, options: dict[str, object]) -> bool:
    """Whether there is no streaming form of it, or none that is made."""
    lengths = "sequence_lens" in case.optional
    return (
        case.direction in ("reverse", "bidirectional")
        or case.place == "loop"
        or (lengths and (case.opset < 9 or case.place == "if"))
        or (case.place == "if" and lengths)
    )


def one_node(rng: np.random.Generator) -> bool:
    """Whether it was compared; False when it was refused and had to be."""
    case, options = random_one(rng)
    model, feeds = build(case)
    if "sequence_lens" in feeds:
        feeds["sequence_lens"] = np.minimum(feeds["sequence_lens"], case.T).astype(np.int32)
    lengths = [options["step"]] * (case.T // options["step"]) if "step" in options else None
    try:
        same_in_chunks(model, feeds, "T", rng, lengths, *tolerance(case), **options)
    except rnn_lower.UnsupportedError as error:
        if not must_be_refused(case, options):
            raise AssertionError(f"{case} {options}: refused: {error}") from None
        return False
    except Exception as error:
        raise AssertionError(f"{case} {options}: {type(error).__name__}: {error}") from None
    assert not must_be_refused(case, options), f"{case} {options} was taken"
    return True


def one_stack(rng: np.random.Generator) -> bool:
    stack, feeds, told = random_stack(rng)
    model, causal, every = stack.model(), stack.causal, stack.every
    ways: list[dict[str, object]] = [{}, {"form": "loop"}, {"keep_native": True}, {"step": every}]
    if stack.ahead:
        ways[2] = {"step": 2 * every}
    options = ways[int(rng.integers(4))] | ({"delay": True} if stack.cut else {})
    step = int(options.get("step", every))  # type: ignore[call-overload]
    frames = -(-feeds["x"].shape[1] // step) * step
    if frames != feeds["x"].shape[1]:
        feeds["x"] = np.resize(feeds["x"], (len(feeds["x"]), frames, feeds["x"].shape[2]))
    lengths = [step] * (frames // step) if "step" in options else None
    try:
        same_in_chunks(model, feeds, "T", rng, lengths, 1e-3, 1e-4, **options)
    except rnn_lower.UnsupportedError as error:
        if causal:
            raise AssertionError(f"{told} {options}: refused: {error}") from None
        return False
    except Exception as error:
        raise AssertionError(f"{told} {options}: {type(error).__name__}: {error}") from None
    assert causal, f"{told} was taken"
    return True


def main() -> int:
    arguments = soak_parser(__doc__).parse_args()
    passed = failed = refusals = number = 0
    end = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < end and number < arguments.count:
        rng = np.random.default_rng([arguments.seed, number])
        try:
            if (one_node if number % 2 else one_stack)(rng):
                passed += 1
            else:
                refusals += 1
        except Exception as error:  # whatever goes wrong is a finding
            failed += 1
            arguments.failures.mkdir(parents=True, exist_ok=True)
            told = f"seed {arguments.seed} number {number}: {error}"
            (arguments.failures / f"stream_{number}.txt").write_text(told)
            print(f"FAILED {' '.join(told.split())[:700]}", file=sys.stderr)
        number += 1
    print(f"{passed} passed, {failed} failed, {refusals} refused as they must be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
