"""Faults that exact arithmetic cannot show, because only floats have them, and sizes that exact cases do not reach."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import marked, proved_as_wholes, run_onnxruntime
from onenode import Case, build
from onnx import helper, numpy_helper

import rnn_lower
from rnn_lower.proving import float_run
from rnn_lower.transforms.evaluate import evaluator

FORMS = ("scan", "loop", "unroll")
Nodes = list[tuple[str, list[str]]]


def changed_behind(lowered: onnx.ModelProto, nodes: Nodes, **constants: object) -> None:
    """Insert marked nodes between the computation of Y, now called "before", and Y."""
    producer = next(node for node in lowered.graph.node if "Y" in node.output)
    producer.output[list(producer.output).index("Y")] = "before"
    tensors = (numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    lowered.graph.initializer.extend(tensors)
    names = [f"changed{index}" for index in range(len(nodes) - 1)] + ["Y"]
    lowered.graph.node.extend(marked(op, inputs, [name]) for (op, inputs), name in zip(nodes, names, strict=True))


def through(*nodes: tuple[str, str]) -> Nodes:
    """A chain behind Y: operators with their second operands; "again" repeats the first operand."""
    names = ["before", *(f"changed{index}" for index in range(len(nodes) - 1))]
    return [(op, [x, x if other == "again" else other]) for x, (op, other) in zip(names, nodes, strict=True)]


FIRST = [("Reshape", ["X", "flat"]), ("Slice", ["changed0", "start", "end"])]
"""The first number of X, as changed1."""

NUMBERS = {
    "overflow": (through(*[("Add", "again")] * 140, *[("Mul", "half")] * 140), {"half": np.float32(0.5)}),
    "overflow of products": (
        through(*[("Mul", "large")] * 2, *[("Div", "large")] * 2), {"large": np.float32(1e30)},
    ),
    "lost digits": (through(("Add", "large"), ("Sub", "large")), {"large": np.float32(1e9)}),
    "lost digits behind a computed number": (
        [*FIRST, ("Mul", ["changed1", "k"]), ("Mul", ["changed2", "k"]), ("Mul", ["changed3", "k"]),
         ("Mul", ["changed4", "k"]), ("Add", ["before", "changed5"]), ("Sub", ["changed6", "changed5"])],
        {"flat": [-1], "start": [0], "end": [1], "k": np.float32(1000)},
    ),
    "0 / 0": (
        [*FIRST, ("Mul", ["before", "changed1"]), ("Div", ["changed2", "changed1"])],
        {"flat": [-1], "start": [0], "end": [1]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", NUMBERS)
@pytest.mark.parametrize("whole", [False, True])
def test_what_only_floats_show_is_not_proved(how, form, whole):
    model, feeds = build(Case("LSTM", 17, T=5, N=2, outputs=("Y",)))
    lowered = rnn_lower.lower(model, form=form)
    assert rnn_lower.prove(model, lowered).ok
    nodes, constants = NUMBERS[how]
    changed_behind(lowered, nodes, **constants)
    feeds["X"][0, 0, 0] = 0 if how == "0 / 0" else 0.5
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert not np.allclose(wanted, actual, atol=1e-3)
    prove = proved_as_wholes if whole else rnn_lower.prove
    assert not prove(model, lowered).ok


@pytest.mark.parametrize("nodes", [through(("Add", "inf"), ("Sub", "inf")), [("Mul", ["inf", "zero"]), ("Add", ["before", "changed0"])]])  # fmt: skip
def test_infinities_of_the_node_are_no_license(nodes):
    model, feeds = build(Case("LSTM", 17, T=5, N=2, optional=("B",), outputs=("Y",)))
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "B")
    numbers = numpy_helper.to_array(bias).copy()
    numbers[0, 0] = -np.inf
    bias.CopyFrom(numpy_helper.from_array(numbers, "B"))
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    changed_behind(lowered, nodes, inf=np.float32(-np.inf), zero=np.float32(0))
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.isfinite(wanted).all()
    assert not np.isfinite(actual).all()
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("whole", [False, True])
def test_one_large_unit_hides_no_lost_digits_of_the_others(whole):
    model, feeds = build(Case("RNN", 17, T=5, N=2, H=8, activations=("Relu",), outputs=("Y",)))
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    changed = {name: numpy_helper.to_array(weights[name]).copy() for name in ("W", "R")}
    changed["W"][0, 0] *= 1e7
    changed["R"][0, :, 0] = changed["R"][0, 0] = 0
    for name, array in changed.items():
        weights[name].CopyFrom(numpy_helper.from_array(array, name))
    lowered = rnn_lower.lower(model)
    prove = proved_as_wholes if whole else rnn_lower.prove
    assert prove(model, lowered).ok
    offset = np.array([0] + [1e7] * 7, np.float32)
    changed_behind(lowered, through(("Add", "offset"), ("Sub", "offset")), offset=offset)
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.abs(wanted - actual)[..., 1:].max() > 0.1
    assert not prove(model, lowered).ok


def test_large_constants_of_the_node_are_no_license():
    model, _ = build(Case("LSTM", 17, T=5, N=2, clip=1e30, outputs=("Y",)))
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    changed_behind(lowered, through(("Add", "limit"), ("Sub", "limit")), limit=np.float32(1e30))
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("scale", [100.0, 1e-20, 1e30])
def test_weights_of_any_magnitude_are_proved(op, scale):
    model, _ = build(Case(op, 17, T=5, N=2, optional=("B", "initial_h")))
    for tensor in model.graph.initializer:
        if tensor.name in ("W", "R", "B"):
            numbers = numpy_helper.to_array(tensor) * np.float32(scale)
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    for form in FORMS:
        assert rnn_lower.prove(model, rnn_lower.lower(model, form=form)).ok


def test_a_length_is_not_compared_with_other_sizes():
    """The number that is compared is 16 times the size of the input, beyond all lengths that are tried."""
    model, feeds = build(Case("LSTM", 17, T=60, N=2, outputs=("Y",), dynamic=True))
    lowered = rnn_lower.lower(model)
    doubling = [("Add", [f"changed{k}", f"changed{k}"]) for k in range(2, 6)]
    sizes = [("Shape", ["X"]), ("Gather", ["changed0", "time"]), ("Gather", ["changed0", "features"]), *doubling]
    rest = [("Less", ["changed6", "changed1"]), ("Neg", ["before"]), ("Where", ["changed7", "changed8", "before"])]
    changed_behind(lowered, [*sizes, *rest], time=[0], features=[2])
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.allclose(wanted, -actual, atol=1e-5)
    assert not rnn_lower.prove(model, lowered).ok


def body_of(model: onnx.ModelProto) -> onnx.GraphProto:
    bodies = (each.g for node in model.graph.node for each in node.attribute if each.name == "body")
    return next(bodies)


def unsorted(model: onnx.ModelProto) -> None:
    nodes = list(body_of(model).node)
    del body_of(model).node[:]
    body_of(model).node.extend(nodes[::-1])


def narrow_trip_count(model: onnx.ModelProto) -> None:
    infos = [helper.make_tensor_value_info(*each) for each in (("i", 7, []), ("c0", 9, []), ("h0", 1, None))]
    results = [helper.make_tensor_value_info(*each) for each in (("c1", 9, []), ("h1", 1, None))]
    nodes = [marked("Identity", ["c0"], ["c1"]), marked("Identity", ["h0"], ["h1"])]
    changed_behind(model, [("Loop", ["trips", "true", "before"])], trips=np.array(1, np.int32), true=True)
    model.graph.node[-1].attribute.append(helper.make_attribute("body", helper.make_graph(nodes, "b", infos, results)))


@pytest.mark.parametrize("change", [unsorted, narrow_trip_count])
def test_an_unsorted_original_is_no_license(change):
    """The checker rejects the original, so its verdict about the lowered model says nothing."""
    model, _ = build(Case("LSTM", 17, T=5, N=2, outputs=("Y",)))
    model.graph.node.insert(0, helper.make_node("Relu", ["Y"], ["Z"]))
    model.graph.output.append(helper.make_tensor_value_info("Z", 1, [None] * 4))
    lowered = rnn_lower.lower(model, form="scan")
    assert rnn_lower.prove(model, lowered).ok
    change(lowered)
    assert not rnn_lower.prove(model, lowered).ok


def negative_in_body(model: onnx.ModelProto) -> None:
    shape = body_of(model).output[0].type.tensor_type.shape
    del shape.dim[:]
    shape.dim.add(dim_value=-3)


def negative(model: onnx.ModelProto) -> None:
    name = next(node.output[0] for node in model.graph.node if node.op_type == "MatMul")
    model.graph.value_info.append(helper.make_tensor_value_info(name, 1, [-4, -5, -6]))


def one_symbol_for_two_sizes(model: onnx.ModelProto) -> None:
    name = next(node.output[0] for node in model.graph.node if node.op_type == "MatMul")
    del model.graph.value_info[:]
    model.graph.value_info.append(helper.make_tensor_value_info(name, 1, ["other", None, "other"]))


@pytest.mark.parametrize("change", [negative_in_body, negative, one_symbol_for_two_sizes])
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_nothing_confirms_are_not_proved(change, dynamic):
    model, _ = build(Case("LSTM", 17, T=5, N=2, outputs=("Y",), dynamic=dynamic))
    lowered = rnn_lower.lower(model, form="scan")
    assert rnn_lower.prove(model, lowered).ok
    change(lowered)
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_batch_first_functions_below_opset_14(op, form):
    """At opset 11 there is no layout; the sizes of the unrolled node were those of the other axis."""
    model, _ = build(Case(op, 14, T=4, N=3, layout=1, optional=("sequence_lens",), place="function"))
    lowered = rnn_lower.lower(model, form=form, opset=11)
    assert rnn_lower.check(model, lowered).ok
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_input_of_unknown_type_has_that_of_the_weights(dtype):
    """In a function nothing declares the type of a computed value."""
    weights = [(name, np.linspace(-1, 1, 4).reshape(1, 2, 2).astype(dtype)) for name in ("W", "R")]
    body = [helper.make_node("Constant", [], [name], value=numpy_helper.from_array(w)) for name, w in weights]
    body += [helper.make_node("Neg", ["X"], ["x"]), helper.make_node("RNN", ["x", "W", "R"], ["Y"], hidden_size=2)]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Encoder", ["X"], ["Y"], body, imports[:1])
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = (helper.make_tensor_value_info(name, kind, None) for name in "XY")
    graph = helper.make_graph([helper.make_node("Encoder", ["X"], ["Y"], domain="own")], "graph", [x], [y])
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=9)
    assert rnn_lower.prove(model, rnn_lower.lower(model)).ok


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("place", ["main", "if", "loop"])
def test_folded_batch_first_models_below_opset_14(op, place):
    """onnx's strict inference ignores the layout there, and contradicts what the model declares."""
    model, _ = build(Case(op, 14, T=4, N=3, layout=1, outputs=("Y", "Y_h"), place=place))
    assert rnn_lower.prove(model, rnn_lower.lower(model, fold=True, opset=11)).ok


def in_a_loop(case: Case) -> onnx.ModelProto:
    """The node with constant states in a Loop of two steps, of which the first result is the output."""
    model, feeds = build(case)
    for value in [value for value in model.graph.input if value.name.startswith("initial")]:
        model.graph.input.remove(value)
        model.graph.initializer.append(numpy_helper.from_array(feeds[value.name], value.name))
    (node,) = model.graph.node
    node.output[0] = "y"
    results = [helper.make_tensor_value_info("on", 9, []), helper.make_tensor_value_info("y", 1, None)]
    going = [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("go", 9, [])]
    body = helper.make_graph([helper.make_node("Identity", ["go"], ["on"]), node], "body", going, results)
    loop = helper.make_node("Loop", ["trips", "true"], ["ys"], body=body)
    del model.graph.node[:]
    model.graph.node.extend([loop, helper.make_node("Gather", ["ys", "zero"], ["Y"])])
    for name, value in (("trips", np.array(2)), ("true", np.array(True)), ("zero", np.array(0))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("form", FORMS)
def test_constant_states_are_multiplied_exactly_on_both_sides(op, form):
    """A whole model rounds what constants alone determine, but the equations of a recurrent node do not."""
    states = ("initial_h", "initial_c", "P") if op == "LSTM" else ("initial_h",)
    case = Case(op, 13, T=2, N=1, outputs=("Y",), optional=("B", *states))
    model = in_a_loop(case)
    assert rnn_lower.prove(model, rnn_lower.lower(model, loops=True, form=form)).ok


def test_masks_made_of_floats_are_proved_in_whole_models():
    """Large lengths have no sign in a finite field, so they are no evidence of a difference."""
    case = Case("LSTM", 14, T=5, N=1, outputs=("Y",), optional=("sequence_lens",), lengths_as="input")
    model = in_a_loop(case)
    assert rnn_lower.prove(model, rnn_lower.lower(model, loops=True, target="opencv@classic")).ok


@pytest.mark.parametrize("axes", [(0, 0), (1, 2), (-1, 0)])
@pytest.mark.parametrize("back", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_the_reference_runs_any_scan(axes, back):
    """onnx's own evaluator supports only forward directions and axis 0."""
    infos = [helper.make_tensor_value_info(name, 1, [4, 4]) for name in ("h", "x", "new", "y")]
    nodes = [helper.make_node("Add", ["h", "x"], ["new"]), helper.make_node("Mul", ["new", "factor"], ["y"])]
    body = helper.make_graph(nodes, "body", infos[:2], infos[2:])
    scan = helper.make_node(
        "Scan", ["start", "X"], ["last", "Y"], body=body, num_scan_inputs=1, scan_input_axes=[axes[0]],
        scan_output_axes=[axes[1]], scan_input_directions=[back[0]], scan_output_directions=[back[1]],
    )  # fmt: skip
    ends = [helper.make_tensor_value_info(name, 1, None) for name in ("start", "X", "last", "Y")]
    factor = numpy_helper.from_array(np.float32(3), "factor")
    graph = helper.make_graph([scan], "g", ends[:2], ends[2:], [factor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"start": np.zeros((4, 4), np.float32), "X": np.random.default_rng(0).normal(size=(4, 4, 4)).astype("f")}
    for wanted, actual in zip(run_onnxruntime(model, feeds), evaluator(model).run(None, feeds), strict=True):
        assert np.allclose(wanted, actual, atol=1e-6)


@pytest.mark.parametrize(("rounded", "text"), [(-4e17, ""), (1e-3, float_run.NOT_FINITE)])
def test_a_half_float_may_overflow_where_a_float_does_not(rounded, text):
    actual = np.array([1, -np.inf], np.float16)
    found = float_run.difference(actual, np.array([1.0, 0.0]), np.array([1, rounded], np.float32))
    assert found == text


OVERFLOWING = (
    (Case("GRU", 23, "bidirectional", T=5, N=2, I=1, H=8, optional=("B", "initial_h"), activations=("Softplus", "LeakyRelu", "Affine", "LeakyRelu"),
          alpha=(0.1, 1.0, 0.1), beta=(0.5,), seed=338, dtype="float16", weights="constant"), "scan"),
    (Case("LSTM", 7, "forward", T=1, N=1, I=7, H=2, optional=("sequence_lens", "initial_c", "P"), activations=("LeakyRelu", "Affine", "Affine"),
          beta=(1.0, 0.75, 1.0, 0.75, 0.5, 1.0, 0.5), input_forget=1, seed=465, weights="moved", dynamic=True), "loop"),
)  # fmt: skip
"""Nodes whose states overflow: beyond the largest float16, or where a mask of 0 and 1 multiplies them."""


@pytest.mark.parametrize(("case", "form"), OVERFLOWING)
def test_nodes_that_overflow_are_proved(case, form):
    model, _ = build(case)
    proof = rnn_lower.prove(model, rnn_lower.lower(model, form=form))
    assert proof.ok, proof.nodes
