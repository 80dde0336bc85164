"""Inputs that models take: sizes that are tied, that have worked before, or that have to be long."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from judge import proved_as_wholes
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.checking import samples

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
H = 3


def unnamed(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.ClearField("dim_param")
    return model


@pytest.mark.parametrize("weights", ["initializer", "input"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_sizes_that_the_operator_ties_are_the_same(op, weights):
    """No input has a name in common with another; the first set of inputs has to fit all the same."""
    case = Case(op, 17, "bidirectional", dynamic=True, optional=("sequence_lens", "initial_h"), weights=weights)
    model = unnamed(build(case)[0])
    sampled = samples.Samples(ir.from_proto(model))
    for index in range(3):
        shapes = {name: array.shape for name, array in next(sampled.candidates(index)).items()}
        batch = shapes["X"][1]
        assert shapes["sequence_lens"] == (batch,)
        assert shapes["initial_h"][1] == batch
        assert rnn_lower.check(model, rnn_lower.lower(model), runs=index + 1).ok


def sound(shortest: int) -> onnx.ModelProto:
    """A model that takes sound of at least so many samples, with a state of its own."""
    weights = [("kernel", (H, 1, shortest)), ("W", (1, 4 * H, H)), ("R", (1, 4 * H, H))]
    tensors = [
        numpy_helper.from_array(np.random.default_rng(1).normal(size=s).astype(np.float32) * 0.1, n) for n, s in weights
    ]
    nodes = [
        helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.array([1]))),
        helper.make_node("Unsqueeze", ["sound", "one"], ["channel"]),
        helper.make_node("Conv", ["channel", "kernel"], ["frames"], strides=[shortest // 2]),
        helper.make_node("Transpose", ["frames"], ["x"], perm=[2, 0, 1]),
        helper.make_node("LSTM", ["x", "W", "R", "", "", "h"], ["", "Y_h"], hidden_size=H, name="lstm"),
    ]
    inputs = [
        helper.make_tensor_value_info("sound", FLOAT, [None, None]),
        helper.make_tensor_value_info("h", FLOAT, [1, None, H]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("Y_h", FLOAT, None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("shortest", [2, 40, 512, 4000, 15000])
def test_sound_may_have_to_be_long(shortest):
    model = sound(shortest)
    report = rnn_lower.check(model, rnn_lower.lower(model))
    assert (report.ok, report.runs) == (True, 3)


def test_frames_may_have_to_be_many():
    """Their axis is the last free one, and none of a batch that is free as well."""
    model = sound(40)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    size = helper.make_node("Constant", [], ["size"], value=numpy_helper.from_array(np.array([0, -1])))
    model.graph.node.extend([size, helper.make_node("Reshape", ["spectrum", "size"], ["sound"]), *nodes])
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("spectrum", FLOAT, [None, "frames", 2]))
    report = rnn_lower.check(model, rnn_lower.lower(model))
    assert (report.ok, report.runs) == (True, 3)


def test_initial_states_are_no_larger_than_what_a_closed_gate_holds_back():
    """Through whatever only moves them: Slice and Squeeze of one input for both states."""
    model = build(Case("LSTM", 17, optional=("initial_h", "initial_c")))[0]
    weights = [numpy_helper.from_array(np.array([k]), f"k{k}") for k in range(3)]
    model.graph.initializer.extend(weights)
    states = [v for v in model.graph.input if v.name.startswith("initial")]
    shape = [2, *[dim.dim_value for dim in states[0].type.tensor_type.shape.dim]]
    for value in states:
        model.graph.input.remove(value)
    model.graph.input.append(helper.make_tensor_value_info("states", FLOAT, shape))
    for k, value in enumerate(states):
        model.graph.node.insert(0, helper.make_node("Squeeze", [f"part{k}", "k0"], [value.name]))
        model.graph.node.insert(0, helper.make_node("Slice", ["states", f"k{k}", f"k{k + 1}", "k0"], [f"part{k}"]))
    sampled = samples.Samples(ir.from_proto(model))
    drawn = [next(sampled.candidates(index)) for index in range(3)]
    assert max(np.abs(feeds["X"]).max() for feeds in drawn) > samples.LARGEST_STATE
    assert max(np.abs(feeds["states"]).max() for feeds in drawn) <= samples.LARGEST_STATE


def test_sizes_that_worked_are_kept():
    """They come right after sizes of the run's own, so later runs do not search again."""
    model = sound(512)
    sampled = samples.Samples(ir.from_proto(model))
    feeds = {"sound": np.zeros((1, 700), np.float32), "h": np.zeros((1, 1, H), np.float32)}
    sampled.keep(feeds)
    again = [
        {name: array.shape for name, array in found.items()}
        for _, found in zip(range(2), sampled.candidates(1), strict=False)
    ]
    assert {name: array.shape for name, array in feeds.items()} in again


FEATURES = 162  # a size that no guess finds

REQUIRING = {
    "MatMul": ([], ["features", "matrix"]), "Add": ([], ["features", "row"]),
    "Reshape": ([], ["features", "sizes"]),
    "Gemm": ([helper.make_node("Squeeze", ["features", "zero"], ["rows"])], ["rows", "turned", "row"]),
    "Conv": ([helper.make_node("Transpose", ["features"], ["channels"], perm=[0, 2, 1])], ["channels", "kernel"]),
    "LSTM": ([helper.make_node("Identity", ["features"], ["x"])], ["x", "W", "R"]),
}  # fmt: skip
"""By operator that requires the number of features: the nodes before it, and what it reads."""


@pytest.mark.parametrize("name", ["features", None])
@pytest.mark.parametrize("op", REQUIRING)
def test_sizes_that_weights_require(op, name):
    """Exporters leave the number of features open, although only one fits the weights of the first layer."""
    before, read = REQUIRING[op]
    shapes = {"matrix": (FEATURES, 5), "row": (1, FEATURES), "turned": (FEATURES, FEATURES), "kernel": (4, 81, 3),
              "W": (1, 4 * H, FEATURES), "R": (1, 4 * H, H)}  # fmt: skip
    weights = [numpy_helper.from_array(np.full(shape, 0.01, np.float32), n) for n, shape in shapes.items()]
    weights.append(numpy_helper.from_array(np.array([0]), "zero"))
    weights.append(numpy_helper.from_array(np.array([FEATURES, 4]), "sizes"))
    attributes = {"LSTM": {"hidden_size": H}, "Conv": {"group": 2}, "Gemm": {"transB": 1}}.get(op, {})
    output = helper.make_tensor_value_info("y", FLOAT, None)
    inputs = [helper.make_tensor_value_info("features", FLOAT, [1, 4 if op == "Reshape" else "T", name])]
    graph = helper.make_graph(
        [*before, helper.make_node(op, read, ["y"], **attributes)], "g", inputs, [output], weights
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    shape = next(samples.Samples(ir.from_proto(model)).candidates(0))["features"].shape
    assert shape[-1] == FEATURES or (op == "Add" and shape[-1] == 1)


def test_sizes_that_an_exporter_wrote_into_a_reshape():
    """A model whose sizes were integers when it was exported runs with no others."""
    sizes = [("rows", (24, H)), ("back", (2, 12, H))]
    weights = [numpy_helper.from_array(np.array(numbers), name) for name, numbers in sizes]
    nodes = [helper.make_node("Reshape", ["x", "rows"], ["flat"]), helper.make_node("Reshape", ["flat", "back"], ["y"])]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, FLOAT, ["batch", "time", H])] for name in ("x", "y")
    )  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert rnn_lower.check(model, model).ok


@pytest.mark.parametrize("shape", ["0, 9, 6", "-1, 9, 6", "0, 9, -1"])
def test_sizes_of_a_reshape_behind_another_node(shape):
    """As torch.export writes view(batch, time, -1), although the input declares both sizes as free."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> main (float[B,T,3,4] x) => (float[C,S,6] y)
        <int64[3] shape = {{{shape}}}, int64[3] again = {{0, 9, 6}}> {{
            p = MaxPool <kernel_shape = [1, 2], strides = [1, 2]> (x) r = Reshape (p, shape) y = Reshape (r, again) }}""")
    assert rnn_lower.check(model, model).ok


def test_a_size_of_1_that_is_broadcast_is_sampled_as_well():
    """A sum and 5 means are the same for 5 elements, and not for the one that a row of 5 may be added to."""
    models = [
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
            main (float[N] x) => (float[M] z) <float[5] row = {{1, 2, 3, 4, 5}}, float factor = {{{factor}}}> {{
                sum = Add (x, row) one = {op} (x) more = Mul (one, factor) z = Add (sum, more)
            }}""")
        for op, factor in (("ReduceSum", "1.0"), ("ReduceMean", "5.0"))
    ]  # fmt: skip
    sampled = samples.Samples(ir.from_proto(models[0]))
    assert {next(sampled.candidates(index))["x"].shape for index in range(12)} == {(5,), (1,)}
    assert not rnn_lower.check(*models, runs=12).ok
    assert not proved_as_wholes(*models).ok


def test_an_operator_of_another_domain_requires_nothing():
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["x", "row"], ["y"], domain="own")], "g",
            [helper.make_tensor_value_info("x", FLOAT, ["N"])], [helper.make_tensor_value_info("y", FLOAT, None)],
            [numpy_helper.from_array(np.ones(FEATURES, np.float32), "row")],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)], ir_version=8,
    )  # fmt: skip
    assert next(samples.Samples(ir.from_proto(model)).candidates(0))["x"].shape != (FEATURES,)


@pytest.mark.parametrize("size", ["s0**9**9**9", "Mod(s0, s0 - 3)", "(" * 3000 + "s0+1" + ")" * 3000])
def test_an_expression_that_has_no_number_is_a_name(size):
    model = upsampled()
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = size
    assert next(samples.Samples(ir.from_proto(model)).candidates(0))["sound"].shape[1] > 0
    assert rnn_lower.lower(model, dims={"s0": 3}).graph.input[1].type.tensor_type.shape.dim[1].dim_param == size


def upsampled() -> onnx.ModelProto:
    """A vocoder: frames [1, s0, H] repeated twice, and added to samples [1, 2*s0]."""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        main (float[1, s0, {H}] frames, float[1, "2*s0"] sound) => (float[t, 1, 1, {H}] y)
        <int64[2] shape = {{-1, {H}}}, int64[4] twice = {{1, 1, 2, 1}}, int64[1] two = {{2}}, int64[1] one = {{1}}> {{
            wide = Unsqueeze (frames, two) again = Tile (wide, twice) rows = Reshape (again, shape)
            x = Unsqueeze (rows, one) column = Transpose (sound) added = Unsqueeze (column, two)
            sum = Add (x, added) y = RNN <hidden_size = {H}> (sum, W, R)
        }}""".replace('"2*s0"', "s1")
    model = onnx.parser.parse_model(text)
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "2*s0"
    model.graph.initializer.extend(numpy_helper.from_array(np.ones((1, H, H), np.float32) / 3, name) for name in "WR")
    return model


def test_a_size_that_is_an_expression_of_another_one():
    """As torch.export writes them; sizes on their own would not fit each other."""
    model = upsampled()
    for index in range(3):
        feeds = next(samples.Samples(ir.from_proto(model)).candidates(index))
        assert feeds["sound"].shape[1] == 2 * feeds["frames"].shape[1]
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok
    assert rnn_lower.prove(model, rnn_lower.lower(model, fold=True)).ok
    lowered = rnn_lower.lower(model, dims={"s0": 5})
    assert [dim.dim_value for dim in lowered.graph.input[1].type.tensor_type.shape.dim] == [1, 10]


def test_an_expression_that_a_weight_requires_is_solved():
    """As where an exporter fixed the number of samples, but not of frames."""
    model = upsampled()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(14, np.float32), "gain"))
    model.graph.node.insert(0, helper.make_node("Mul", ["sound", "gain"], ["louder"]))
    next(node for node in model.graph.node if node.output[0] == "column").input[0] = "louder"
    feeds = next(samples.Samples(ir.from_proto(model)).candidates(0))
    assert (feeds["frames"].shape[1], feeds["sound"].shape[1]) == (7, 14)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_inputs_without_a_shape(rank):
    """The rank comes from what takes the input, or is tried."""
    weights = [numpy_helper.from_array(np.ones((1, H, k), np.float32) / 3, n) for n, k in (("W", 1), ("R", H))]
    order = helper.make_node("Transpose", ["any"], ["turned"], perm=list(range(rank))[::-1])
    shape = helper.make_node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array([-1, 1, 1])))
    nodes = [order, shape, helper.make_node("Reshape", ["turned", "shape"], ["x"])]
    nodes.append(helper.make_node("RNN", ["x", "W", "R"], ["Y"], hidden_size=H, name="rnn"))
    inputs = [helper.make_tensor_value_info("any", FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("Y", FLOAT, None)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok
    direct = build(Case("GRU", 17))[0]
    direct.graph.input[0].type.tensor_type.ClearField("shape")
    assert rnn_lower.check(direct, rnn_lower.lower(direct)).ok


def with_defaults() -> onnx.ModelProto:
    """Weights and a state that a caller may give, and need not."""
    model = build(Case("LSTM", 17, optional=("initial_h",), weights="input"))[0]
    rng = np.random.default_rng(3)
    for value in (value for value in model.graph.input if value.name != "X"):
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = np.zeros(shape) if value.name == "initial_h" else rng.uniform(-1, 1, shape)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), value.name))
    return model


@pytest.mark.parametrize("name", ["W", "R", "initial_h"])
def test_defaults_are_varied(name):
    """A model that computes with a default whatever it is given would agree as long as nobody gives anything."""
    model = with_defaults()
    lowered = rnn_lower.lower(model)
    assert rnn_lower.check(model, lowered).ok
    assert rnn_lower.check(model, lowered, runs=1).ok
    place = [value.name for value in lowered.graph.input].index(name)
    del lowered.graph.input[place]
    assert not rnn_lower.check(model, lowered).ok


def test_defaults_that_nobody_could_give_stay():
    model = with_defaults()
    model.ir_version = 3
    assert all(set(next(samples.Samples(ir.from_proto(model)).candidates(index))) == {"X"} for index in range(3))


@pytest.mark.parametrize("other", ["Mul (k, k)", "Abs (k)", "Mod (k, fifty)"])
def test_integers_that_are_numbers_are_large_and_negative(other):
    model, _ = build(Case("GRU", 17, T=5, N=2, outputs=("Y_h",)))
    (y,) = model.graph.output
    model.graph.input.append(helper.make_tensor_value_info("k", INT64, [2, 1]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(50), "fifty"))
    scale = onnx.parser.parse_graph(
        "g (int64[2,1] k) => (float scaled) { factor = Identity (k) f = Cast <to = 1> (factor) }"
    )
    model.graph.node.extend([*scale.node, helper.make_node("Mul", [y.name, "f"], ["scaled"])])
    y.name = "scaled"
    changed = rnn_lower.lower(model)
    (node,) = (node for node in changed.graph.node if list(node.output) == ["factor"])
    node.CopyFrom(onnx.parser.parse_node(f"factor = {other}"))
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok
    assert not rnn_lower.check(model, changed).ok


@pytest.mark.parametrize("frames", [45, 300])
def test_sequences_are_longer_than_what_the_other_model_reads(frames):
    model, _ = build(Case("RNN", 17, direction="reverse", outputs=("Y_h",), dynamic=True))
    lowered = rnn_lower.lower(model)
    for node in lowered.graph.node:
        node.input[:] = ["some" if name == "X" else name for name in node.input]
    lowered.graph.node.insert(0, helper.make_node("Slice", ["X", "from", "to"], ["some"]))
    ends = {"from": np.array([-frames]), "to": np.array([2**31])}
    lowered.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in ends.items())
    assert not rnn_lower.check(model, lowered).ok


def test_frames_of_zeros_are_sampled():
    """As a Keras layer Masking skips them."""
    model, _ = build(Case("GRU", 17, outputs=("Y",)))
    masked = onnx.parser.parse_graph("""g (float[T, N, 3] X, float[T, 1, N, 4] Y) => (float[T, 1, N, 4] z) {
        a = Abs (X) s = ReduceMax <axes = [2]> (a) m = Cast <to = 9> (s) axis = Constant <value_ints = [1]> ()
        u = Unsqueeze (m, axis) f = Cast <to = 1> (u) z = Mul (Y, f) }""")
    model.graph.node.extend(masked.node)
    model.graph.output[0].name = "z"
    lowered = rnn_lower.lower(model)
    assert rnn_lower.check(model, lowered).ok
    (node,) = (node for node in lowered.graph.node if node.output[0] == "m")
    node.CopyFrom(onnx.parser.parse_node("m = Equal (s, s)"))
    assert not rnn_lower.check(model, lowered).ok


@pytest.mark.parametrize("way", ["Abs", "Add", "Clip", "Max", "Mul", "Where", "Cast"])
def test_integers_reach_what_they_pick(way):
    """Rows of an embedding that one model lacks are asked for, whatever the numbers go through on their way there."""
    model, _ = build(Case("GRU", 17, T=5, N=2))
    tensors = {"table": np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), "nothing": np.array(0)}
    tensors |= {"one": np.array(1), "yes": np.array(True), "last": np.array(39)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    inputs = {
        "Add": ["ids", "nothing"], "Clip": ["ids", "nothing", "last"], "Max": ["ids", "nothing"], "Mul": ["ids", "one"],
        "Where": ["yes", "ids", "nothing"],
    }.get(way, ["ids"])  # fmt: skip
    said = {"to": INT64} if way == "Cast" else {}
    model.graph.node.insert(0, helper.make_node("Gather", ["table", "rows"], ["X"]))
    model.graph.node.insert(0, helper.make_node(way, inputs, ["rows"], **said))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("ids", INT64, [5, 2]))
    lowered = rnn_lower.lower(model)
    assert rnn_lower.check(model, lowered).ok
    (table,) = (tensor for tensor in lowered.graph.initializer if tensor.name == "table")
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table) * (np.arange(40) < 7)[:, np.newaxis], "table"))
    assert not rnn_lower.check(model, lowered).ok


@pytest.mark.parametrize(("way", "factor"), [("Abs", None), ("Max", 0), ("Mul", 1), ("Mul", 7)])
def test_lengths_reach_beyond_the_first_steps(way, factor):
    """Lengths that one model cuts at 2; times 7 most that are tried are too long for any model."""
    model, _ = build(Case("GRU", 17, dynamic=True, optional=("sequence_lens",)))
    node = model.graph.node[0]
    model.graph.initializer.append(numpy_helper.from_array(np.array(factor or 0, np.int32), "factor"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(2, np.int32), "two"))
    node.input[4] = "lengths"
    taken = ["sequence_lens"] if factor is None else ["sequence_lens", "factor"]
    model.graph.node.insert(0, helper.make_node(way, taken, ["lengths"]))
    other = onnx.ModelProto.FromString(model.SerializeToString())
    other.graph.node[0].output[0] = "long"
    other.graph.node.insert(1, helper.make_node("Min", ["long", "two"], ["lengths"]))
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok
    assert factor == 7 or not rnn_lower.check(model, rnn_lower.lower(other)).ok


@pytest.mark.parametrize("second", [4, None])
def test_integers_that_two_tables_take(second):
    """Of two tables the smaller one counts, and a comparison beyond the last row shows no row more."""
    model, _ = build(Case("GRU", 17, T=40, N=5))
    tables = {"table": 10} | ({} if second is None else {"other": second})
    for name, rows in tables.items():
        numbers = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(numbers, name))
        model.graph.node.insert(0, helper.make_node("Gather", [name, "ids"], ["X" if name == "table" else "seen"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(9), "pad"))
    model.graph.node.append(helper.make_node("Equal", ["ids", "pad"], ["is_pad"]))
    model.graph.output.append(helper.make_tensor_value_info("is_pad", TensorProto.BOOL, None))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("ids", INT64, [40, 5]))
    report = rnn_lower.check(model, rnn_lower.lower(model))
    assert all(output.ok for output in report.outputs)
    drawn = next(samples.Samples(ir.from_proto(model)).candidates(0))["ids"]
    assert drawn.max() == (9 if second is None else second - 1)
