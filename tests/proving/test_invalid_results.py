"""Lowered, raised and streaming models that no runtime loads are not proved; onnxruntime is the judge."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from judge import marked, proved_as_wholes, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower

Change = Callable[[onnx.ModelProto], None]


def unmarked(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as if another program had written its loops."""
    for node in model.graph.node:
        del node.metadata_props[:]
        for attribute in node.attribute:
            for inner in attribute.g.node:
                del inner.metadata_props[:]
    return model


def recurrent(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type in ("RNN", "GRU", "LSTM"))


def attribute(name: str, value: object = None) -> Change:
    """Set an attribute of the recurrent node, or remove it."""

    def change(model: onnx.ModelProto) -> None:
        node = recurrent(model)
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend(kept if value is None else [*kept, helper.make_attribute(name, value)])

    return change


def doubled(index: int, axis: int) -> Change:
    """Repeat a weight of the recurrent node along an axis."""

    def change(model: onnx.ModelProto) -> None:
        name = recurrent(model).input[index]
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.concatenate([array, array], axis), name))

    return change


INVALID = {
    "direction": attribute("direction", "FORWARD"), "no hidden_size": attribute("hidden_size"),
    "hidden_size 0": attribute("hidden_size", 0), "layout 2": attribute("layout", 2),
    "unknown activation": attribute("activations", ["Foo"] * 3), "many activations": attribute("activations", ["Tanh"] * 9),
    "W of two directions": doubled(1, 0), "R of twice the rows": doubled(2, 1), "B of two directions": doubled(3, 0),
}  # fmt: skip


def does_not_run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
    try:
        run_onnxruntime(model, feeds)
    except Exception:  # of onnxruntime
        return True
    return False


@pytest.mark.parametrize("fault", INVALID)
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_an_invalid_recurrent_node_that_replaces_a_loop(op, fault):
    model, feeds = build(Case(op, 17, T=5, N=2, optional=("B",), outputs=("Y",), weights="initializer", dynamic=True))
    loop = unmarked(rnn_lower.lower(model, form="scan"))
    raised = rnn_lower.raise_loops(loop)
    assert rnn_lower.prove(loop, raised)
    INVALID[fault](raised)
    assert does_not_run(raised, feeds)
    assert not rnn_lower.prove(loop, raised)


@pytest.mark.parametrize("fault", INVALID)
def test_an_invalid_recurrent_node_in_a_stream(fault):
    model, _ = build(Case("LSTM", 17, T=5, N=2, optional=("B",), outputs=("Y",), weights="initializer", dynamic=True))
    stream = rnn_lower.stream(model, axis="T", keep_native=True)
    assert rnn_lower.prove_streaming(model, stream)
    INVALID[fault](stream)
    assert not rnn_lower.prove_streaming(model, stream)


def declared(name: str, axis: int, size: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        value = next(value for value in model.graph.input if value.name == name)
        value.type.tensor_type.shape.dim[axis].dim_value = size

    return change


def an_unknown_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 99


@pytest.mark.parametrize("keep_native", [True, False])
@pytest.mark.parametrize(
    "change", [declared("X", 2, 11), declared("LSTM/h_in", 2, 5), declared("LSTM/c_in", 0, 2), an_unknown_opset]
)
def test_a_stream_that_onnxruntime_does_not_load(keep_native, change):
    model, feeds = build(Case("LSTM", 17, T=5, N=2, outputs=("Y",), weights="initializer", dynamic=True))
    recurrent(model).name = "LSTM"
    stream = rnn_lower.stream(model, axis="T", keep_native=keep_native)
    assert rnn_lower.prove_streaming(model, stream)
    change(stream)
    with pytest.raises(Exception, match=r"(?s)."):  # of onnxruntime
        rnn_lower.StreamingSession(stream).run({"X": feeds["X"]})
    assert not rnn_lower.prove_streaming(model, stream)


H, I = 3, 4


def unrolled_scan() -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, np.ndarray]]:
    """A model with a Scan of its own, the model with the Scan unrolled, and inputs."""
    rng = np.random.default_rng(5)
    weights = {"W": rng.standard_normal((I, H)) / 2, "R": rng.standard_normal((H, H)) / 2}
    nodes = [
        helper.make_node("MatMul", ["x_t", "W"], ["a"]), helper.make_node("MatMul", ["h", "R"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Tanh", ["sum"], ["next"]),
        helper.make_node("Identity", ["next"], ["out"]),
    ]  # fmt: skip
    info, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    body = helper.make_graph(
        nodes, "body", [info("h", kind, [2, H]), info("x_t", kind, [2, I])],
        [info("next", kind, [2, H]), info("out", kind, [2, H])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Scan", ["h0", "x"], ["last", "y"], body=body, num_scan_inputs=1, name="loop")], "g",
        [info("x", kind, [5, 2, I]), info("h0", kind, [2, H])], [info("y", kind, None), info("last", kind, [2, H])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": rng.standard_normal((5, 2, I)).astype(np.float32), "h0": np.zeros((2, H), np.float32)}
    return model, rnn_lower.lower(model, loops=True), feeds


def behind_x(model: onnx.ModelProto, nodes: list[onnx.NodeProto], **constants: object) -> onnx.ModelProto:
    """A copy in which these nodes compute x2 from x, and everything else reads x2."""
    made = copy.deepcopy(model)
    for node in made.graph.node:
        node.input[:] = ["x2" if name == "x" else name for name in node.input]
    for index, node in enumerate(nodes):
        made.graph.node.insert(index, node)
    made.graph.initializer.extend(numpy_helper.from_array(np.array(v), name) for name, v in constants.items())
    return made


N = helper.make_node
DETOURS = {
    "scalar starts": ([N("Slice", ["x", "s", "e"], ["x2"])], {"s": 0, "e": 5}),
    "starts of rank 2": ([N("Slice", ["x", "s", "e"], ["x2"])], {"s": [[0]], "e": [[5]]}),
    "reversed beyond the end": ([N("ReverseSequence", ["x", "l"], ["q"]), N("ReverseSequence", ["q", "l"], ["x2"])], {"l": [3, 9]}),
    "unknown auto_pad": (
        [N("Transpose", ["x"], ["q"], perm=[1, 2, 0]), N("Conv", ["q", "k"], ["r"], auto_pad="FOO"),
         N("Transpose", ["r"], ["x2"], perm=[2, 0, 1])],
        {"k": np.eye(4, dtype=np.float32)[:, :, None]}),
    "unknown attribute": ([N("Identity", ["x"], ["x2"], axis=0)], {}),
    "too many inputs": ([N("Identity", ["x", "h0"], ["x2"])], {}),
}  # fmt: skip


@pytest.mark.parametrize("fault", DETOURS)
def test_an_invalid_node_in_a_model_that_is_proved_as_a_whole(fault):
    """Its original declares no shape for an output, which onnx's checker refuses, too."""
    model, lowered, feeds = unrolled_scan()
    valid = behind_x(lowered, [N("Slice", ["x", "s", "e"], ["x2"])], s=[0], e=[5])
    assert proved_as_wholes(model, valid)
    nodes, constants = DETOURS[fault]
    wrong = behind_x(lowered, nodes, **constants)
    assert does_not_run(wrong, feeds)
    assert not proved_as_wholes(model, wrong)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [[3, 2, 4, 4], [2, 4], []], ids=str)
def test_an_input_of_another_rank(shape, dynamic):
    model, _ = build(Case("LSTM", 17, T=3, N=2, I=4, outputs=("Y",), dynamic=dynamic))
    lowered = rnn_lower.lower(model)
    lowered.graph.input[0].CopyFrom(helper.make_tensor_value_info("X", TensorProto.FLOAT, shape))
    assert not rnn_lower.prove(model, lowered)
    with pytest.raises(rnn_lower.RnnLowerError, match="the models have different inputs: 'X' is float"):
        rnn_lower.check(model, lowered)


def lowered_rnn(**options: object) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model, _ = build(Case("RNN", 17, T=3, N=2, outputs=("Y",)))
    return model, rnn_lower.lower(model, **options)


@pytest.mark.parametrize("key", ["length", "offset"])
def test_an_empty_number_in_external_data(tmp_path, key):
    model, lowered = lowered_rnn()
    onnx.save(lowered, tmp_path / "b.onnx", save_as_external_data=True, location="b.data", size_threshold=0)
    changed = onnx.load(tmp_path / "b.onnx", load_external_data=False)
    entries = [entry for tensor in changed.graph.initializer for entry in tensor.external_data if entry.key == key]
    for entry in entries[:1]:
        entry.value = ""
    (tmp_path / "b.onnx").write_bytes(changed.SerializeToString())
    with pytest.raises(rnn_lower.RnnLowerError, match="must be non-negative integers"):
        rnn_lower.prove(model, str(tmp_path / "b.onnx"))


def test_bounds_of_32_bits_in_a_data_file(tmp_path):
    """onnxruntime infers the shape of a Slice from its bounds, whatever their type."""
    model, lowered = lowered_rnn()
    producer = next(node for node in lowered.graph.node if "Y" in node.output)
    producer.output[list(producer.output).index("Y")] = "before"
    bounds = {"first": 0, "end": 3, "axis": 0}
    lowered.graph.initializer.extend(numpy_helper.from_array(np.array([n], np.int32), k) for k, n in bounds.items())
    lowered.graph.node.append(marked("Slice", ["before", *bounds], ["Y"]))
    assert rnn_lower.prove(model, lowered).ok
    onnx.save(lowered, tmp_path / "b.onnx", save_as_external_data=True, location="b.data", size_threshold=0)
    assert not rnn_lower.prove(model, str(tmp_path / "b.onnx")).ok


def test_a_shape_that_no_array_has():
    model, lowered = lowered_rnn()
    lowered.graph.initializer.append(TensorProto(name="huge", data_type=1, dims=[1 << 40, 1 << 40, 0], raw_data=b""))
    lowered.graph.node.append(marked("Neg", ["huge"], ["unread"]))
    with pytest.raises(rnn_lower.RnnLowerError, match="which is too large"):
        rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("op", ["ConstantOfShape", "Range", "Tile"])
def test_a_constant_that_is_too_large_is_not_computed(op):
    model, lowered = lowered_rnn()
    tensors = {
        "ConstantOfShape": [np.array([1 << 34])], "Range": [np.array(0), np.array(1 << 34), np.array(1)],
        "Tile": [np.zeros(1 << 10, np.float32), np.array([1 << 24])],
    }[op]  # fmt: skip
    lowered.graph.initializer.extend(numpy_helper.from_array(array, f"c{k}") for k, array in enumerate(tensors))
    lowered.graph.node.append(marked(op, [f"c{k}" for k in range(len(tensors))], ["unread"]))
    assert "elements, the limit of the proof" in str(rnn_lower.prove(model, lowered))


def test_a_value_that_is_too_large_is_not_computed():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[1,2] x) => (float o)
        <int64 n = {2}, int64[2] many = {34000000, 2}> {
        l = Loop (n, , x) <body = b (int64 i, bool c, float[1,2] s) => (bool d, float[1,2] t) { d = Identity (c) t = Tanh (s) }>
        e = Expand (l, many) g = Softmax <axis = 0> (e) o = ReduceMax <keepdims = 0> (g) }""")
    assert "elements, the limit of the proof" in str(rnn_lower.prove(model, rnn_lower.lower(model, loops=True)))


def test_a_loop_returns_no_number_of_its_step():
    """onnxruntime counts in place, so that all steps return the last number."""
    model, lowered = lowered_rnn()
    producer = next(node for node in lowered.graph.node if "Y" in node.output)
    producer.output[list(producer.output).index("Y")] = "before"
    flag = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "on")]
    index = helper.make_tensor_value_info("index", TensorProto.INT64, [])
    body = helper.make_graph([marked("Identity", ["go"], ["on"])], "body", [index, flag[0]], [flag[1], index])
    lowered.graph.initializer.extend([
        numpy_helper.from_array(np.array(3), "three"), numpy_helper.from_array(np.array(True), "yes"),
        numpy_helper.from_array(np.array([1, 1, 1]), "ones"), numpy_helper.from_array(np.array([3, 1, 1, 1]), "shape"),
    ])  # fmt: skip
    lowered.graph.node.extend([
        marked("Loop", ["three", "yes"], ["steps"], body=body), marked("Less", ["steps", "three"], ["row"]),
        marked("Reshape", ["row", "shape"], ["good"]), marked("Neg", ["before"], ["wrong"]),
        marked("Where", ["good", "before", "wrong"], ["Y"]),
    ])  # fmt: skip
    feeds = {"X": np.random.default_rng(0).standard_normal((3, 2, 3)).astype(np.float32)}
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert not np.allclose(wanted, actual, atol=1e-3)
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("options", [{}, {"form": "unroll"}, {"target": "onnxruntime"}, {"fold": True}])
def test_a_node_that_nobody_reads_after_lowering_is_gone(options):
    """Constant lengths of 0 make the result of the second node a constant."""
    model, _ = build(Case("RNN", 17, T=2, N=2, I=4, H=4, outputs=("Y",)))
    second = copy.deepcopy(model.graph.node[0])
    model.graph.initializer.extend([
        numpy_helper.from_array(np.array([1]), "axis"), numpy_helper.from_array(np.zeros(2, np.int32), "lengths"),
    ])  # fmt: skip
    second.name, second.input[0], second.output[:] = "second", "S", ["Z"]
    second.input.extend([""] * (4 - len(second.input)) + ["lengths"])
    model.graph.node.extend([helper.make_node("Squeeze", ["Y", "axis"], ["S"]), second])
    model.graph.output[0].name = "Z"
    lowered = rnn_lower.lower(model, **options)
    assert rnn_lower.prove(model, lowered).ok
    assert rnn_lower.check(model, lowered).ok


@pytest.mark.parametrize("read", [True, False])
def test_masked_scores_of_attention_have_another_value_from_opset_25_on(read):
    names = ["q", "k", "v"]
    outputs = ["A", "", "", "scores"] if read else ["A"]
    model, _ = build(Case("RNN", 23, outputs=("Y",)))
    model.ir_version = 11
    model.graph.node.append(helper.make_node("Attention", names, outputs, is_causal=1))
    model.graph.input.extend(helper.make_tensor_value_info(name, 1, [1, 2, 3, 4]) for name in names)
    model.graph.output.extend(helper.make_tensor_value_info(name, 1, None) for name in outputs if name)
    assert rnn_lower.lower(model, opset=24).opset_import[0].version == 24
    if read:
        with pytest.raises(rnn_lower.RnnLowerError, match="another value at the new opset"):
            rnn_lower.lower(model, opset=25)
    else:
        assert rnn_lower.prove(model, rnn_lower.lower(model, opset=25)).ok


def loads(model: onnx.ModelProto) -> bool:
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


@pytest.mark.parametrize(
    ("opset", "dtype"),
    [(20, TensorProto.FLOAT8E4M3FN), (21, TensorProto.INT4), (23, TensorProto.FLOAT4E2M1)],
)
def test_values_of_types_that_lowering_never_computes(opset, dtype):
    model, _ = build(Case("RNN", opset, T=3, N=2, outputs=("Y",)))
    lowered = rnn_lower.lower(model)
    zeros = helper.make_tensor("zero", dtype, [1], [0])
    lowered.graph.node.extend([
        marked("Shape", ["X"], ["shape"]), marked("ConstantOfShape", ["shape"], ["zeros"], value=zeros)
    ])  # fmt: skip
    assert not loads(lowered)
    assert "which the proof does not support" in str(rnn_lower.prove(model, lowered))


@pytest.mark.parametrize("op", ["Gemm", "Relu"])
def test_operators_that_runtimes_lack_for_integers(op):
    model, lowered = lowered_rnn()
    lowered.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2), np.int64), "ones"))
    lowered.graph.node.append(marked(op, ["ones"] * (1 + (op == "Gemm")), ["unread"]))
    assert not loads(lowered)
    assert "has an input of type int64, which the proof does not support" in str(rnn_lower.prove(model, lowered))


def test_a_function_imports_operators_without_the_name_of_their_domain():
    model, lowered = lowered_rnn(as_function=True)
    assert rnn_lower.prove(model, lowered).ok
    lowered.functions[0].opset_import[0].domain = "ai.onnx"
    assert not loads(lowered)
    assert not rnn_lower.prove(model, lowered).ok


def test_sizes_of_many_steps_stay_in_the_file_of_the_model(tmp_path):
    """onnxruntime does not read them from a data file."""
    model, _ = build(Case("LSTM", 17, T=130, N=1, H=16, outputs=("Y_h",), weights="initializer"))
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=0)
    rnn_lower.lower_file(tmp_path / "a.onnx", tmp_path / "b.onnx", form="unroll")
    lowered = onnx.load(tmp_path / "b.onnx", load_external_data=False)
    assert any(tensor.external_data for tensor in lowered.graph.initializer)
    onnxruntime.InferenceSession(tmp_path / "b.onnx", providers=["CPUExecutionProvider"])
    assert rnn_lower.prove(str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"))
    whole = onnx.load(tmp_path / "b.onnx")
    onnx.save(whole, tmp_path / "c.onnx", save_as_external_data=True, location="c.data", size_threshold=1024)
    assert not rnn_lower.prove(str(tmp_path / "a.onnx"), str(tmp_path / "c.onnx"))


@pytest.mark.parametrize("op", ["Unsqueeze", "Squeeze", "Expand", "Tile", "Reshape", "Split", "ConstantOfShape"])
def test_a_kept_tensor_of_a_data_file_gives_no_sizes(op, tmp_path):
    """The original has it there for another node, which reads it when it runs."""
    model, _ = build(Case("RNN", 17, T=3, N=2, outputs=("Y",), weights="initializer"))
    numbers = {"Reshape": [6, -1], "Expand": [3, 1, 2, 4], "Tile": [1] * 4, "Split": [2, 1]}.get(op, [1])
    model.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), "k"))
    model.graph.node.append(helper.make_node("Cast", ["k"], ["Z"], to=TensorProto.FLOAT))
    model.graph.output.append(helper.make_tensor_value_info("Z", TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=0)
    rnn_lower.lower_file(tmp_path / "a.onnx", tmp_path / "b.onnx")
    lowered, paths = (
        onnx.load(tmp_path / "b.onnx", load_external_data=False),
        [str(tmp_path / f"{x}.onnx") for x in "abc"],
    )
    onnxruntime.InferenceSession(paths[0], providers=["CPUExecutionProvider"])
    assert rnn_lower.prove(*paths[:2])
    inputs = ["k"] if op == "ConstantOfShape" else ["Y", "k"]
    lowered.graph.node.append(marked(op, inputs, ["unread", "more"][: 1 + (op == "Split")]))
    onnx.save(lowered, paths[2])
    with pytest.raises(Exception, match="Cannot parse"):
        onnxruntime.InferenceSession(paths[2], providers=["CPUExecutionProvider"])
    assert not rnn_lower.prove(paths[0], paths[2])


def test_a_body_declares_nothing_again():
    """The original declares `h` in a branch as it is, which onnxruntime takes."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[3,2,2] x, float[1,2,2] h, bool c) => (float[3,1,2,2] y, float[1,2,2] z)
        <float[1,2,2] W = {0.1, 0.2, 0.3, 0.4}, float[1,2,2] R = {0.5, -0.6, 0.7, 0.8}> {
        y = RNN <hidden_size = 2> (x, W, R, , , h)
        z = If (c) <then_branch = t () => (float[1,2,2] a) { a = Neg (h) },
                    else_branch = e () => (float[1,2,2] b) { b = Abs (h) }> }""")
    declared = helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 2, 2])
    model.graph.node[1].attribute[0].g.value_info.append(declared)
    lowered = rnn_lower.lower(model, form="loop")
    assert loads(lowered)
    assert rnn_lower.prove(model, lowered)
    loop = next(node for node in lowered.graph.node if node.op_type == "Loop")
    loop.attribute[0].g.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [7]))
    assert not rnn_lower.prove(model, lowered)


@pytest.mark.parametrize(("path", "is_taken"), [("b.data/.", False), ("b.data/", False), ("./b.data", True)])
def test_a_path_that_python_shortens(path, is_taken, tmp_path):
    model, lowered = lowered_rnn()
    onnx.save(lowered, tmp_path / "b.onnx", save_as_external_data=True, location="b.data", size_threshold=60)
    changed = onnx.load(tmp_path / "b.onnx", load_external_data=False)
    for tensor in changed.graph.initializer:
        for entry in (entry for entry in tensor.external_data if entry.key == "location"):
            entry.value = path
    onnx.save(changed, tmp_path / "c.onnx")
    assert any(tensor.external_data for tensor in changed.graph.initializer)
    refused = contextlib.nullcontext() if is_taken else pytest.raises(Exception, match="External data path")
    with refused:
        onnxruntime.InferenceSession(tmp_path / "c.onnx", providers=["CPUExecutionProvider"])
    assert bool(rnn_lower.prove(model, str(tmp_path / "c.onnx"))) == is_taken


@pytest.mark.parametrize("name", ["*/_ORT_MEM_ADDR_/*", "*/_ORT_NATIVE_ENDIAN_MEM_ADDR_/*"])
def test_a_file_with_the_name_of_an_address(name, tmp_path):
    """onnxruntime takes it for data in memory."""
    model, lowered = lowered_rnn()
    (tmp_path / name).parent.mkdir(parents=True)
    onnx.save(lowered, tmp_path / "b.onnx", save_as_external_data=True, location="data", size_threshold=0)
    (tmp_path / "data").rename(tmp_path / name)
    changed = onnx.load(tmp_path / "b.onnx", load_external_data=False)
    for tensor in changed.graph.initializer:
        for entry in (entry for entry in tensor.external_data if entry.key == "location"):
            entry.value = name
    (tmp_path / "b.onnx").write_bytes(changed.SerializeToString())
    assert "for an address in memory" in str(rnn_lower.prove(model, str(tmp_path / "b.onnx")))


def test_many_small_steps_are_out_of_scope():
    """A proof of them would take minutes, although a runtime takes seconds."""
    model, lowered = lowered_rnn()
    adds = [marked("Add", [f"s{k}", "one"], [f"s{k + 1}"]) for k in range(60)]
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "on")]
    states = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("s0", "s60")]
    index = helper.make_tensor_value_info("index", TensorProto.INT64, [])
    body = helper.make_graph(
        [marked("Identity", ["go"], ["on"]), *adds], "body", [index, flags[0], states[0]], [flags[1], states[1]]
    )  # fmt: skip
    lowered.graph.initializer.extend(
        [numpy_helper.from_array(np.array(90_000), "trips"), numpy_helper.from_array(np.float32(1), "one")]
    )
    lowered.graph.node.append(marked("Loop", ["trips", "", "one"], ["unread"], body=body))
    assert "computes more than" in str(rnn_lower.prove(model, lowered))


def test_a_clip_whose_min_is_greater_than_its_max_returns_max():
    model, _ = build(Case("RNN", 18, T=3, N=2, outputs=("Y",)))
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(n), k) for k, n in (("low", 0.5), ("high", -0.5)))
    model.graph.node.append(helper.make_node("Clip", ["Y", "low", "high"], ["Z"]))
    model.graph.output[0].name = "Z"
    lowered = rnn_lower.lower(model, target="portable", legalize_all=True)
    assert not any(node.op_type == "Clip" for node in lowered.graph.node)
    assert rnn_lower.prove(model, lowered).ok


def test_a_body_without_a_name_is_a_fault_even_if_the_checker_refuses_the_original():
    model, _ = build(Case("RNN", 17, outputs=("Y",)))
    model.graph.output[0].type.tensor_type.ClearField("shape")  # which the checker requires, and onnxruntime does not
    lowered = rnn_lower.lower(model, form="loop")
    assert rnn_lower.prove(model, lowered).ok
    loop = next(node for node in lowered.graph.node if node.op_type == "Loop")
    next(each for each in loop.attribute if each.name == "body").g.name = ""
    with pytest.raises(Exception, match="name"):
        onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    assert "has no name" in str(rnn_lower.prove(model, lowered))


def test_a_loop_without_a_body_is_a_difference():
    model, _ = build(Case("RNN", 17, outputs=("Y",)))
    model.graph.node.append(helper.make_node("Relu", ["Y"], ["Z"]))
    model.graph.output[0].name = "Z"
    lowered = rnn_lower.lower(model)
    model.graph.node[-1].op_type = "Loop"
    assert not rnn_lower.prove(model, lowered).ok


def two_nodes(first: str, second: str, output: str) -> onnx.ModelProto:
    """Two independent nodes with these names, and with lengths and batch sizes of their own."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[T,N,2] x, float[S,M,2] z) => (float[T,1,N,2] y, float[S,1,M,2] out)
        <float[1,2,2] W = {{0.1, 0.2, 0.3, 0.4}}, float[1,2,2] R = {{0.5, -0.6, 0.7, 0.8}}> {{
        y = RNN <hidden_size = 2> (x, W, R) out, {output} = RNN <hidden_size = 2> (z, W, R) }}""")
    for node, name in zip(model.graph.node, (first, second), strict=True):
        node.name = name
    return model


NAMES = [("a", "a/b", "h", "a/b/q"), ("out", "", "h", "out/q"), ("a", "b", "h", "a/q")]


@pytest.mark.parametrize(("first", "second", "output", "size"), NAMES)
def test_new_sizes_belong_to_one_node(first, second, output, size):
    """onnxruntime may give values of one declared size one buffer."""
    model = two_nodes(first, second, output)
    lowered = rnn_lower.lower(model, form="scan")
    zeros = [node.output[0] for node in lowered.graph.node if node.op_type == "ConstantOfShape"]
    for place, name in enumerate(zeros):
        lowered.graph.node.append(marked("Exp", [name], [f"grown{place}"]))
    assert rnn_lower.prove(model, lowered)
    for place in range(2):
        lowered.graph.value_info.append(helper.make_tensor_value_info(f"grown{place}", TensorProto.FLOAT, [size, 2]))
    assert not rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("options", [{}, {"target": "onnxruntime"}, {"as_function": True}], ids=str)
@pytest.mark.parametrize(("first", "second", "output", "size"), NAMES)
def test_nodes_whose_names_resemble_each_other(first, second, output, size, options):
    model = two_nodes(first, second, output)
    lowered = rnn_lower.lower(model, **options)
    feeds = {"x": np.ones((3, 2, 2), np.float32), "z": np.ones((4, 5, 2), np.float32)}
    for a, b in zip(run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5)
    assert rnn_lower.prove(model, lowered)


def test_one_name_of_two_sizes_declares_nothing():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[a,a,2] x) => (float[a,1,a,2] y)
        <float[1,2,2] W = {0.1, 0.2, 0.3, 0.4}, float[1,2,2] R = {0.5, -0.6, 0.7, 0.8}> {
        [rnn] y = RNN <hidden_size = 2> (x, W, R) }""")
    lowered = rnn_lower.lower(model, form="scan")
    zeros = next(node.output[0] for node in lowered.graph.node if node.op_type == "ConstantOfShape")
    assert rnn_lower.prove(model, lowered)
    lowered.graph.value_info.append(helper.make_tensor_value_info(zeros, TensorProto.FLOAT, ["a", 2]))
    assert not rnn_lower.prove(model, lowered)


def test_nodes_of_a_branch_stay_in_it():
    """In the main graph they would also run where the branch does not."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[T,N,I] x, bool c) => (float[T,D,N,O] y)
        <float[1,2,2] W = {0.1, 0.2, 0.3, 0.4}, float[1,2,2] R = {0.5, -0.6, 0.7, 0.8}, int64[1] one = {1}> {
        y = If (c) <then_branch = t () => (float[T,1,N,2] a) { [rnn] a = RNN <hidden_size = 2> (x, W, R) },
                    else_branch = e () => (float[T,1,N,I] b) { b = Unsqueeze (x, one) }> }""")
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered)
    branch = next(each.g for each in lowered.graph.node[-1].attribute if each.name == "then_branch")
    moved = branch.node[0]
    lowered.graph.initializer.extend(branch.initializer)
    del branch.initializer[:], branch.value_info[:]
    lowered.graph.node.insert(0, moved)
    del branch.node[0]
    assert not rnn_lower.prove(model, lowered)


def test_sizes_that_only_branches_read_may_be_dropped():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[L] x, int64[3] shape, bool c) => (float[T,1,2,2] y)
        <float[T,2,2] rows, float[1,2,2] W = {0.1, 0.2, 0.3, 0.4}, float[1,2,2] R = {0.5, -0.6, 0.7, 0.8}> {
        rows = Reshape (x, shape)
        s = If (c) <then_branch = t () => (float[T,2,2] a) { a = Neg (rows) },
                    else_branch = e () => (float[T,2,2] b) { b = Abs (rows) }>
        y = RNN <hidden_size = 2> (s, W, R) }""")
    assert rnn_lower.prove(model, rnn_lower.lower(model))


@pytest.mark.parametrize("options", [{}, {"form": "loop"}, {"target": "onnxruntime"}, {"opset": 13}], ids=str)
def test_names_that_inference_invents_again_are_no_names(options):
    """Inference wrote unk__1 for another value; without the declarations it calls the batch size of the node so."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[T,N,2] x, float[M,2] z) => (float[T,1,B,2] y, float[unk__1,2] out) <float[unk__1,2] u, float[unk__1,2] v,
         float[unk__1,2] grown, float[unk__1,2] more, float[1,2,2] W = {0.1, 0.2, 0.3, 0.4},
         float[1,2,2] R = {0.5, -0.6, 0.7, 0.8}, int64[1] no = {0}, int64[1] end = {-1}, int64[1] one = {1}> {
        u = Slice (z, no, end, no) v = Exp (u) grown = Tanh (v) more = Exp (grown) out = Neg (more)
        few = Slice (x, no, end, one) y = RNN <hidden_size = 2> (few, W, R) }""")
    lowered = rnn_lower.lower(model, **options)
    for rows, others in ((2, 5), (5, 2), (3, 3)):
        feeds = {"x": np.ones((4, rows + 1, 2), np.float32), "z": np.ones((others + 1, 2), np.float32)}
        for a, b in zip(run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds), strict=True):
            np.testing.assert_allclose(b, a, atol=1e-5)
    assert rnn_lower.prove(model, lowered)
    declared = [info for info in lowered.graph.value_info if info.name not in {"u", "v", "grown", "more"}]
    assert not any(dim.dim_param == "unk__1" for info in declared for dim in info.type.tensor_type.shape.dim)


@pytest.mark.parametrize("wrong", ["more = Add (h, big) a = Sub (more, big)", "nan = Log (minus) a = Add (h, nan)"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_a_branch_for_one_length_runs_in_floats(op, wrong):
    """In exact arithmetic it computes the same, for the only row of length 2 of 4."""
    model, _ = build(Case(op, 17, T=4, N=1, I=2, H=2, optional=("sequence_lens",), outputs=("Y_h",)))
    lowered = rnn_lower.lower(model, form="unroll")
    assert rnn_lower.prove(model, lowered)
    result = next(node for node in lowered.graph.node if "Y_h" in node.output)
    result.output[:] = ["h" if name == "Y_h" else name for name in result.output]
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,2] h, int32[1] sequence_lens) => (float[1,1,2] Y_h)
        <int32[1] three = {3}, int32[1] one = {1}, float big = {1e20}, float minus = {-1}, int64[0] none = {}> {
        below = Less (sequence_lens, three) above = Less (one, sequence_lens) p = Reshape (below, none)
        q = Reshape (above, none)
        Y_h = If (p) <then_branch = t () => (float[1,1,2] b) { b = If (q) <
            then_branch = u () => (float[1,1,2] a) { WRONG }, else_branch = v () => (float[1,1,2] c) { c = Identity (h) }> },
            else_branch = w () => (float[1,1,2] d) { d = Identity (h) }> }""".replace("WRONG", wrong)
    added = onnx.parser.parse_model(text).graph
    for node in added.node:
        for entry in result.metadata_props:
            node.metadata_props.add(key=entry.key, value=entry.value)
        for attribute in node.attribute:
            for inner in attribute.g.node:
                inner.metadata_props.extend(result.metadata_props)
                for inside in (each for held in inner.attribute for each in held.g.node):
                    inside.metadata_props.extend(result.metadata_props)
    lowered.graph.node.extend(added.node)
    lowered.graph.initializer.extend(added.initializer)
    assert not rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("shaped", [True, False])
def test_what_a_body_captures_is_computed_before_it(form, shaped):
    """onnxruntime sorts the nodes of the main graph, but not of functions, and onnx's checker looks into no body."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17, "my" : 1]> g (float[T,N,2] x,
        float[1,2,2] W, float[1,2,2] R) => (float[T,1,N,2] y) { y = my.F (x, W, R) }
        <domain: "my", opset_import: ["" : 17]> F (x, W, R) => (y) { [rnn] y = RNN <hidden_size = 2> (x, W, R) }""")
    if not shaped:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    lowered = rnn_lower.lower(model, form=form)
    assert rnn_lower.prove(model, lowered)
    nodes = lowered.functions[0].node
    loop = next(index for index, node in enumerate(nodes) if node.op_type.lower() == form)
    read = {name for node in nodes[loop].attribute[0].g.node for name in node.input}
    read |= {name for held in nodes[loop].attribute for node in held.g.node for name in node.input}
    index = next(index for index, node in enumerate(nodes[:loop]) if node.output[0] in read - {*nodes[loop].input})
    moved = onnx.NodeProto.FromString(nodes[index].SerializeToString())
    nodes.insert(loop + 1, moved)
    del nodes[index]
    assert not loads(lowered)
    assert not rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("shape", [[3, 10**8, 3], [5000, 10**5, 3]], ids=str)
def test_inputs_that_are_too_large_to_draw_are_out_of_scope(shape):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float{shape} x) => (float[a,b,c,d] y)
        <float[1,2,3] W = {{0.1, 0.2, 0.3, 0.4, 0.5, 0.6}}, float[1,2,2] R = {{0.5, -0.6, 0.7, 0.8}}> {{
        y = RNN <hidden_size = 2> (x, W, R) }}""")
    (node,) = rnn_lower.prove(model, rnn_lower.lower(model, form="scan")).nodes
    assert "elements, but the proof supports" in node.reason


@pytest.mark.parametrize("work", [rnn_lower.prove, rnn_lower.check])
def test_names_that_are_not_utf_8_are_no_traceback(work, tmp_path):
    """The name of an attribute, and what else contains it, such as metadata that nothing reads."""
    model, _ = build(Case("LSTM", 17))
    onnx.save(model, tmp_path / "a.onnx")
    lowered = rnn_lower.lower(model, form="loop")
    content, name = (
        lowered.SerializeToString(),
        next(n.attribute[0].name for n in lowered.graph.node if n.attribute).encode(),
    )
    places = [k for k in range(len(content)) if content.startswith(name, k)]
    assert places
    for place in places:
        (tmp_path / "b.onnx").write_bytes(content[:place] + b"\xf3" + content[place + 1 :])
        with contextlib.suppress(rnn_lower.RnnLowerError):
            assert work(tmp_path / "a.onnx", tmp_path / "b.onnx").ok in (True, False)
