"""Time lowered graphs against the fused operators on onnxruntime's CPU provider, interleaved in one process.

    python benchmarks/speed.py [--quick | --small] [--threads 1 2] [--docs docs]

Prints the geometric means that the project has goals for, then one line per configuration. Nothing is asserted. Without
--quick it also writes docs/speed.md and docs/speed.png; with --small only the sections on small layers, shared
loops, held-out sizes and whole models are measured, and put in place of those that are there.
"""  # fmt: skip

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from byhand import floor, naive  # noqa: E402
from early import early  # noqa: E402
from habits import with_habits  # noqa: E402
from onenode import Case, build  # noqa: E402
from report import Report  # noqa: E402
from shared import parallel, stacks  # noqa: E402
from timing import mean, ratios, session  # noqa: E402
from whole import section  # noqa: E402

import rnn_lower  # noqa: E402

AIM = ((1, 64, 128), (1, 256, 256), (1, 512, 512), (8, 64, 128), (8, 256, 256), (32, 256, 256), (32, 512, 512))
OPERATORS = {"LSTM": Case("LSTM"), "GRU": Case("GRU", lbr=0), "GRU lbr": Case("GRU", lbr=1), "RNN": Case("RNN")}
GOALS = {"LSTM": 1.18, "GRU": 1.10, "GRU lbr": 1.10, "RNN": 0.55}
FORMS = ("auto", "scan", "loop", "unroll")
ABOUT = f"""`benchmarks/speed.py` wrote this page (the extra `bench` installs what it needs). It runs each lowered graph and the
fused operator in turn, in one process, in float32 on onnxruntime's CPU provider. A ratio is the time of the lowered graph
over that of the fused operator in the same round, as a median over the rounds: below 1, the lowered graph is faster.

![Time of the lowered graph over that of the fused operator, by hidden size](speed.png)

T, N, I and H are the sequence length, batch size, input size and hidden size. "GRU lbr" is a GRU with
`linear_before_reset` = 1. The columns:

- auto, scan, loop, unroll: the form, as in `--form`. Unrolled graphs are measured up to T = 64.
- symbolic: a Scan in a model that leaves the sequence length and the batch size open; all other graphs have fixed sizes.
- floor: the matrix products alone, that is, one MatMul that projects the inputs of all steps, then a Scan that does nothing
  but multiply the state by R. No Scan whose inputs are projected at once can be faster; a straight line of
  one step can, because it skips the product with the zero state.
- naive: what one would write by hand, a Scan with a MatMul per gate and input (LSTM, forward only).
- goal: the ratio that the project set out to reach with a Scan and one thread.

Small layers pay the most: each node of the body costs a fraction of a microsecond per step, however little it computes.
At small sizes an elementwise node takes 0.2 to 0.4 us, a Split 0.75 us or more; that is the gap between the floor and the
Scan. The gap between the floor and 1 is what the fused kernel loses (RNN) or gains (LSTM and GRU at N = 1) by calling the
matrix product directly.

Isolated outliers, mostly with two threads, are noise. The geometric means are over (N, I, H) = {", ".join(map(str, AIM))}."""

SMALL = "Small layers: T = 64, N = 1, I = H"
ABOUT_SMALL = """Form auto over fused, by the number of threads. "apart" gives each direction a Scan of its own. Up to
64 units, LSTM up to 48, both share one with their states end to end, LSTM up to 128 with theirs side by side (`recurrent/both.py`);
end to end there is a second loop, which runs for NaN only and takes 0.7 to 2 ms to load. What is left is onnxruntime's cost of a node and of a Scan:
on the machine of this table an elementwise node takes about 0.2 us a step, a product with its activation 0.5, a Split 0.5,
a stream that the Scan reads 0.34, a state 0.13. An LSTM step has two products, one Split, five elementwise nodes, two streams
and two states, which is what it takes: Y is not copied out of the state, but made of the two terms of its last equation, for
all steps at once (4 to 8 % less time than an Identity in each step). Two steps in one iteration, with the streams of each and
half of the states, take as long; four and eight, like unrolled graphs, take 5 to 15 % longer. That is the allocator: a value
whose memory another one takes over is kept until the iteration ends, and glibc holds seven freed objects of a size at hand. With
more of them (`GLIBC_TUNABLES=glibc.malloc.tcache_count=500`), or in a body that does not know its batch size, where onnxruntime
plans no such takeover, four or eight steps in one iteration take 4 to 10 % less time than one in each."""


def forms_of(T: int) -> list[str]:
    return ["auto", "scan", "loop", *(["unroll"] if T <= 64 else [])]


def one(case: Case, threads: int, seconds: float) -> dict[str, tuple[float, float]]:
    model, feeds = build(case)
    sessions = {"fused": session(model, threads)}
    for form in forms_of(case.T):
        sessions[form] = session(rnn_lower.lower(model, form=form), threads)
    symbolic, _ = build(case.replace(dynamic=True))
    sessions["symbolic"] = session(rnn_lower.lower(symbolic, form="scan"), threads)
    sessions["floor"] = session(floor(case), threads)
    if case.direction is None and case.op == "LSTM":
        sessions["naive"] = session(naive(case), threads)
    return ratios(sessions, feeds, seconds)


def directions() -> itertools.product:
    return itertools.product(OPERATORS.items(), (None, "bidirectional"))


def aims(report: Report, seconds: float) -> None:
    """The configurations that the project has goals for: T = 64 (32 for the largest)."""
    rows = []
    for (name, base), direction in directions():
        found: dict[str, list[float]] = {}
        for N, I, H in AIM:
            T = 32 if (N, H) == (32, 512) else 64
            case = base.replace(opset=17, T=T, N=N, I=I, H=H, direction=direction, optional=("B",), outputs=None)
            result = one(case, 1, seconds)
            for form, (_, ratio) in result.items():
                found.setdefault(form, []).append(ratio)
            for form in ("loop", "unroll"):
                found.setdefault(f"{form} / scan", []).append(result[form][1] / result["scan"][1])
            found.setdefault("single", []).append(one(case.replace(T=1), 1, seconds / 4)["auto"][1])
            two = one(case, 2, seconds)
            for form in ("scan", "floor"):
                found.setdefault(f"{form}, 2 threads", []).append(two[form][1])
        shown = {key: f"{mean(ratios):.2f}" for key, ratios in found.items()}
        rows.append(
            [
                name, direction or "forward", shown["scan"], f"{GOALS[name]:.2f}", shown["symbolic"], shown["floor"],
                shown["loop / scan"], shown["unroll / scan"], f"{shown['single']} (worst {max(found['single']):.2f})",
                shown["scan, 2 threads"], shown["floor, 2 threads"],
            ]
        )  # fmt: skip
    report.table(
        "Geometric means, T = 64 (T = 32 for the largest size)",
        (
            "operator", "direction", "scan / fused", "goal", "symbolic / fused", "floor / fused", "loop / scan", "unroll / scan",
            "auto / fused, T = 1", "scan / fused, 2 threads", "floor / fused, 2 threads",
        ), rows,
    )  # fmt: skip


def sweep(report: Report, threads: list[int], seconds: float) -> dict[tuple[str, str], dict[int, float]]:
    """Every size; returns the ratio by hidden_size for the plot (T = 64, N = 1, one thread)."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for count, ((name, base), direction) in itertools.product(threads, directions()):
        rows = []
        for T, N, H in itertools.product((1, 16, 64, 512), (1, 8, 32), (32, 128, 256, 512)):
            if N * H * H * T > 32 * 512 * 512 * 64:
                continue
            case = base.replace(opset=17, T=T, N=N, I=H, H=H, direction=direction, optional=("B",))
            result = one(case, count, seconds)
            shown = [
                f"{result[form][1]:.2f}" if form in result else "" for form in (*FORMS, "symbolic", "floor", "naive")
            ]
            rows.append([str(T), str(N), str(H), f"{result['fused'][0]:.0f}", *shown])
            if (T, N, count, direction) == (64, 1, 1, None):
                for form in FORMS[1:]:
                    curves.setdefault((name, form), {})[H] = result[form][1]
        report.table(
            f"{name}, {direction or 'forward'}, {count} thread{'s' * (count > 1)}, I = H",
            ("T", "N", "H", "fused, us", *FORMS, "symbolic", "floor", "naive"), rows,
        )  # fmt: skip
    return curves


def small(report: Report, threads: list[int], seconds: float) -> None:
    """One row, where the nodes of a step are the cost: both directions in one loop, and each in one of its own."""
    with tempfile.TemporaryDirectory() as folder:
        apart = with_habits(Path(folder) / "apart.toml", directions_side_by_side=False)
        rows = []
        for (name, base), direction in directions():
            for H in (16, 32, 64, 128):
                case = base.replace(opset=17, T=64, N=1, I=H, H=H, direction=direction, optional=("B",))
                model, feeds = build(case)
                models = {"fused": model, "lowered": rnn_lower.lower(model)}
                if direction:
                    models["apart"] = rnn_lower.lower(model, target=apart)
                row = [name, direction or "forward", str(H)]
                for count in threads:
                    found = ratios({key: session(one, count) for key, one in models.items()}, feeds, seconds)
                    shown = [f"{found[key][1]:.2f}" if key in found else "" for key in ("lowered", "apart")]
                    row += [f"{found['fused'][0]:.0f}", *shown]
                rows.append(row)
    columns = [f"{what}, {n}" for n in threads for what in ("fused, us", "lowered", "apart")]
    report.table(SMALL, ("operator", "direction", "H", *columns), rows, ABOUT_SMALL)


HELD_OUT = 48


def held_out(report: Report, seconds: float) -> None:
    """What auto chooses, at sizes that no rule was made from."""
    rng, found = np.random.default_rng(2026), []
    for _ in range(HELD_OUT):
        name, direction = str(rng.choice(list(OPERATORS))), (None, "bidirectional")[rng.integers(2)]
        H, N, T = (int(2 ** rng.uniform(*edges)) for edges in ((3, 8.6), (0, 4), (1, 7)))
        case = OPERATORS[name].replace(opset=17, T=T, N=N, I=H, H=H, direction=direction, optional=("B",))
        result = one(case, 1, seconds)
        times = {form: result[form][1] for form in FORMS if form in result}
        found.append((times["auto"] / min(times.values()), f"{name}, {direction or 'forward'}, T {T}, N {N}, H {H}"))
    found.sort(reverse=True)
    within = sum(ratio <= 1.1 for ratio, _ in found)
    report.table(
        "Held-out sizes: form auto over the best form, one thread", ("ratio", "size"),
        [[f"{ratio:.2f}", told] for ratio, told in found[:8]],
        f"{HELD_OUT} random sizes (H 8 to 388, N 1 to 16, T 2 to 128), of which {within} are within 10 %, the median at"
        f" {statistics.median(ratio for ratio, _ in found):.2f}. The worst:",
    )  # fmt: skip


def others(report: Report) -> None:
    """What a user might run instead."""
    from onnx.reference import ReferenceEvaluator

    case = Case("LSTM", opset=17, T=64, N=1, I=128, H=128, optional=("B",))
    model, feeds = build(case)
    fused, scan = session(model, 1), session(rnn_lower.lower(model), 1)
    reference = ReferenceEvaluator(model)
    hand = session(naive(case), 1)
    rows = {
        "fused on onnxruntime": timed(lambda: fused.run(None, feeds)),
        "lowered to a Scan": timed(lambda: scan.run(None, feeds)),
        "naive Scan, one MatMul per gate and input": timed(lambda: hand.run(None, feeds)),
        "fused on onnx's ReferenceEvaluator": timed(lambda: reference.run(None, feeds), 3),
    }
    try:
        rows["nn.RNN of that size, torch's dynamo export"] = dynamo_rnn()
        rnn_model, rnn_feeds = build(Case("RNN", opset=17, T=64, N=1, I=128, H=128, optional=("B",)))
        ours = session(rnn_lower.lower(rnn_model), 1)
        rows["nn.RNN of that size, lowered to a Scan"] = timed(lambda: ours.run(None, rnn_feeds))
    except ImportError as error:
        print(f"nn.RNN was not measured: {error}")
    report.table(
        "Alternatives: LSTM, T = 64, N = 1, I = H = 128", ("what", "ms"),
        [[what, f"{ms:.2f}"] for what, ms in rows.items()],
    )  # fmt: skip


def dynamo_rnn() -> float:
    import torch

    module = torch.nn.RNN(128, 128).eval()
    x = torch.randn(64, 1, 128)
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    exported = session(program.model_proto, 1)
    name = exported.get_inputs()[0].name
    return timed(lambda: exported.run(None, {name: x.numpy()}))


def timed(run: object, count: int = 50) -> float:
    run()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def nodes_cost(report: Report, threads: list[int], seconds: float) -> None:
    """What --small measures."""
    small(report, threads, seconds)
    stacks(report, threads, seconds)
    parallel(report, threads, seconds)
    early(report, threads, seconds)
    held_out(report, seconds)
    section(report, threads, 4 * seconds)


def plot(curves: dict[tuple[str, str], dict[int, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(OPERATORS), figsize=(13, 3.4), sharey=True, layout="constrained")
    for panel, name in zip(panels, OPERATORS, strict=True):
        for form in FORMS[1:]:
            points = curves.get((name, form), {})
            panel.plot(list(points), list(points.values()), marker="o", label=form)
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.set(title=name, xlabel="hidden size", xscale="log", yscale="log")
        panel.set_xticks([32, 128, 256, 512], ["32", "128", "256", "512"])
        panel.minorticks_off()
    panels[0].set_ylabel("lowered / fused (T = 64, N = 1, 1 thread)")
    panels[0].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the configurations that have goals")
    parser.add_argument("--small", action="store_true", help="only small layers and whole models")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.5, help="per configuration")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    report = Report("Speed", ABOUT)
    if arguments.small:
        nodes_cost(report, arguments.threads, arguments.seconds)
        report.replace_last(arguments.docs / "speed.md", SMALL)
        return
    aims(report, arguments.seconds)
    if not arguments.quick:
        others(report)
        plot(sweep(report, arguments.threads, arguments.seconds / 5), arguments.docs / "speed.png")
        nodes_cost(report, arguments.threads, arguments.seconds)
        report.write(arguments.docs / "speed.md")


if __name__ == "__main__":
    main()
