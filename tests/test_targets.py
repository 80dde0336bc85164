"""Targets are files: what is wrong with one is told in a line, and what one rules out is never emitted."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from features import FEATURES
from judge import close, every_node, expected, run_onnxruntime
from onenode import OPTIONAL, Case, build
from paths import ROOT
from randomtargets import holds, quoted, random_target

import rnn_lower
from rnn_lower import cli
from rnn_lower.builder.versions import EMITTED
from rnn_lower.driver import plan
from rnn_lower.targeting import TARGETS, find_target

GOOD = """
summary = "for a test"
status = "documented"
source = "nowhere"
forms = ["unroll"]
unroll_up_to = "always"
static_batch = true
opsets = [13, 17]
"""


def written(folder, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def emitted(model: onnx.ModelProto) -> set[str]:
    found, waiting = set(), [model.graph]
    while waiting:
        for node in waiting.pop().node:
            found.add(node.op_type)
            waiting += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("forms = 3", "forms is 3; it must be a list of"),
        ("forms = []", "forms is []; it must be a list of"),
        ('forms = ["spiral"]', "forms is ['spiral']; it must be a list of"),
        ('status = "guessed"', """status is 'guessed'; it must be "measured" or "documented\""""),
        ("opsets = [17, 13]", "opsets is [17, 13]; it must be the first and the last opset"),
        ("opsets = [13]", "opsets is [13]; it must be the first and the last opset"),
        ("static_batch = 1", "static_batch is 1; it must be true or false"),
        ('unroll_up_to = "never"', "unroll_up_to is 'never'; it must be a number of steps"),
        ('"\\u001bcolour" = 3', "unknown key '\\x1bcolour'; known keys:"),
        ('avoid_types = ["FLOAT31"]', "avoid_types is ['FLOAT31']; it must be a list of element types"),
        ("limits.Elu.explicit = [1]", "limits.Elu.explicit is [1]; it must be a list of names of attributes"),
        ('avoid = ["Matmul"]', "avoid is ['Matmul']; it must be a list of names of ONNX operators"),
        ('takes = "MatMul"', "takes is 'MatMul'; it must be a list of names of ONNX operators"),
        ("rank = 0", "rank is 0; it must be the highest rank"),
        ('static = "yes"', "static is 'yes'; it must be true or false"),
        ("single_batch = 1", "single_batch is 1; it must be true or false"),
        ("limits = 3", "limits is 3; it must be a table with one table of limits for each operator"),
        ("limits.Klip.steps = [1]", "limits.Klip: ONNX has no operator of this name"),
        ("limits.Clip = 3", "limits.Clip is 3; it must be a table with some of the keys inputs, outputs, constant"),
        ("limits.Clip.low = 3", "limits.Clip: unknown key 'low'; known keys: inputs, outputs, constant"),
        ("limits.Concat.inputs = [3, 2]", "limits.Concat.inputs is [3, 2]; it must be the s"),
        (
            "limits.Clip.values = { min = 0 }",
            "limits.Clip.values is {'min': 0}; it must be a table with a range of values for each parameter",
        ),
        ('limits.Add.types = ["FLOAT31"]', "limits.Add.types is ['FLOAT31']; it must be a list of element types"),
        ("limits.Add.types = [[1]]", "limits.Add.types is [[1]]; it must be a list of element types"),
        ("limits.Slice.axes = 1", "limits.Slice.axes is 1; it must be a list of axes"),
        (
            "limits.MatMul.variable = true",
            "limits.MatMul.variable is True; it must be the maximum number of inputs that are not constant",
        ),
        ("limits.Gemm.attributes = { transA = 0 }", "limits.Gemm.attributes is {'transA': 0}; it must be a table"),
        ("faster_lowered = { GRU = -1 }", "faster_lowered is {'GRU': -1}; it must be a table"),
        ('fused.LSTM = ["plain"]', "fused is {'LSTM': ['plain']}; it must be a table"),
        ('fused = "perhaps"', "fused is 'perhaps'; it must be a table"),
        ("versions = 5", "versions is 5; it must be a list of version prefixes"),
        ("sources = 3", "sources is 3; it must be a table of strings"),
        ('sources.Klip = "page 3"', "sources.Klip: the name must be an operator or one of opsets, rank"),
        ("slow = { steps = 3 }", "slow is {'steps': 3}; it must be { steps = NUMBER, seconds = NUMBER }"),
        ("saturates = { Tanh = -1 }", "saturates is {'Tanh': -1}; it must be a table that gives, for each operator"),
        ('tune = ["jump"]', "tune is ['jump']; it must be a list of rewrites (available: batch_directions"),
        ("colour = 3", "unknown key 'colour'; known keys: summary, status"),
        ("summary", "not a target file: "),
        ("forms = [", "not a target file: "),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(line, words, tmp_path, capsys):
    name = line.split(" ")[0]
    rest = "\n".join(one for one in GOOD.splitlines() if not one.startswith(f"{name} "))
    path = written(tmp_path, f"{rest}\n{line}\n")
    with pytest.raises(rnn_lower.RnnLowerError) as caught:
        find_target(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert cli.main(["targets", path]) == cli.BAD
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["summary", "status", "source", "forms"])
def test_what_must_be_said(name, tmp_path):
    rest = "\n".join(line for line in GOOD.splitlines() if not line.startswith(f"{name} "))
    with pytest.raises(rnn_lower.RnnLowerError, match=f"{name} is missing; it must be"):
        find_target(written(tmp_path, rest))
    with pytest.raises(rnn_lower.RnnLowerError, match="cannot be read: No such file"):
        find_target(str(tmp_path / "other.toml"))


def test_every_target_is_a_file_and_explained(capsys):
    assert {path.stem for path in (ROOT / "rnn_lower" / "targeting").glob("*.toml")} == set(TARGETS)
    for name, target in TARGETS.items():
        assert find_target(name.upper()) is target
        assert cli.main(["targets", name]) == cli.DONE
        told = capsys.readouterr().out
        assert told.startswith(f"{name}: {target.summary}\n")
        assert target.source in told


CASES = [
    Case("LSTM", 17, "bidirectional", optional=OPTIONAL["LSTM"], clip=2.0, activations=("HardSigmoid", "Softsign", "Elu") * 2),
    Case("GRU", 17, "reverse", optional=OPTIONAL["GRU"], lbr=1, activations=("LeakyRelu", "ThresholdedRelu")),
    Case("RNN", 13, "bidirectional", optional=OPTIONAL["RNN"], activations=("Softplus", "ScaledTanh"), layout=0),
]  # fmt: skip


NEEDED = {
    "LSTM": {"Abs", "Add", "Concat", "Exp", "Mul", "Slice", "Transpose"},
    "GRU": {"Add", "Concat", "Mul", "Slice", "Transpose"},
    "RNN": {"Add", "Concat", "Mul", "Slice"},
}
"""Operators that have no other way of being said when they alone are missing."""


@pytest.mark.parametrize("op_type", EMITTED)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_what_a_target_avoids_is_said_otherwise_or_refused(case, op_type, tmp_path):
    model, _ = build(case)
    plain = rnn_lower.lower(model, target=written(tmp_path, GOOD))
    path = written(tmp_path, GOOD + f'avoid = ["{op_type}"]\n')
    if op_type not in emitted(plain):
        assert rnn_lower.lower(model, target=path).graph.node == plain.graph.node
        return
    refusal = holds(case, path)
    if refusal is None:
        assert op_type not in emitted(rnn_lower.lower(model, target=path))
    else:
        assert (
            f"does not support {op_type}: the target file does not list this operator as supported; rnn_lower has no equivalent"
            in refusal
        )
        assert op_type in NEEDED[case.op]


def test_a_list_of_what_is_taken_is_kept_to(tmp_path):
    """The operators that were emitted are enough; without one of them the node is refused by name."""
    model, _ = build(Case("LSTM", 17, optional=("B",)))
    taken = emitted(rnn_lower.lower(model, target=written(tmp_path, GOOD)))
    again = rnn_lower.lower(model, target=written(tmp_path, GOOD + f"takes = {quoted(taken)}\n"))
    assert emitted(again) <= taken
    path = tmp_path / "less.toml"
    path.write_text(GOOD + f"takes = {quoted(taken - {'MatMul'})}\n")
    with pytest.raises(rnn_lower.UnsupportedError, match="target less does not support MatMul"):
        rnn_lower.lower(model, target=str(path))


IMAGINARY = """
summary = "an imaginary runtime"
status = "documented"
source = "its manual"
forms = ["unroll"]
unroll_up_to = "always"
opsets = [13, 17]
static = true
rank = 4
avoid = ["Split", "Where", "Loop", "Scan", "Squeeze", "MatMul"]
"""


@pytest.mark.parametrize("feature", FEATURES)
def test_an_imaginary_runtime(feature, tmp_path):
    """A file outside of the package, and no line of Python changed: every feature is right on onnxruntime."""
    path = written(tmp_path, IMAGINARY)
    assert holds(FEATURES[feature], path) is None
    found = emitted(rnn_lower.lower(build(FEATURES[feature])[0], target=path))
    assert "Gemm" in found
    assert not found & {"Split", "Where", "Loop", "Scan", "Squeeze", "MatMul"}


NPU = """
summary = "an imaginary accelerator of 1 x 1 convolutions"
status = "documented"
source = "its manual"
forms = ["unroll"]
unroll_up_to = "always"
opsets = [13, 19]
static = true
single_batch = true
rank = 4
takes = ["Conv", "Add", "Mul", "Sigmoid", "Tanh", "Relu", "Slice", "Concat", "Reshape", "Transpose"]
limits.Conv.attributes = { kernel_shape = [[1, 1]] }
limits.Conv.constant = [1]
limits.Concat.inputs = [2, 4]
limits.Concat.axes = [-3, -2, -1]
sources.Conv = "its manual, page 12"
"""


@pytest.mark.parametrize("feature", FEATURES)
def test_an_accelerator(feature, tmp_path):
    """Ten operators and a batch of 1: no Cast, Less, Where, Shape or Expand when lengths are known."""
    case = FEATURES[feature].replace(N=1)
    refusal = holds(case, written(tmp_path, NPU))
    needs = {
        "sequence_lens input": "Where", "everything": "Where", "Softsign": "Softsign", "Softplus": "Softplus",
        "Softplus saturated": "Softplus", "Elu": "Elu", "ThresholdedRelu": "ThresholdedRelu",
    }  # fmt: skip
    wanted = next((words for name, words in needs.items() if feature.endswith(f" {name}")), None)
    if feature == "LSTM activations":
        wanted = "Softsign"
    assert (refusal is None) == (wanted is None), refusal
    assert wanted is None or f"does not support {wanted}: " in refusal


def test_rules_are_told_with_their_source(tmp_path):
    model, _ = build(Case("RNN", 17, "forward", N=1, weights="input"))
    with pytest.raises(
        rnn_lower.UnsupportedError,
        match="does not support MatMul: the target file does not list this operator as supported",
    ):
        rnn_lower.lower(model, target=written(tmp_path, NPU))
    text = NPU.replace('"Conv",', '"Gemm",').replace("limits.Conv.constant = [1]", "limits.Gemm.constant = [1]")
    text += 'limits.MatMul.constant = [1]\nsources.MatMul = "page 7"\n'
    text = text.replace("takes = [", 'takes = ["MatMul", ').replace('"Gemm", ', "")
    with pytest.raises(
        rnn_lower.UnsupportedError,
        match=r"MatMul is supported only with constants for input 1, but input 1 is computed \(page 7\)",
    ):
        rnn_lower.lower(model, target=written(tmp_path, text))
    with pytest.raises(rnn_lower.UnsupportedError, match="supports only a batch size of 1, not 2"):
        rnn_lower.lower(build(Case("RNN", 17))[0], target=written(tmp_path, NPU))


@pytest.mark.parametrize("seed", range(40))
def test_random_targets(seed, tmp_path):
    """Whatever a runtime takes: right, proved and within its rules, or refused by operator and rule."""
    rng = np.random.default_rng(seed)
    path = written(tmp_path, random_target(rng))
    for feature in rng.choice(sorted(FEATURES), size=2, replace=False):
        refusal = holds(FEATURES[feature], path)
        assert refusal is None or "does not support " in refusal


def test_what_breaks_a_rule_is_never_an_output(monkeypatch, tmp_path):
    """If the search let something through, holding every emitted node against the rules would end the lowering."""
    monkeypatch.setattr(plan, "legalize", lambda nodes, b, checker, results: (list(nodes), results))
    model, _ = build(Case("LSTM", 17))
    with pytest.raises(AssertionError, match=r"the lowered form contains MatMul .* which target mine does not support"):
        rnn_lower.lower(model, target=written(tmp_path, IMAGINARY))


@pytest.mark.parametrize(
    ("asked", "name"),
    [("opencv@4", "opencv@4"), ("opencv@4.12", "opencv@4"), ("OpenCV@5.0.0", "opencv"), ("opencv", "opencv")],
)
def test_a_target_of_a_version(asked, name):
    """Without a version it is the newest."""
    assert find_target(asked).name == name


@pytest.mark.parametrize("asked", ["opencv@3", "opencv@", "tract@9", "@4"])
def test_a_version_that_nobody_measured(asked):
    with pytest.raises(rnn_lower.RnnLowerError, match=f"unknown target '{asked}'"):
        find_target(asked)


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 18, 21])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_static_sizes_at_every_opset(op, opset, tmp_path):
    """Before opset 9 even the sizes that Reshape takes come out of nodes."""
    text = IMAGINARY.replace("opsets = [13, 17]\n", "")
    case = Case(op, opset, "bidirectional", optional=OPTIONAL[op], lengths_as="initializer", clip=0.5)
    assert holds(case, written(tmp_path, text)) is None


RANKED = "\n".join(f"limits.{op}.ranks = [4, 4]" for op in ("Add", "Clip", "Max", "Min", "Mul", "Relu", "Sub", "Tanh"))


@pytest.mark.parametrize(
    ("avoid", "more"),
    [
        (["Sigmoid", "Tanh", "Reciprocal"], RANKED),
        (["Sigmoid", "Tanh"], "limits.Add.ranks = [3, 4]\nlimits.Exp.ranks = [2, 2]"),
        (["Clip", "Min"], RANKED),
        (["Clip", "Min", "Max", "Add"], "limits.Relu.ranks = [4, 4]"),
        (["Clip", "Min", "Relu"], RANKED),
        (["Tanh", "Relu"], "limits.Clip.values = { min = [0, 0], max = [6, 6] }"),
        (["Clip", "Relu", "Min", "Sub", "Reciprocal"], ""),
    ],
)
@pytest.mark.parametrize("clip", [0.3, 500.0])
def test_groups_of_nodes_are_proved_in_any_rank(avoid, more, clip, tmp_path):
    """What is one function stays so for the proof, with Reshapes between its nodes and its parts said otherwise."""
    text = IMAGINARY.replace("[13, 17]", "[7, 17]").replace('"MatMul"]', f'"MatMul", {quoted(avoid)[1:]}')
    path = written(tmp_path, text + more + "\nsaturates = { Tanh = 20.0 }\n")
    for case in (Case("LSTM", 13, clip=clip, optional=("B",)), Case("GRU", 11, clip=clip, lbr=1, direction="reverse")):
        assert holds(case, path) is None


@pytest.mark.parametrize("place", ["main", "if"])
@pytest.mark.parametrize("form", ["unroll", "loop"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_no_max_that_broadcasts_before_opset_8(op, form, place, tmp_path):
    text = GOOD.replace("[13, 17]", "[7, 7]").replace('"unroll"]', '"unroll", "loop"]')
    case = Case(op, 7, clip=0.5, optional=("B",), place=place)
    assert holds(case, written(tmp_path, text + 'avoid = ["Clip"]\n'), form=form) is None


@pytest.mark.parametrize("avoid", [[], ["Add"], ["Unsqueeze"], ["Add", "Sub"]])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_results_known_beforehand_come_out_of_nodes(op, avoid, tmp_path):
    """Rows without a step give zeros: as initializers these would be no results of a graph or a branch."""
    path = written(tmp_path, GOOD + f"static = true\navoid = {quoted(['Identity', 'Reshape', *avoid])}\n")
    for place in ("main", "if"):
        case = Case(op, 14, T=1, lengths=(0, 0), lengths_as="initializer", optional=("sequence_lens",), place=place)
        refusal = holds(case, path)
        assert refusal is None or "does not support " in refusal
        if refusal is None:
            lowered = rnn_lower.lower(build(case)[0], target=path)
            results = {value.name for value in lowered.graph.output}
            assert not results & {tensor.name for tensor in lowered.graph.initializer}


@pytest.mark.parametrize(("avoid", "form"), [("Scan", "Loop"), ("Loop", "Scan")])
def test_a_form_whose_operator_is_not_taken_is_not_chosen(avoid, form, tmp_path):
    text = GOOD.replace('["unroll"]', '["scan", "loop"]').replace('"always"', "1")
    path = written(tmp_path, text + f'avoid = ["{avoid}"]\n')
    case = Case("GRU", 17, optional=("B",))
    assert holds(case, path) is None
    assert form in emitted(rnn_lower.lower(build(case)[0], target=path))
    with pytest.raises(rnn_lower.UnsupportedError, match=rf"has no equivalent for it; use form=.{form.lower()}.$"):
        rnn_lower.lower(build(case)[0], target=path, form=avoid.lower())


@pytest.mark.parametrize("feature", ["LSTM sequence_lens input", "GRU everything", "RNN ThresholdedRelu"])
def test_a_comparison_of_floats_only(feature, tmp_path):
    """Lengths are integers, so their masks do without it; an activation still has it."""
    path = written(
        tmp_path, GOOD + 'avoid = ["ThresholdedRelu", "Greater", "Where"]\nlimits.Less.types = ["FLOAT", "BOOL"]\n'
    )
    assert holds(FEATURES[feature], path) is None
    assert ("Less" in emitted(rnn_lower.lower(build(FEATURES[feature])[0], target=path))) == ("Relu" in feature)


@pytest.mark.parametrize("opset", [6, 7, 8])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_integers_before_opset_9_are_no_doubles(op, opset):
    """There a Constant holds no integers: they are cast from floats, and OpenCV has no double."""
    model, _ = build(Case(op, opset, T=3, N=2, direction="bidirectional", optional=("B",), weights="initializer"))
    model.ir_version = 3
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
        if tensor.name not in {value.name for value in model.graph.input}
    )
    lowered = rnn_lower.lower(model, target="opencv")
    assert rnn_lower.lint(lowered, "opencv").ok
    assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("rule", ['avoid = ["Cast"]', 'limits.Cast.types = ["FLOAT"]'])
def test_sizes_that_take_a_cast_before_opset_9(rule, tmp_path):
    """There a Constant holds no integers, so that a Reshape needs a Cast: refused by its rule, never an internal error."""
    text = GOOD.replace("[13, 17]", "[7, 17]") + f"static = true\nlimits.MatMul.ranks = [2, 2]\n{rule}\n"
    refusal = holds(Case("LSTM", 8, optional=("B",)), written(tmp_path, text))
    assert refusal is not None
    assert "does not support " in refusal


@pytest.mark.parametrize(("opset", "wanted"), [(22, 17), (11, 13), (15, 15)])
def test_the_opset_is_the_nearest_that_the_target_takes(opset, wanted, tmp_path, capsys):
    """Said on stderr, right, and nothing else has changed; the Python functions do the same."""
    model, feeds = build(Case("GRU", opset, optional=("B",)))
    onnx.save(model, tmp_path / "in.onnx")
    command = ["lower", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--target", "portable", "--check"]
    assert cli.main(command) == cli.DONE
    told = f"converted the model to opset {wanted}, the nearest opset that target portable supports"
    assert (told in capsys.readouterr().err) == (wanted != opset)
    lowered = rnn_lower.lower(model, target="portable")
    assert rnn_lower.prove(model, lowered).ok
    for other in (
        lowered,
        onnx.load(tmp_path / "out.onnx"),
        ir.to_proto(rnn_lower.lower(ir.from_proto(model), target="portable")),
    ):
        assert other.opset_import[0].version == wanted
        close(run_onnxruntime(other, feeds), expected(Case("GRU", opset, optional=("B",))))


@pytest.mark.parametrize("form", ["loop", "unroll"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_no_shader_gets_more_buffers_than_webgpu_guarantees(op, form):
    """With more, onnxruntime-web answers zeros."""
    case = Case(op, 17, "bidirectional", T=20, optional=("B", "sequence_lens"))
    model, feeds = build(case)
    lowered = rnn_lower.lower(model, target="onnxruntime-webgpu", form=form)
    assert not [node for node in every_node(lowered) if node.op_type == "Concat" and len(node.input) > 7]
    assert not [node for node in every_node(lowered) if node.op_type == "Split" and len(node.output) > 7]
    close(run_onnxruntime(lowered, feeds), expected(case))


@pytest.mark.parametrize("weights", ["input", "computed"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_no_vector_is_computed_with_on_opencv_4(op, weights):
    """There a computed vector is a column."""
    case = Case(op, 17, T=3, optional=("B", "P") if op == "LSTM" else ("B",), weights=weights)
    model, feeds = build(case)
    lowered = rnn_lower.lower(model, target="opencv@4")
    shapes = {
        value.name: value.type.tensor_type.shape
        for value in onnx.shape_inference.infer_shapes(lowered, data_prop=True).graph.value_info
    }
    arithmetic = [node for node in lowered.graph.node if node.op_type in ("Add", "Sub", "Mul", "Div", "Max", "Min")]
    assert arithmetic
    for node in arithmetic:
        assert all(len(shapes[name].dim) > 1 for name in (*node.input, *node.output) if name in shapes), node.name
    close(run_onnxruntime(lowered, feeds), expected(case))


@pytest.mark.parametrize("op", OPTIONAL)
@pytest.mark.parametrize(("target", "longest"), [(None, 1), ("onnxruntime", 3), ("tract", 1)])
def test_how_many_steps_are_unrolled(op, target, longest):
    for T in range(1, 6):
        (node,) = rnn_lower.inspect(build(Case(op, T=T))[0])
        assert find_target(target).choose_form(node, 14) == ("unroll" if longest >= T else "scan"), T
