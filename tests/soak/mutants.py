"""How many wrong lowerings the proof rejects, and the default check: mutants of lowered graphs and of originals.

    python tests/soak/mutants.py --count 5000 --seed 1 [--failures FOLDER]

A mutant of a lowered graph exchanges an operator, drops or swaps operands, swaps outputs of a Split or branches of a
Where, turns a direction, gives one value the name of another, or changes a constant, by a tenth or by one unit in the
last place. A mutant of an original changes an attribute of the node, leaves out or swaps its inputs, or changes a
weight. Whether it computes another function is decided by many more inputs, wider ones and each element on its own,
than the check takes; for a constant that is off by a unit, by changing it by a tenth. Ends with what prove and check
reject, by kind. Each lowered graph with new names for all its values is equal, and has to be proved and to agree.
"""  # fmt: skip

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
import onnx
from judge import refused
from onenode import Case, build
from strategies import random_case

import rnn_lower
from rnn_lower.checking import runners, samples
from rnn_lower.modelio.document import Document
from rnn_lower.sandbox.resource_limits import one_child

EXCHANGES = {
    "Add": ("Sub", "Mul"), "Sub": ("Add",), "Mul": ("Add",), "Sigmoid": ("Tanh", "Identity"),
    "Tanh": ("Sigmoid", "Identity"), "Relu": ("Identity", "Abs"), "Max": ("Min",), "Min": ("Max",),
    "Less": ("Greater",), "Exp": ("Identity",), "Clip": ("Identity",), "Softsign": ("Tanh",), "Elu": ("Relu",),
    "LeakyRelu": ("Relu",), "ThresholdedRelu": ("Relu",), "HardSigmoid": ("Sigmoid",), "Softplus": ("Relu",),
}  # fmt: skip
EQUAL = "equal"
FUSED = 1e-6  # the fused operators approximate Tanh and Sigmoid with an absolute error of about 6e-8
ONE_INPUT = {"Identity", "Abs", "Relu", "Sigmoid", "Tanh"}


def nodes_of(graph: onnx.GraphProto) -> Iterator[tuple[onnx.GraphProto, onnx.NodeProto]]:
    for node in graph.node:
        yield graph, node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes_of(attribute.g)


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for _, node in nodes_of(graph):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield attribute.g


def exchange(rng: np.random.Generator, node: onnx.NodeProto) -> bool:
    others = EXCHANGES.get(node.op_type)
    if not others:
        return False
    node.op_type = str(rng.choice(others))
    del node.attribute[:]
    if node.op_type in ONE_INPUT:
        del node.input[1:]
    return True


def swap_operands(rng: np.random.Generator, node: onnx.NodeProto) -> bool:
    if node.op_type not in ("Sub", "Div", "Less", "MatMul", "Concat") or len(node.input) < 2:
        return False
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return True


def drop_operand(rng: np.random.Generator, node: onnx.NodeProto) -> bool:
    if node.op_type not in ("Add", "Mul", "Sub"):
        return False
    kept = node.input[int(rng.integers(2))] if node.op_type != "Sub" else node.input[0]
    node.op_type, node.input[:] = "Identity", [kept]
    return True


def swap_outputs(rng: np.random.Generator, node: onnx.NodeProto) -> bool:
    if node.op_type not in ("Split", "Scan", "Loop") or len(node.output) < 2:
        return False
    a, b = rng.choice(len(node.output), 2, replace=False)
    node.output[a], node.output[b] = node.output[b], node.output[a]
    return True


def swap_branches(rng: np.random.Generator, node: onnx.NodeProto) -> bool:
    if node.op_type != "Where":
        return False
    node.input[1], node.input[2] = node.input[2], node.input[1]
    return True


def turn(rng: np.random.Generator, node: onnx.NodeProto) -> bool:
    directions = [a for a in node.attribute if a.name.endswith("_directions")]
    if node.op_type != "Scan":
        return False
    if directions:
        del node.attribute[list(node.attribute).index(directions[int(rng.integers(len(directions)))])]
    else:
        count = next(a.i for a in node.attribute if a.name == "num_scan_inputs")
        node.attribute.append(onnx.helper.make_attribute("scan_input_directions", [1] * count))
    return True


def other_initial_state(rng: np.random.Generator, node: onnx.NodeProto) -> bool:
    if node.op_type not in ("Scan", "Loop") or len(node.input) < 4:
        return False
    first = 0 if node.op_type == "Scan" else 2
    if len(node.input) < first + 2 or node.input[first] == node.input[first + 1]:
        return False
    node.input[first], node.input[first + 1] = node.input[first + 1], node.input[first]
    return True


KINDS = (exchange, swap_operands, drop_operand, swap_outputs, swap_branches, turn, other_initial_state)


def change_constant(
    rng: np.random.Generator, model: onnx.ModelProto, unit: bool = False, prefix: str = "node/"
) -> onnx.ModelProto | None:
    """One element of one constant by a tenth, or an integer by one; unit: of a float, by one unit in the last place.

    Answers the model with the larger change, which is None when there is nothing to change.
    """
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
    found = [t for graph in graphs_of(model.graph) for t in graph.initializer if t.name.startswith(prefix)]
    found = [tensor for tensor in found if np.prod(tensor.dims) and tensor.data_type != onnx.TensorProto.BOOL]
    found = [tensor for tensor in found if tensor.data_type in floats] if unit else found
    if not found:
        return None
    tensor = found[int(rng.integers(len(found)))]
    array = onnx.numpy_helper.to_array(tensor).copy()
    place = int(rng.integers(array.size))
    off = np.nextafter(array.flat[place], np.array(np.inf, array.dtype)) if unit else None
    array.flat[place] = array.flat[place] + 1 if array.dtype.kind == "i" else array.flat[place] * 1.1 + 0.02
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    larger = onnx.ModelProto()
    larger.CopyFrom(model)
    if off is not None:
        array.flat[place] = off
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return larger


def rename(rng: np.random.Generator, model: onnx.ModelProto) -> None:
    """One value gets the name of another one, in every scope."""
    graphs = list(graphs_of(model.graph))
    names = [value.name for graph in graphs for value in (*graph.input, *graph.initializer)]
    names += [name for graph in graphs for node in graph.node for name in node.output if name]
    old, new = (str(name) for name in rng.choice(sorted(set(names)), 2, replace=False))
    for graph in graphs:
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = new if value.name == old else value.name
        for node in graph.node:
            for ends in (node.input, node.output):
                ends[:] = [new if name == old else name for name in ends]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A changed model; plain: with a change of the same place that shows in floats, if it makes a difference at all."""

    model: onnx.ModelProto
    kind: str
    plain: onnx.ModelProto


def mutate(rng: np.random.Generator, model: onnx.ModelProto) -> Mutant | None:
    mutant = onnx.ModelProto()
    mutant.CopyFrom(model)
    chance = rng.random()
    if chance > 0.9:
        rename(rng, mutant)
        return Mutant(mutant, "rename", mutant)
    if chance < 0.3:
        unit = chance < 0.05
        plain = change_constant(rng, mutant, unit)
        return None if plain is None else Mutant(mutant, "one unit" if unit else "change_constant", plain)
    found = [node for _, node in nodes_of(mutant.graph) if node.name.startswith("node/")]
    node = found[int(rng.integers(len(found)))]
    kind = KINDS[int(rng.integers(len(KINDS)))]
    before = node.op_type
    return Mutant(mutant, f"{kind.__name__} {before}", mutant) if kind(rng, node) else None


def change_attribute(rng: np.random.Generator, node: onnx.NodeProto) -> str:
    """Which attribute of a recurrent node has another value now."""
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    changes: dict[str, object] = {"clip": given.get("clip", 1.0) * 0.3}
    if given.get("direction") != b"bidirectional":
        changes["direction"] = "forward" if given.get("direction") == b"reverse" else "reverse"
    if names := given.get("activations"):
        place = int(rng.integers(len(names)))
        other = "Tanh" if names[place] != b"Tanh" else "Sigmoid"
        changes["activations"] = [*names[:place], other.encode(), *names[place + 1 :]]
    if given.get("activation_alpha"):
        changes["activation_alpha"] = [value * 1.5 for value in given["activation_alpha"]]
    if node.op_type == "GRU":
        changes["linear_before_reset"] = 1 - given.get("linear_before_reset", 0)
    if node.op_type == "LSTM":
        changes["input_forget"] = 1 - given.get("input_forget", 0)
    name = str(rng.choice(sorted(changes)))
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, changes[name])])
    return name


def change_ends(rng: np.random.Generator, node: onnx.NodeProto) -> str:
    """Which inputs or outputs of a recurrent node are left out or swapped now; empty if it has none to change."""
    places = [place for place, name in enumerate(node.input) if name and place >= 3]
    states = [place for place, name in enumerate(node.output) if name and place]
    if len(states) == 2 and rng.random() < 0.3:
        node.output[1], node.output[2] = node.output[2], node.output[1]
        return "states"
    if len(node.input) > 6 and node.input[5] and node.input[6] and rng.random() < 0.3:
        node.input[5], node.input[6] = node.input[6], node.input[5]
        return "initial states"
    if not places:
        return ""
    place = int(rng.choice(places))
    node.input[place] = ""
    return ("B", "sequence_lens", "initial_h", "initial_c", "P")[place - 3]


def mutate_original(rng: np.random.Generator, model: onnx.ModelProto) -> Mutant | None:
    """A changed original: another attribute, other inputs or outputs of the node, or another constant."""
    mutant = onnx.ModelProto()
    mutant.CopyFrom(model)
    chance = rng.random()
    if chance < 0.3:
        unit = chance < 0.1
        plain = change_constant(rng, mutant, unit, prefix="")
        return None if plain is None else Mutant(mutant, f"original: {'one unit' if unit else 'constant'}", plain)
    node = next(node for _, node in nodes_of(mutant.graph) if node.op_type in ("RNN", "GRU", "LSTM"))
    what = change_attribute(rng, node) if chance < 0.7 else change_ends(rng, node)
    return Mutant(mutant, f"original: {what}", mutant) if what else None


def with_new_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with new names for all values that lowering emitted, except outputs of the model."""
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    kept = {value.name for value in (*model.graph.input, *model.graph.output)} | {""}
    kept |= {tensor.name for tensor in model.graph.initializer if not tensor.name.startswith("node/")}
    made = {name for _, node in nodes_of(model.graph) if node.name.startswith("node/") for name in node.output}
    new: dict[str, str] = {}

    def rename(name: str) -> str:
        lowered = name in made or name.startswith("node/")
        return name if name in kept or not lowered else new.setdefault(name, f"value/{len(new)}")

    for graph in graphs_of(renamed.graph):
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = rename(value.name)
        for node in graph.node:
            for ends in (node.input, node.output):
                ends[:] = [rename(name) for name in ends]
    return renamed


def feeds_for(rng: np.random.Generator, case: Case, count: int) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of the case's own sizes, at every scale, with every kind of length."""
    model = Document(build(case)[0]).model
    for index in range(count):
        for feeds in samples.Samples(model, int(rng.integers(1 << 30))).candidates(index):
            scale = 10.0 ** rng.uniform(-2, 4)
            yield {
                name: (array * scale).astype(array.dtype) if array.dtype.kind == "f" and index % 2 else array
                for name, array in feeds.items()
            }
            break


def differs(rng: np.random.Generator, case: Case, lowered: onnx.ModelProto, mutant: onnx.ModelProto) -> bool | None:
    """Whether a mutant computes another function; None when it does not run."""
    try:
        good, bad = (runners.open_onnxruntime(Document(model)) for model in (lowered, mutant))
        for feeds in feeds_for(rng, case, 40):
            wanted = good(feeds)
            got = bad(feeds)
            for a, b in zip(wanted, got, strict=True):
                if a.shape != b.shape:
                    return True
                x, y = a.astype(np.float64), b.astype(np.float64)
                if not np.all(np.isfinite(x)) or not np.all(np.isfinite(y)):
                    continue  # what overflows says nothing: 0 * inf is no other function than 0
                with np.errstate(all="ignore"):
                    if not np.all(np.abs(x - y) <= 2e-3 * np.abs(x) + 2e-5 * np.abs(x).max(initial=0) + FUSED):
                        return True
    except Exception:
        return None
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=Path)
    arguments = parser.parse_args()
    with one_child():
        rows = run(arguments.count, arguments.seed, arguments.failures)
    wrong = [row for row in rows if row.kind != EQUAL]
    kinds = collections.Counter(row.kind for row in wrong)
    for kind in sorted(kinds):
        print(summary(kind, [row for row in wrong if row.kind == kind]))
    print(summary("all", wrong))
    equal = [row for row in rows if row.kind == EQUAL]
    proved, same = sum(row.proof_right for row in equal), sum(row.check_right for row in equal)
    print(f"equal: {len(equal)} models, prove accepts {proved}, check accepts {same}")
    return 0 if all(row.proof_right for row in rows) else 1


def summary(kind: str, rows: Sequence[Row]) -> str:
    proof, check = sum(row.proof_right for row in rows), sum(row.check_right for row in rows)
    return f"{kind}: {len(rows)} mutants, prove rejects {proof}, check rejects {check} ({check / len(rows):.1%})"


@dataclasses.dataclass(frozen=True)
class Row:
    """A mutant that computes another function, or an equal model, and who judged it right."""

    kind: str
    proof_right: bool
    check_right: bool


def run(count: int, seed: int, failures: Path | None = None, checks: bool = True) -> list[Row]:
    """As many mutants that compute another function, and the equal models; what the proof gets wrong is kept as files.

    checks: also run the check, which takes the longest.
    """
    rows: list[Row] = []
    rng = np.random.default_rng(seed)
    while sum(row.kind != EQUAL for row in rows) < count:
        case, form = random_case(rng)
        case = case.replace(place="main", dtype="float", layout=0, opset=max(case.opset, 9))
        original, _ = build(case)
        if refused(original) or "Softplus" in (case.activations or ()):
            continue
        lowered = rnn_lower.lower(original, form=form)
        pairs = [(EQUAL, original, with_new_names(lowered))]
        for index in range(6):
            made = mutate(rng, lowered) if index < 4 else mutate_original(rng, original)
            if made is None or (index >= 4 and refused(made.model)) or not differs(rng, case, lowered, made.plain):
                continue
            if index >= 4 and rnn_lower.lower(made.model, form=form) == lowered:
                continue  # such as a bias that has the same sum
            pairs.append((made.kind, original, made.model) if index < 4 else (made.kind, made.model, lowered))
        for kind, before, after in pairs:
            right = rnn_lower.prove(before, after).ok == (kind == EQUAL)
            rows.append(Row(kind, right, checks and agrees(before, after) == (kind == EQUAL)))
            if not right and failures is not None:
                failures.mkdir(parents=True, exist_ok=True)
                name = f"{seed}_{len(rows)}"
                onnx.save(before, failures / f"{name}_original.onnx")
                onnx.save(after, failures / f"{name}_other.onnx")
                (failures / f"{name}.txt").write_text(f"{kind}\n{form}\n{case}\n")
    return rows


def agrees(original: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    try:
        return rnn_lower.check(original, other).ok
    except rnn_lower.RnnLowerError:
        return False  # it does not run with the sampled inputs


if __name__ == "__main__":
    sys.exit(main())
