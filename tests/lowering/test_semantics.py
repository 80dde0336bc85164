"""Every feature of the three operators, in every form, against the fused operator or the oracle."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from judge import agrees, close, every_node, expected, lowered, run_onnxruntime, run_reference
from onenode import GATES, OPTIONAL, OUTPUTS, Case, build

import rnn_lower

OPS = ("RNN", "GRU", "LSTM")
FORMS = ("scan", "loop", "unroll")
OPSETS = (7, 9, 11, 13, 14, 18, 22, 24)
DIRECTIONS = ("forward", "reverse", "bidirectional")


def forms_at(opset: int) -> list[str]:
    return [form for form in FORMS if form != "scan" or opset >= 9]


def optional_sets(op: str) -> list[tuple[str, ...]]:
    """None, each alone, all."""
    return [(), *((name,) for name in OPTIONAL[op]), OPTIONAL[op]]


def variants(op: str) -> list[dict]:
    extra = {"GRU": {"lbr": 1}, "LSTM": {"input_forget": 1}, "RNN": {"clip": 0.4}}[op]
    return [{}, extra]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", OPS)
def test_every_input_layout_variant_and_form(op, direction, opset):
    """Of two opsets that follow each other each takes every second one."""
    layouts = (0, 1) if opset >= 14 else (0,)
    all_of_them = list(itertools.product(layouts, variants(op), optional_sets(op)))
    for layout, variant, optional in all_of_them[OPSETS.index(opset) % 2 :: 2]:
        case = Case(op, opset, direction, optional=optional, layout=layout, **variant)
        wanted = expected(case)
        for form in forms_at(opset):
            model, feeds = lowered(case, form)
            close(run_onnxruntime(model, feeds), wanted)


ACTIVATIONS = {
    "Relu": [(None, None)],
    "Tanh": [(None, None)],
    "Sigmoid": [(None, None)],
    "Affine": [(None, None), ((0.7,), (0.1,))],
    "LeakyRelu": [(None, None), ((0.3,), None)],
    "ThresholdedRelu": [(None, None), ((0.2,), None)],
    "ScaledTanh": [(None, None), ((0.8,), (0.6,))],
    "HardSigmoid": [(None, None), ((0.3,), (0.4,))],
    "Elu": [(None, None), ((0.5,), None)],
    "Softsign": [(None, None)],
    "Softplus": [(None, None)],
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("op", OPS)
def test_every_activation_in_every_gate(op, name):
    defaults = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}[op]
    for gate, (i, (alpha, beta)) in itertools.product(range(len(defaults)), enumerate(ACTIVATIONS[name])):
        opset = (7, 13, 22)[(gate + i) % 3]
        activations = (*defaults[:gate], name, *defaults[gate + 1 :])
        case = Case(op, opset, activations=activations, alpha=alpha, beta=beta, optional=OPTIONAL[op])
        wanted = expected(case)
        for form in forms_at(opset):
            model, feeds = lowered(case, form)
            close(run_onnxruntime(model, feeds), wanted)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["double", "float16", "bfloat16"])
def test_every_activation_in_every_type(name, dtype):
    """In double the equations stand in for operators that onnxruntime has in float only."""
    alpha, beta = ACTIVATIONS[name][-1]
    opset = 22 if dtype == "bfloat16" else 14
    agrees(Case("RNN", opset, activations=(name,), alpha=alpha, beta=beta, dtype=dtype, optional=("B",)))


@pytest.mark.parametrize("opset", [7, 8, 10])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_in_double_at_old_opsets(name, opset):
    alpha, beta = ACTIVATIONS[name][-1]
    agrees(Case("RNN", opset, activations=(name,), alpha=alpha, beta=beta, dtype="double"), "loop")


def test_alpha_and_beta_are_queues_over_the_whole_node():
    """Only activations that have a parameter take one; what is left over is ignored; the default fills in."""
    names = ("HardSigmoid", "Tanh", "Relu", "Sigmoid", "LeakyRelu", "Elu")
    for alpha, beta in [((0.3, 0.2, 0.7), (0.4,)), ((0.3,), None), ((0.3, 0.1, 0.2, 9.0), (0.1, 9.0)), ((), ())]:
        case = Case("LSTM", 14, "bidirectional", activations=names, alpha=alpha, beta=beta, optional=("B",))
        for form in FORMS:
            agrees(case, form)


def test_names_of_activations_in_any_case_and_a_superfluous_one():
    agrees(Case("GRU", 14, activations=("sigmoid", "TANH")))
    agrees(Case("LSTM", 14, activations=("hArDsIgMoId", "tanh", "Relu")))
    agrees(Case("RNN", 14, activations=("Relu", "Tanh")))  # one direction, two names: the first counts


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("op", "clip"),
    [
        ("RNN", -1.0),
        ("RNN", 0.0),
        ("RNN", 0.05),
        ("GRU", 0.05),
        ("LSTM", 0.05),
        ("GRU", 1e9),
        ("GRU", 0.0),
        ("LSTM", 0.0),
    ],
)
def test_clip_edges(op, clip, form):
    for optional in ((), OPTIONAL[op]):
        for variant in variants(op):
            agrees(Case(op, 14, optional=optional, **{**variant, "clip": clip}), form)


def test_clip_of_zero_is_said_to_be_off():
    (node,) = rnn_lower.inspect(build(Case("LSTM", clip=0.0))[0])
    assert node.clip is None
    assert "attribute 'clip' is 0" in node.notes[0]


def test_the_cell_state_is_not_clipped():
    case = Case(
        "LSTM", 14, clip=0.01, T=20, optional=("initial_c",), activations=("Sigmoid", "Affine", "Tanh"), alpha=(9.0,)
    )
    agrees(case)
    assert np.abs(expected(case)[2]).max() > 0.01


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("lengths", [(0, 5), (0, 0), (5, 5), (1, 3), (2, 4), (5, 0)])
@pytest.mark.parametrize("op", OPS)
def test_length_edges(op, lengths, direction, form):
    for as_what in ("input", "initializer"):
        agrees(Case(op, 14, direction, optional=OPTIONAL[op], lengths=lengths, lengths_as=as_what), form)
    if form != "unroll":
        agrees(Case(op, 14, direction, optional=OPTIONAL[op], lengths=lengths, dynamic=True), form)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 14])
@pytest.mark.parametrize("lengths", [(0, 0), (5, 5), (0, 3)])
@pytest.mark.parametrize("op", OPS)
def test_lengths_that_are_constant(op, lengths, opset):
    """Whatever the opset says of operators, and inference therefore of their shapes."""
    case = Case(op, opset, optional=OPTIONAL[op], lengths=lengths, lengths_as="initializer")
    model, feeds = build(case)
    inputs = [value for value in model.graph.input if value.name != "sequence_lens"]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = 8  # nobody may give others
    feeds.pop("sequence_lens", None)
    for form in FORMS if opset >= 9 else ("loop", "unroll"):
        close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), expected(case))


def test_constant_full_lengths_need_no_mask():
    model, _ = lowered(Case("GRU", 14, optional=("sequence_lens",), lengths=(5,), lengths_as="initializer"))
    assert not [node for node in every_node(model) if node.op_type in ("Where", "Less")]


@pytest.mark.parametrize("form", FORMS)
def test_lengths_out_of_range_are_taken_as_0_and_as_all(form):
    model, feeds = lowered(Case("LSTM", 14, optional=("sequence_lens", "initial_h"), N=3), form)
    feeds["sequence_lens"] = np.array([-3, 9, 5], np.int32)
    wild = run_onnxruntime(model, feeds)
    feeds["sequence_lens"] = np.array([0, 5, 5], np.int32)
    close(wild, run_onnxruntime(model, feeds), 0, 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_no_steps(op, form):
    """Y is empty and the final state is the initial one; a Scan of unknown length is guarded for onnxruntime."""
    guard = {"target": "onnxruntime"} if form == "scan" else {}
    for direction, optional in itertools.product(DIRECTIONS, ((), ("B", "initial_h"), OPTIONAL[op])):
        agrees(Case(op, 14, direction, T=0, optional=optional), form)
        if form != "unroll" and (form, op) != ("scan", "RNN"):  # a guard would cost an RNN 10 % of its time
            agrees(Case(op, 14, direction, T=0, optional=optional, dynamic=True), form, **guard)
            agrees(Case(op, 18, direction, T=0, optional=optional, dynamic=True, layout=1), form, **guard)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_no_rows(op, form):
    for direction, optional in itertools.product(DIRECTIONS, ((), OPTIONAL[op])):
        agrees(Case(op, 14, direction, N=0, optional=optional), form)
        if form != "unroll":
            agrees(Case(op, 14, direction, N=0, optional=optional, dynamic=True), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_size_one(op, form):
    for sizes in ({"T": 1}, {"H": 1}, {"N": 1}, {"T": 1, "H": 1, "N": 1, "I": 1}):
        for optional, direction in itertools.product(((), OPTIONAL[op]), ("forward", "bidirectional")):
            agrees(Case(op, 14, direction, optional=optional, **sizes), form)


@pytest.mark.parametrize("op", OPS)
def test_every_subset_of_outputs(op):
    for count in range(len(OUTPUTS[op]) + 1):
        for outputs in itertools.combinations(OUTPUTS[op], count):
            for form in FORMS:
                case = Case(op, 14, "bidirectional", outputs=outputs, optional=OPTIONAL[op])
                agrees(case, form)


def test_nobody_uses_any_output():
    model, _ = lowered(Case("LSTM", outputs=()))
    assert [node.op_type for node in model.graph.node] == ["Identity"]
    assert not model.graph.initializer


def test_omitted_y_is_not_computed():
    model, _ = lowered(Case("LSTM", outputs=("Y_h",)), "scan")
    (node,) = [node for node in model.graph.node if node.op_type == "Scan"]
    assert len(node.output) == 2  # the two states


@pytest.mark.parametrize("dtype", ["float", "double", "float16", "bfloat16"])
@pytest.mark.parametrize("op", OPS)
def test_element_types(op, dtype):
    for form, layout in itertools.product(FORMS, (0, 1)):
        case = Case(
            op, 22 if dtype == "bfloat16" else 14, "bidirectional", optional=OPTIONAL[op], dtype=dtype, layout=layout
        )
        agrees(case, form)


@pytest.mark.parametrize("weights", ["initializer", "input", "constant", "computed", "moved"])
@pytest.mark.parametrize("place", ["main", "if", "loop", "function"])
@pytest.mark.parametrize("op", OPS)
def test_where_weights_come_from_and_where_the_node_is(op, place, weights):
    for dynamic, variant in zip((False, True), variants(op), strict=True):
        case = Case(
            op, 18, "bidirectional", optional=OPTIONAL[op], weights=weights, place=place, dynamic=dynamic, **variant
        )
        for form in ("scan", "loop") if dynamic else FORMS:
            if place == "function" and form == "unroll":
                continue  # a function declares no sizes
            agrees(case, form)


@pytest.mark.parametrize("op", OPS)
def test_hidden_size_missing(op):
    case = Case(op, 14, optional=OPTIONAL[op])
    wanted = expected(case)
    model, feeds = lowered(case.replace(hidden_size=False))
    close(run_onnxruntime(model, feeds), wanted)


@pytest.mark.parametrize("op", OPS)
def test_symbolic_sizes_run_at_several_sizes(op):
    for opset, form in ((8, "loop"), (9, "scan"), (11, "scan"), (14, "loop"), (22, "scan")):
        case = Case(op, opset, "bidirectional", optional=OPTIONAL[op], dynamic=True)
        model, _ = lowered(case, form)
        for T, N in ((1, 1), (7, 3), (2, 5)):
            other = case.replace(T=T, N=N)
            close(run_onnxruntime(model, build(other)[1]), expected(other))


def test_nan_and_inf_before_an_activation_propagate():
    for op, form in itertools.product(OPS, FORMS):
        model, feeds = lowered(Case(op, 14, optional=("initial_h",)), form)
        feeds["X"][2, 0, 0] = np.nan
        results = run_onnxruntime(model, feeds)
        oracle = run_reference(build(Case(op, 14, optional=("initial_h",)))[0], feeds)
        close(results, oracle)
        assert np.isnan(results[0]).any()


# -- the size of what is emitted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("case", "limit"),
    [
        (Case("LSTM"), 9),
        (Case("LSTM", activations=("Tanh",) * 3), 8),
        (Case("GRU", lbr=0), 8),
        (Case("GRU", lbr=1), 10),
        (Case("RNN"), 2),
    ],
    ids=["LSTM", "LSTM of one activation", "GRU", "GRU lbr", "RNN"],
)
def test_onnxruntime_fuses_the_step(case, limit, dynamic, tmp_path):
    """Product, sum and activation become one node, also when the sizes are symbolic."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4  # that such a model is for this machine only
    model = rnn_lower.lower(build(case.replace(optional=("B",), dynamic=dynamic))[0], form="scan", target="onnxruntime")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    (scan,) = [node for node in every_node(onnx.load(tmp_path / "optimized.onnx")) if node.op_type == "Scan"]
    (body,) = [attribute.g for attribute in scan.attribute if attribute.name == "body"]
    assert len(body.node) <= limit
    (original,) = [node for node in every_node(model) if node.op_type == "Scan"]
    (body,) = [attribute.g for attribute in original.attribute if attribute.name == "body"]
    for value in (*body.input, *body.output):  # tract does not unify names in bodies
        assert not [dim.dim_param for dim in value.type.tensor_type.shape.dim if dim.dim_param]


def test_one_projection_for_all_steps():
    model, _ = lowered(Case("LSTM", optional=("B",)), "unroll")
    products = [node.op_type for node in model.graph.node].count("MatMul")
    assert products == 1 + 4  # one for the projection, and no recurrent product in the first of five steps


def test_each_direction_has_a_scan_of_its_own():
    model, _ = lowered(Case("GRU", 14, "bidirectional"), "scan")
    assert [node.op_type for node in model.graph.node].count("Scan") == 2


def test_a_weight_shared_by_two_nodes_is_stored_once():
    model, _ = build(Case("LSTM"))
    second = onnx.NodeProto()
    second.CopyFrom(model.graph.node[0])
    second.name, second.output[:] = "second", ["Y2", "Y2_h", "Y2_c"]
    model.graph.node.append(second)
    model.graph.output.append(onnx.helper.make_tensor_value_info("Y2", 1, None))
    result = rnn_lower.lower(model)
    large = [tensor.name for tensor in result.graph.initializer if len(tensor.dims) == 2 and min(tensor.dims) > 2]
    assert len(large) == 2  # W and R
    assert len(GATES) == 3


@pytest.mark.parametrize("opset", [7, 10, 22])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_thresholded_relu_at_its_threshold(dtype, opset):
    """x = alpha gives 0: W is the identity and X holds the threshold itself."""
    case = Case("RNN", opset, T=1, N=1, I=4, H=4, activations=("ThresholdedRelu",), alpha=(0.5,), dtype=dtype)
    model, feeds = lowered(case.replace(weights="input"))
    feeds["W"][:] = np.eye(4)
    feeds["X"][:] = [[[0.5, 0.25, 0.75, np.nextafter(feeds["X"].dtype.type(0.5), feeds["X"].dtype.type(1))]]]
    wanted = run_reference(build(case.replace(weights="input"))[0], feeds)
    results = run_onnxruntime(model, feeds)
    close(results, wanted, 0, 0)
    assert results[0].ravel()[0] == 0
    assert results[0].ravel()[3] > 0.5


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_softplus_far_out(dtype):
    case = Case("RNN", 14, T=1, N=1, I=4, H=4, activations=("Softplus",), dtype=dtype, weights="input")
    model, feeds = lowered(case)
    feeds["W"][:] = np.eye(4)
    feeds["X"][:] = [[[300, 80, -20, 0]]]
    (y, _) = run_onnxruntime(model, feeds)
    np.testing.assert_allclose(y.ravel(), [300, 80, np.exp(-20), np.log(2)], rtol=1e-5)


@pytest.mark.parametrize("opset", [7, 8, 11, 12, 14])
@pytest.mark.parametrize("limit", [0.3, 50.0, 1e5, 1e30])
@pytest.mark.parametrize("op", ["RNN", "LSTM"])
def test_clip_loses_no_digits(op, limit, opset):
    """A wide bound in double: what lies far below it comes through unrounded."""
    case = Case(op, opset, dtype="double", clip=limit, optional=("B",))
    close(run_onnxruntime(lowered(case)[0], build(case)[1]), expected(case), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("opset", [7, 8, 11, 12])
def test_clip_of_what_is_not_finite(opset):
    model, feeds = lowered(Case("RNN", opset, dtype="double", activations=("Relu",), clip=2.0, T=1, N=1, I=1))
    for number in (np.inf, -np.inf, 1e300):
        feeds["X"][:] = number
        assert set(run_onnxruntime(model, feeds)[0].ravel()) == {0.0, 2.0}


def test_loop_without_steps_and_with_an_unknown_batch():
    for op in OPTIONAL:
        model, _ = build(Case(op, 14, T=0, optional=OPTIONAL[op], dynamic=True))
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
        for form in ("loop", "scan", "unroll"):
            result = rnn_lower.lower(model, form=form)
            for batch in (1, 3):
                feeds = build(Case(op, 14, T=0, N=batch, optional=OPTIONAL[op]))[1]
                y, *states = run_onnxruntime(result, feeds)
                assert y.shape == (0, 1, batch, 4)
                assert {state.shape for state in states} == {(1, batch, 4)}


def test_weights_that_are_not_finite_are_folded_quietly(recwarn):
    model, feeds = build(Case("GRU", 14, optional=("B",)))
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "B")
    values = onnx.numpy_helper.to_array(bias).copy()
    values[0, 0], values[0, 12] = np.inf, -np.inf
    bias.CopyFrom(onnx.numpy_helper.from_array(values, "B"))
    result = rnn_lower.lower(model)
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]
    assert np.isnan(run_onnxruntime(result, feeds)[1]).any()
