"""--fold: what a caller may give, and what is only claimed, stays open."""

from __future__ import annotations

import faulthandler
import os
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from judge import close, proved_as_wholes, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.modelio.document import Document
from rnn_lower.modelio.files import load
from rnn_lower.sandbox import child_process
from rnn_lower.transforms import fold
from rnn_lower.transforms.evaluate import evaluate_node

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
Node = tuple[str, list[str], dict[str, Any]]


def branch(op: str) -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node(op, ["x"], [op])], op, [], [helper.make_tensor_value_info(op, FLOAT, None)]
    )


def body() -> onnx.GraphProto:
    nodes = [helper.make_node("Tanh", ["a"], ["b"]), helper.make_node("Identity", ["c"], ["d"])]
    taken = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", INT64), ("c", BOOL))]
    given = [helper.make_tensor_value_info("d", BOOL, []), helper.make_tensor_value_info("b", FLOAT, None)]
    return helper.make_graph(nodes, "body", [*taken, helper.make_tensor_value_info("a", FLOAT, None)], given)


CASES: dict[str, tuple[list[Node], Any, Any]] = {
    "if": ([("If", ["p"], {"then_branch": branch("Relu"), "else_branch": branch("Neg")})], True, False),
    "reshape": ([("Reshape", ["x", "p"], {})], np.array([2, 5, 3]), np.array([5, 2, 3])),
    "shape of several": (
        [("Concat", ["p", "three"], {"axis": 0}), ("Reshape", ["x", "v0"], {})], np.array([2, 5]), np.array([5, 2])
    ),
    "expand": ([("Expand", ["x", "p"], {})], np.array([2, 5, 3]), np.array([1, 1, 1])),
    "loop": ([("Loop", ["p", "", "x"], {"body": body()})], np.array(3), np.array(1)),
    "dropout": ([("Dropout", ["x", "p"], {})], np.array(0.5, np.float32), np.array(0.1, np.float32)),
    "nothing": ([("Concat", ["x", "p"], {"axis": 0})], np.zeros((0, 5, 3), np.float32), np.ones((0, 5, 3), np.float32)),
}  # fmt: skip
"""Nodes that read an input `p`, what it is by default, and something else."""


def model_of(nodes: list[Node], default: np.ndarray) -> onnx.ModelProto:
    made = [helper.make_node(op, taken, [f"v{k}"], **said) for k, (op, taken, said) in enumerate(nodes)]
    last = made[-1].output[0]
    weights = {name: np.full(shape, 0.1, np.float32) for name, shape in (("W", (1, 12, 3)), ("R", (1, 12, 4)))}
    made.append(helper.make_node("GRU", ["x", "W", "R"], ["y"], hidden_size=4, name="gru"))
    tensors = [numpy_helper.from_array(default, "p"), numpy_helper.from_array(np.array([3]), "three")]
    tensors += [numpy_helper.from_array(array, name) for name, array in weights.items()]
    kind = helper.np_dtype_to_tensor_dtype(default.dtype)
    inputs = [helper.make_tensor_value_info("x", FLOAT, X.shape)]
    inputs.append(helper.make_tensor_value_info("p", kind, default.shape))
    outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in (last, "y")]
    graph = helper.make_graph(made, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("select", [None, lambda node: False])
@pytest.mark.parametrize("case", CASES)
def test_a_default_is_no_constant(case, select):
    nodes, default, other = CASES[case]
    model = model_of(nodes, np.asarray(default))
    if case == "dropout":
        model.graph.node[0].input.append("")
    folded = rnn_lower.lower(model, fold=True, select=select)
    assert [value.name for value in folded.graph.input] == ["x", "p"]
    assert [tensor.name for tensor in folded.graph.initializer if tensor.name == "p"] == ["p"]
    for feeds in ({"x": X}, {"x": X, "p": np.asarray(other)}):
        close(run_onnxruntime(folded, feeds), run_onnxruntime(model, feeds))


def test_the_check_gives_another_value_of_every_kind():
    """Lengths, truth values and rows of a table that a caller may leave out are given as well."""
    for case, inputs, default in [
        ("lengths", ["x", "W", "R", "", "p"], np.array([2, 2, 2, 2, 2], np.int32)),
        ("if", [], np.asarray(True)),
    ]:
        nodes: list[Node] = CASES["if"][0] if case == "if" else [("GRU", inputs, {"hidden_size": 4})]
        model, other = (model_of(nodes, default) for _ in range(2))
        for node in other.graph.node:
            node.input[:] = ["fixed" if name == "p" else name for name in node.input]
        other.graph.initializer.append(numpy_helper.from_array(default, "fixed"))
        assert rnn_lower.check(model, rnn_lower.lower(model)).ok
        assert not rnn_lower.check(model, rnn_lower.lower(other)).ok, case


@pytest.mark.parametrize("place", ["main", "function"])
def test_what_is_only_claimed_is_not_folded(place):
    """A value said to be [7, 2, 3], whose Shape is an output."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Cast", ["s"], ["o"], to=FLOAT),
    ]  # fmt: skip
    claim = helper.make_tensor_value_info("r", FLOAT, [7, 2, 3])
    model = model_of([("Identity", ["x"], {})], np.array([0]))
    if place == "function":
        function = helper.make_function("my", "F", ["x"], ["o"], nodes, [helper.make_opsetid("", 17)])
        function.value_info.append(claim)
        model.functions.append(function)
        model.opset_import.append(helper.make_opsetid("my", 1))
        nodes = [helper.make_node("F", ["x"], ["o"], domain="my")]
        model.ir_version = 10
    else:
        model.graph.value_info.append(claim)
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_tensor_value_info("o", FLOAT, None))
    model.graph.input[0].type.tensor_type.ClearField("shape")
    folded = rnn_lower.lower(model, fold=True)
    close(run_onnxruntime(folded, {"x": X}), run_onnxruntime(model, {"x": X}))  # which believes it of the main graph


@pytest.mark.parametrize("select", [None, lambda node: False])
def test_before_version_4_inputs_with_a_default_are_constants(select):
    """Every initializer is an input there, and nobody can give another value."""
    nodes: list[Node] = [("Add", ["p", "p"], {}), ("Add", ["x", "v0"], {})]
    model = model_of(nodes, np.ones(3, np.float32))
    model.ir_version = 3
    for tensor in model.graph.initializer:
        if tensor.name != "p":
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    model.opset_import[0].version = 8
    folded = rnn_lower.lower(model, fold=True, select=select, form="loop")
    assert {value.name for value in folded.graph.input} - {"x"} <= {tensor.name for tensor in folded.graph.initializer}
    close(run_onnxruntime(folded, {"x": X}), run_onnxruntime(model, {"x": X}))


def test_an_axis_of_size_minus_1_that_is_cut():
    """Of which onnx's inference aborts."""
    model, feeds = build(Case("LSTM", 14, T=5))
    model.graph.node[0].input[0] = "cut"
    model.graph.node.insert(0, helper.make_node("Slice", ["X", "zero", "five"], ["cut"]))
    model.graph.initializer.extend(numpy_helper.from_array(np.array([v]), n) for n, v in (("zero", 0), ("five", 5)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    lowered = rnn_lower.lower(model, fold=True)
    assert lowered.graph.input[0] == model.graph.input[0]
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def test_folding_that_ends_the_process(monkeypatch):
    def fold_constants(*_, **__):
        faulthandler.disable()
        os.abort()

    monkeypatch.setattr(child_process, "may_fork", lambda: True)
    monkeypatch.setattr(fold._optimizer(), "fold_constants", fold_constants)
    model, _ = build(Case("LSTM", 14, T=5))
    with pytest.raises(
        rnn_lower.RnnLowerError, match=r"the process that folds constants crashed \(SIGABRT\); drop fold"
    ):
        rnn_lower.lower(model, fold=True)


def test_where_it_cannot_fork_folding_is_done_once(monkeypatch):
    done: list[object] = []
    monkeypatch.setattr(child_process, "may_fork", lambda: False)
    monkeypatch.setattr(fold, "_fold_here", done.append)
    fold.fold(ir.from_proto(build(Case("GRU"))[0]))
    assert len(done) == 1


def test_sizes_that_are_filled_cut_and_joined_are_folded():
    """As exporters make first states: zeros of a constant shape, a slice of them, and joined."""
    model, feeds = build(Case("GRU", 17, H=4, N=1, optional=("initial_h",), outputs=("Y_h",)))
    (node,) = model.graph.node
    numbers = {"shape": [2, 1, 4], "b": [0], "e": [1], "axis": [0]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), name) for name, v in numbers.items())
    before = [
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Slice", ["zeros", "b", "e", "axis"], ["first"]),
        helper.make_node("Concat", ["first"], ["joined"], axis=0),
    ]
    node.input[5] = "joined"
    for one in reversed(before):
        model.graph.node.insert(0, one)
    lowered = rnn_lower.lower(model, fold=True)
    assert not {one.op_type for one in lowered.graph.node} & {"ConstantOfShape"}
    assert not {"zeros", "first", "joined"} & {name for one in lowered.graph.node for name in one.output}
    feeds = {name: value for name, value in feeds.items() if name in {one.name for one in model.graph.input}}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def test_large_weights_that_are_moved_lose_no_sizes():
    """Folding finds sizes of a model without its weights, of which the optimizer must not read any."""
    model, _ = build(Case("GRU", 17, H=32, I=32, T=5, N=1, outputs=("Y_h",)))
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    flat = numpy_helper.to_array(weights["W"])[0]
    weights["W"].CopyFrom(numpy_helper.from_array(flat[0:96].reshape(-1), "flat"))
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array([0], np.int64), "zero"),
            numpy_helper.from_array(np.array([96, 32], np.int64), "two"),
        ]
    )
    for one in (
        helper.make_node("Unsqueeze", ["matrix", "zero"], ["W"]),
        helper.make_node("Reshape", ["flat2", "two"], ["matrix"]),
        helper.make_node("Squeeze", ["flat1", "zero"], ["flat2"]),
        helper.make_node("Unsqueeze", ["flat", "zero"], ["flat1"]),
    ):
        model.graph.node.insert(0, one)
    found = fold.folded_shapes(Document(model).outline)
    assert found == [(5, 1, 32)]


def zeros_of_the_batch() -> onnx.ModelProto:
    """As exporters make first states: zeros whose shape is computed from the batch of X."""
    model, _ = build(Case("GRU", 17, H=4, N=1, T=3, optional=("initial_h",), outputs=("Y_h",)))
    numbers = {"one": [1], "directions": [1], "units": [4]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), name) for name, v in numbers.items())
    before = [
        helper.make_node("Shape", ["X"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "one"], ["batch"], axis=0),
        helper.make_node("Concat", ["directions", "batch", "units"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
    ]
    model.graph.node[0].input[5] = "zeros"
    for one in reversed(before):
        model.graph.node.insert(0, one)
    inputs = [value for value in model.graph.input if value.name != "initial_h"]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "batch"
    return model


@pytest.mark.parametrize("kind", ["proto", "ir", "file"])
def test_a_target_of_static_sizes_needs_no_option_for_them(kind, tmp_path):
    model, sizes = zeros_of_the_batch(), {"batch": 1}
    if kind == "proto":
        lowered = rnn_lower.lower(model, target="tidl", dims=sizes)
    elif kind == "ir":
        lowered = ir.to_proto(rnn_lower.lower(ir.from_proto(model), target="tidl", dims=sizes))
    else:
        onnx.save(model, tmp_path / "m.onnx")
        rnn_lower.lower_file(tmp_path / "m.onnx", tmp_path / "o.onnx", target="tidl", dims=sizes)
        lowered = onnx.load(tmp_path / "o.onnx")
    assert not {"Shape", "ConstantOfShape"} & {node.op_type for node in lowered.graph.node}
    assert rnn_lower.lint(lowered, "tidl").ok
    proof = rnn_lower.prove(model, lowered)
    assert (proof.ok, bool(proof.steps), len(proof.nodes)) == (True, True, 1)
    assert rnn_lower.check(model, lowered).ok
    kept = rnn_lower.lower(model, target="rknn", dims=sizes)  # of any sizes
    assert {"Shape", "ConstantOfShape"} < {node.op_type for node in kept.graph.node}


def test_what_cannot_be_folded_stays_where_nobody_asked():
    model = zeros_of_the_batch()
    values = helper.make_tensor("weights", FLOAT, [1], [0.5])
    indices = helper.make_tensor("indices", INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    with pytest.raises(rnn_lower.UnsupportedError, match="a sparse initializer"):
        rnn_lower.lower(model, target="tidl", dims={"batch": 1}, fold=True)
    lowered = rnn_lower.lower(model, target="tidl", dims={"batch": 1})
    assert "Shape" in {node.op_type for node in lowered.graph.node}
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("changed", ["weight", "folded constant", "nothing replaced"])
def test_a_folded_model_that_computes_something_else_is_not_proved(changed):
    model = zeros_of_the_batch()
    model.graph.node.append(helper.make_node("Add", ["Y_h", "shift"], ["Z"]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "shift"))
    model.graph.output[0].name = "Z"
    options = {"select": lambda node: False} if changed == "nothing replaced" else {}
    lowered = rnn_lower.lower(model, fold=True, dims={"batch": 1}, **options)
    assert rnn_lower.prove(model, lowered).ok
    assert rnn_lower.prove(model, lowered).steps
    largest = max(lowered.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    tensor = largest if changed == "weight" else next(t for t in lowered.graph.initializer if t.name == "shift")
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(0.25), tensor.name))
    assert not rnn_lower.prove(model, lowered).ok
    assert not rnn_lower.check(model, lowered).ok


def test_sizes_with_which_the_original_does_not_run_show_no_difference():
    """X has twice the rows of the state in every run, which the model does not say."""
    model = zeros_of_the_batch()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "batch"
    model.graph.input.append(helper.make_tensor_value_info("rows", FLOAT, ["others", 4]))
    model.graph.node.append(helper.make_node("Add", ["Y_h", "rows"], ["Z"]))
    model.graph.output[0].name = "Z"
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for _ in range(3):
        model.graph.output[0].type.tensor_type.shape.dim.add()
    lowered = rnn_lower.lower(model, fold=True)
    proof = rnn_lower.prove(model, lowered)
    assert "not equal" not in {node.verdict for node in proof.nodes}, proof.lines()


@pytest.mark.parametrize("held", ["quantization annotation", "training"])
def test_what_folding_would_lose_is_not_folded_unasked(held, caplog):
    model = zeros_of_the_batch()
    if held == "training":
        model.training_info.add().algorithm.name = "a"
    else:
        model.graph.quantization_annotation.add(tensor_name="X")
    with caplog.at_level("INFO", "rnn_lower"):
        lowered = rnn_lower.lower(model, target="tidl", dims={"batch": 1})
    assert "folded" not in caplog.text
    assert (lowered.graph.quantization_annotation, lowered.training_info) == (
        model.graph.quantization_annotation, model.training_info
    )  # fmt: skip
    with caplog.at_level("INFO", "rnn_lower"):
        rnn_lower.lower(zeros_of_the_batch(), target="tidl", dims={"batch": 1})
    assert "folded constants, because target tidl needs static sizes, but the model computes" in caplog.text


def test_each_constant_of_a_folded_lowering_counts():
    """As in any other lowering: the nodes are compared with those of the folded original, and so is all else."""
    case = Case(
        "GRU", 14, T=20, N=1, I=3, H=4, optional=("B", "sequence_lens"), lengths_as="input", outputs=("Y", "Y_h")
    )
    model, _ = build(case)
    model.graph.node[0].input[0] = "X2"
    model.graph.node.insert(0, helper.make_node("Reshape", ["X", "sizes"], ["X2"]))
    model.graph.node.insert(0, helper.make_node("Shape", ["X"], ["sizes"]))
    lowered = rnn_lower.lower(model, target="opencv@4")
    assert rnn_lower.prove(model, lowered).steps
    assert rnn_lower.prove(model, lowered).ok
    changed = 0
    for index, tensor in enumerate(lowered.graph.initializer):
        numbers = numpy_helper.to_array(tensor).copy()
        if numbers.size < 5:
            continue
        wrong = onnx.ModelProto()
        wrong.CopyFrom(lowered)
        numbers.flat[numbers.size // 2] += 1
        wrong.graph.initializer[index].CopyFrom(numpy_helper.from_array(numbers, tensor.name))
        assert not rnn_lower.prove(model, wrong).ok, tensor.name
        changed += 1
    assert changed


def test_a_mark_alone_proves_nothing():
    """Who writes it by hand gains nothing: what is compared is what folding the original gives."""
    model, _ = build(Case("GRU", 17, T=3, N=1))
    model.graph.node.append(helper.make_node("Relu", ["Y_h"], ["Z"]))
    model.graph.output.append(helper.make_tensor_value_info("Z", FLOAT, None))
    wrong = rnn_lower.lower(model)
    next(node for node in wrong.graph.node if node.op_type == "Relu").op_type = "Neg"
    wrong.metadata_props.add(key=fold.FOLDED, value="constants")
    assert not rnn_lower.prove(model, wrong).ok


def test_a_slice_backwards_from_before_the_first_element():
    """The text takes that for the first element; the evaluator that folds takes nothing."""
    model, feeds = build(Case("GRU", 18, T=3, N=1, outputs=("Y_h",)))
    numbers = {"s": [-10], "e": [-(2**62)], "x": [0], "t": [-1]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v), name) for name, v in numbers.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 3], np.float32), "a"))
    model.graph.node.append(helper.make_node("Slice", ["a", "s", "e", "x", "t"], ["c"]))
    model.graph.node.append(helper.make_node("ReduceSum", ["c"], ["d"], keepdims=0))
    model.graph.node.append(helper.make_node("Add", ["Y_h", "d"], ["Z"]))
    model.graph.output[0].name = "Z"
    lowered = rnn_lower.lower(model, fold=True)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def test_a_constant_is_read_from_the_folder_of_its_model(tmp_path, monkeypatch):
    """And not from a file of that name where the program runs."""
    (tmp_path / "model").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    model, feeds = build(Case("GRU", 14, T=5))
    x = model.graph.node[0].input[0]
    offsets = np.full(feeds[x].shape, 0.5, np.float32)
    for folder, held in (("model", offsets), ("elsewhere", offsets + 100)):
        (tmp_path / folder / "offsets.bin").write_bytes(held.tobytes())
    tensor = TensorProto(data_type=TensorProto.FLOAT, dims=offsets.shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="offsets.bin")
    added = [
        helper.make_node("Constant", [], ["offsets"], value=tensor),
        helper.make_node("Neg", ["offsets"], ["minus"]),
        helper.make_node("Sub", [x, "minus"], ["moved"]),
    ]
    model.graph.node[0].input[0] = "moved"
    nodes = [*added, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    source, result = tmp_path / "model" / "source.onnx", tmp_path / "model" / "result.onnx"
    source.write_bytes(model.SerializeToString())
    rnn_lower.lower_file(source, result, fold=True)
    close(*(run_onnxruntime(load(path).embedded(), feeds) for path in (result, source)))


def test_a_shape_is_read_from_the_folder_of_its_model(tmp_path, monkeypatch):
    """And not from a file of that name where the program runs, which tells another length."""
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    model, feeds = build(Case("GRU", 14, T=5))
    x = model.graph.input[0]
    shape = np.array(feeds[x.name].shape, np.int64)
    (tmp_path / "model" / "shape.bin").write_bytes(shape.tobytes())
    (tmp_path / "shape.bin").write_bytes((shape - [1, 0, 0]).tobytes())
    tensor = TensorProto(data_type=TensorProto.INT64, dims=shape.shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="shape.bin")
    added = [
        helper.make_node("Constant", [], ["held"], value=tensor),
        helper.make_node("Abs", ["held"], ["shape"]),
        helper.make_node("Reshape", [x.name, "shape"], ["shaped"]),
    ]
    model.graph.node[0].input[0] = "shaped"
    nodes = [*added, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    x.type.tensor_type.shape.dim[0].dim_param = "time"
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    source, result = tmp_path / "model" / "source.onnx", tmp_path / "model" / "result.onnx"
    source.write_bytes(model.SerializeToString())
    rnn_lower.lower_file(source, result, form="unroll")
    close(*(run_onnxruntime(load(path).embedded(), feeds) for path in (result, source)))


def test_data_of_a_constant_is_not_looked_for_in_the_working_folder():
    tensor = onnx.TensorProto(name="weights", data_type=onnx.TensorProto.FLOAT, dims=[2], data_location=1)
    tensor.external_data.add(key="location", value="weights.bin")
    model = zeros_of_the_batch()
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["unread"], value=tensor))
    with pytest.raises(rnn_lower.RnnLowerError, match=r"'weights' of Constant .* pass the path of the model"):
        rnn_lower.lower(model)


@pytest.mark.parametrize("opset", [10, 11, 13, 17])
def test_a_loop_without_states_gets_no_input(opset):
    """Before opset 13, the schema asks for at least one state, but runtimes accept none."""
    nodes = [helper.make_node("Tanh", ["x"], ["b"]), helper.make_node("Identity", ["c"], ["d"])]
    inputs = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", INT64), ("c", BOOL))]
    outputs = [helper.make_tensor_value_info("d", BOOL, []), helper.make_tensor_value_info("b", FLOAT, None)]
    graph = helper.make_graph(nodes, "body", inputs, outputs)
    model = model_of([("Loop", ["p", ""], {"body": graph})], np.array(3))
    del model.graph.input[1]
    model.opset_import[0].version = opset
    model.graph.node[0].input[1] = "yes"
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    folded = rnn_lower.lower(model, fold=True)
    (loop,) = (node for node in folded.graph.node if "v0" in node.output)
    assert list(loop.input) == ["p", "yes"]
    assert rnn_lower.prove(model, folded).ok


@pytest.mark.parametrize("op", ["Unique", "Resize"])
def test_what_evaluators_compute_differently_is_not_folded(op):
    """onnx's evaluator sorts what Unique must not sort, and resizes to one element in another way."""
    model = model_of([("Add", ["x", "number"], {})], np.array([0]))
    constants = {"table": np.array([3, 1, 3, 2], np.float32), "sizes": np.array([1]), "zero": np.array([0])}
    if op == "Unique":
        node = helper.make_node("Unique", ["table"], ["all"], sorted=0)
    else:
        constants |= {"table": constants["table"][None], "sizes": np.array([1, 1])}
        node = helper.make_node(
            "Resize", ["table", "", "", "sizes"], ["all"], mode="linear",
            coordinate_transformation_mode="pytorch_half_pixel",
        )  # fmt: skip
    model.graph.node.insert(0, helper.make_node("Gather", ["all", "zero"], ["number"]))
    model.graph.node.insert(0, node)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    folded = rnn_lower.lower(model, fold=True)
    assert op in [node.op_type for node in folded.graph.node]
    feeds = {"x": X}
    close(run_onnxruntime(folded, feeds), run_onnxruntime(model, feeds))


SPLITS: dict[str, tuple[dict[str, int], object]] = {
    "sizes": ({}, [1, 3]), "one size": ({}, 2), "sizes, keepdims=0": ({"keepdims": 0}, [1, 3]),
    "single steps": ({}, None), "unbind": ({"keepdims": 0}, None),
}  # fmt: skip


def parts_of_x(opset: int, split: str, axis: int, joined: bool) -> onnx.ModelProto:
    """An RNN over two parts of X in reverse order, or over all parts joined again."""
    attributes, sizes = SPLITS[split]
    rng = np.random.default_rng(2)
    constants = {"W": rng.standard_normal((1, 3, 4)), "R": rng.standard_normal((1, 3, 3))}
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()]
    second = 1 if sizes == 2 else -1  # how many parts there are is not known
    indices = {
        "first": np.array(0),
        "second": np.array(second),
        **({} if sizes is None else {"sizes": np.array(sizes)}),
    }
    tensors += [numpy_helper.from_array(array, name) for name, array in indices.items()]
    names = ["x"] if sizes is None else ["x", "sizes"]
    nodes = [helper.make_node("SplitToSequence", names, ["parts"], axis=axis, **attributes)]
    if joined:
        new = 1 if sizes is None and attributes else 0
        nodes.append(helper.make_node("ConcatFromSequence", ["parts"], ["x2"], axis=axis, new_axis=new))
    else:
        nodes += [helper.make_node("SequenceAt", ["parts", name], [f"{name} part"]) for name in ("first", "second")]
        ends = ["second part", "first part"]
        if sizes is None and attributes:  # onnxruntime ignores keepdims if sizes are given
            tensors.append(numpy_helper.from_array(np.array([axis]), "axes"))
            inputs, more = ([], {"axes": [axis]}) if opset < 13 else (["axes"], {})
            nodes += [helper.make_node("Unsqueeze", [name, *inputs], [f"{name} again"], **more) for name in ends]
            ends = [f"{name} again" for name in ends]
        nodes.append(helper.make_node("Concat", ends, ["x2"], axis=axis))
    nodes.append(helper.make_node("RNN", ["x2", "W", "R"], ["Y"], hidden_size=3))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", FLOAT, [4, 2, 4])], [info("Y", FLOAT, None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18])
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("joined", [False, True], ids=["two parts", "joined"])
def test_parts_in_sequences(opset, split, joined):
    """onnxscript would fold SplitToSequence to the Split of opset 18 at every opset."""
    model = parts_of_x(opset, split, 0, joined)
    x = np.random.default_rng(1).standard_normal((4, 2, 4)).astype(np.float32)
    lowered = rnn_lower.lower(model, fold=True)
    close(run_onnxruntime(lowered, {"x": x}), run_onnxruntime(model, {"x": x}))
    if not joined:
        assert "SplitToSequence" not in {node.op_type for node in lowered.graph.node}
        assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize(("split", "keepdims", "stays"), [
    ("", 0, False), ("", 1, False), (", one", 1, False), (", one", 0, True), (", two", 1, True),
])  # fmt: skip
@pytest.mark.parametrize("index", ["int64", "int32"])
def test_parts_at_any_index(split, keepdims, stays, index):
    """Of size 1; with one size and without keepdims, the specification and onnxruntime differ, so these stay."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, T, 3] x, {index} i) => (float y, float z, int64 n) <int64 one = {{1}}, int64 two = {{2}}, int64 last = {{-1}}> {{
            parts = SplitToSequence <axis = -2, keepdims = {keepdims}> (x{split})
            y = SequenceAt(parts, i) z = SequenceAt(parts, last) n = SequenceLength(parts)
        }}""")
    for value in model.graph.output[:2]:
        value.type.tensor_type.ClearField("shape")
    folded = rnn_lower.lower(model, fold=True)
    assert ("SplitToSequence" in {node.op_type for node in folded.graph.node}) == stays
    x = np.random.default_rng(1).standard_normal((2, 5, 3)).astype(np.float32)
    for number in (0, 2, -1):
        feeds = {"x": x, "i": np.array(number, index)}
        close(run_onnxruntime(folded, feeds), run_onnxruntime(model, feeds))
    assert stays or proved_as_wholes(model, folded).ok


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
@pytest.mark.parametrize("op", ["Shape", "Size"])
def test_sizes_are_constants_that_the_opset_has(opset, op):
    model, feeds = build(Case("RNN", opset, T=5, N=2, outputs=("Y",), weights="initializer"))
    model.graph.node.append(helper.make_node(op, ["X"], ["number"]))
    model.graph.output.append(helper.make_tensor_value_info("number", INT64, None))
    lowered = rnn_lower.lower(model, fold=True, form="unroll")
    shape = onnx.shape_inference.infer_shapes(lowered)
    shape.graph.output[-1].type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(shape)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize(
    "unread", [("ReduceMax", {"axes": [0], "keepdims": 0}), ("MaxPool", {"kernel_shape": [1, 2]})], ids=["rows", "windows"]
)  # fmt: skip
def test_an_unread_maximum_does_not_keep_a_fold_from_its_proof(unread):
    """A maximum begins with minus infinity, which is no constant of the model."""
    model, _ = build(Case("LSTM", 13, T=5, N=2, outputs=("Y",), weights="initializer", dynamic=True))
    op, attributes = unread
    model.graph.node.append(helper.make_node(op, ["Y"], ["unread"], **attributes))
    lowered = rnn_lower.lower(model, fold=True)
    assert rnn_lower.prove(model, lowered)


def test_weights_of_bodies_leave_no_declaration_behind():
    """Folding gives the weights of branches types, which stayed when lowering transposed the weights."""
    model, feeds = build(Case("GRU", 17, place="if", optional=("B",)))
    lowered = rnn_lower.lower(model, fold=True)
    for node in lowered.graph.node:
        for attribute in node.attribute:
            own = {name for inner in attribute.g.node for name in inner.output}
            own |= {tensor.name for tensor in attribute.g.initializer}
            assert {info.name for info in attribute.g.value_info} <= own
    assert rnn_lower.prove(model, lowered)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("start", [-10, -1])
@pytest.mark.parametrize("axes", [True, False])
def test_a_backward_slice_of_a_constant(start, axes):
    """Onnx's evaluator returns nothing for one that begins before the first element."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]> main (float[3, 1, 2] x) => (float[N] s, float[3, 1, 1, 3] y)
        <float[5] c = {{1.0, 2.0, 3.0, 4.0, 5.0}}, int64[1] b = {{{start}}}, int64[1] e = {{-20}}, int64[1] a = {{0}},
         int64[1] m = {{-1}}, float[1, 3, 2] w = {{{", ".join(["0.5"] * 6)}}}, float[1, 3, 3] r = {{{", ".join(["0.25"] * 9)}}}>
        {{ s = Slice (c, b, e, {"a" if axes else ""}, m) y = RNN <hidden_size = 3> (x, w, r) }}
    """)
    lowered = rnn_lower.lower(model, fold=True)
    feeds = {"x": np.ones((3, 1, 2), np.float32)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("is_sorted", [False, True])
def test_constants_of_texts_are_kept(is_sorted):
    """onnx_ir cannot size texts, nor write arrays of them."""
    model, feeds = build(Case("GRU", 17))
    model.graph.initializer.append(numpy_helper.from_array(np.array(["a", "b"], object), "texts"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1.5, 2.0], np.float32), "numbers"))
    model.graph.node.append(helper.make_node("Identity", ["texts"], ["t"]))
    model.graph.node.append(helper.make_node("Cast", ["numbers"], ["c"], to=TensorProto.STRING))
    model.graph.node.append(helper.make_node("Relu", ["Y"], ["r"]))
    for name, kind in (("t", TensorProto.STRING), ("c", TensorProto.STRING), ("r", TensorProto.FLOAT)):
        model.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    if not is_sorted:
        model.graph.node.append(model.graph.node[0])
        del model.graph.node[0]
    for folded in (False, True):
        lowered = rnn_lower.lower(model, fold=folded)
        results = zip(run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds), strict=True)
        for wanted, found in results:
            close([found], [wanted]) if wanted.dtype.kind == "f" else np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("folded", [False, True])
def test_weights_that_are_constants_of_a_branch(folded):
    """Lowering removes them there, with what is declared of them."""
    model, _ = build(Case("LSTM", 17, outputs=("Y",)))
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    constants = [helper.make_node("Constant", [], [name], value=tensor) for name, tensor in weights.items()]
    (node,), output = model.graph.node, model.graph.output[0]
    then = helper.make_graph([*constants, node], "then", [], [output])
    zero = helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.zeros((1, 1, 1, 1), np.float32)))
    orelse = helper.make_graph([zero], "else", [], [helper.make_tensor_value_info("zero", TensorProto.FLOAT, None)])
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.input.append(helper.make_tensor_value_info("on", TensorProto.BOOL, []))
    model.graph.node.append(helper.make_node("If", ["on"], ["Y_if"], then_branch=then, else_branch=orelse))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Y_if", TensorProto.FLOAT, None))
    assert rnn_lower.prove(model, rnn_lower.lower(model, fold=folded)).ok


def test_a_step_that_cannot_be_proved_is_no_change():
    """Nothing tells the shape of what another domain's operator computes."""
    model, _ = build(Case("GRU", 17, outputs=("Y",)))
    model.opset_import.append(helper.make_opsetid("com.other", 1))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    model.graph.node.extend([
        helper.make_node("Odd", ["Y"], ["Z"], domain="com.other"), helper.make_node("Neg", ["two"], ["minus"]),
        helper.make_node("Dropout", ["Z"], ["same"]), helper.make_node("Mul", ["same", "minus"], ["out"]),
    ])  # fmt: skip
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("out", TensorProto.FLOAT, None))
    proof = rnn_lower.prove(model, rnn_lower.lower(model, fold=True))
    assert not proof.ok
    assert not proof.changed
    assert [(each.name, each.verdict) for each in (*proof.steps, *proof.nodes)] == [
        ("constant folding", "out of scope"), ("node", "proved"),
    ]  # fmt: skip


def test_numbers_of_which_only_the_shape_is_read_are_no_difference():
    """The quantizer of onnxruntime leaves such a node next to a table of 8 bits."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> g (int64[N,T] ids) => (float[?,?,?] y, int64[3] size)
        <int8[4,3] table = {1,2,3,4,5,6,7,8,9,10,11,12}, float scale = {0.5}, int8 zero = {1}, int64[1] three = {3}> {
        rows = Gather (table, ids) numbers = DequantizeLinear (rows, scale, zero) s = Shape (numbers)
        moved = Transpose <perm = [1, 0, 2]> (rows) y = DequantizeLinear (moved, scale, zero)
        n = Slice (s, z, o) z = Constant <value_ints = [0]> () o = Constant <value_ints = [2]> ()
        size = Concat <axis = 0> (n, three) }
    """)
    nodes = {node.output[0]: node for node in model.graph.node}
    del model.graph.node[:]
    model.graph.node.extend(nodes[name] for name in ("z", "o", "rows", "numbers", "s", "n", "moved", "y", "size"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    folded = rnn_lower.lower(model, fold=True)
    assert len(folded.graph.node) < len(model.graph.node) - 2
    assert rnn_lower.prove(model, folded).ok


def test_a_proof_counts_the_chance_of_error_of_each_step():
    model, _ = build(Case("GRU", 17, dynamic=True, outputs=("Y",)))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    model.graph.node.extend(
        [
            helper.make_node("Dropout", ["Y"], ["same"]),
            helper.make_node("Neg", ["two"], ["minus"]),
            helper.make_node("Mul", ["same", "minus"], ["Z"]),
        ]
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Z", TensorProto.FLOAT, None))
    proof = rnn_lower.prove(model, rnn_lower.lower(model, fold=True))
    assert proof.ok
    assert [step.name for step in proof.steps] == ["constant folding"]
    assert proof.bound == pytest.approx(proof.steps[0].bound + proof.nodes[0].bound)
    assert proof.steps[0].bound > proof.nodes[0].bound > 0


@pytest.mark.parametrize(
    ("node", "operands"),
    [
        ("Pow", {"base": np.array(3), "exponent": np.array(37)}),
        ("ReduceProd", {"numbers": np.full(70, 3)}),
        ("Pad", {"one": np.ones(1, np.float32), "pads": np.array([2, -2]), "fill": np.float32(1)}),
    ],
)
def test_constants_that_the_evaluator_of_onnx_computes_otherwise(node, operands):
    """onnxruntime computes powers of integers in double, products without wrapping, and removes added elements."""
    model, feeds = build(Case("RNN", 17, outputs=("Y",)))
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in operands.items())
    model.graph.node.extend([
        helper.make_node(node, [*operands], ["result"], **({"keepdims": 0} if node == "ReduceProd" else {})),
        helper.make_node("Cast", ["result"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["number"], ["sum"], keepdims=0), helper.make_node("Div", ["Y", "sum"], ["Z"]),
    ])  # fmt: skip
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Z", TensorProto.FLOAT, None))
    lowered = rnn_lower.lower(model, fold=True)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered).ok


def extended(model: onnx.ModelProto, node: onnx.NodeProto, operands: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The model with a node of constants, whose result `z` is an output."""
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in operands.items())
    model.graph.node.append(node)
    model.graph.output.append(
        helper.make_tensor_value_info("z", numpy_helper.from_array(operands["a"]).data_type, None)
    )
    return model


NAN, INFINITY = np.float32("nan"), np.float32("inf")
HALVES = np.array([[300, 40000], [400, 30000]], np.float16)
FLOATS = [np.array([1, NAN, 3], np.float32), np.array([0, -INFINITY], np.float32)]


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("Clip", {"a": FLOATS[1]}), ("Clip", {"a": FLOATS[0][[0, 2]], "b": NAN}), ("ArgMax", {"a": FLOATS[0]}),
        ("ArgMin", {"a": FLOATS[0]}), ("ReduceMax", {"a": FLOATS[0]}), ("ReduceMin", {"a": FLOATS[0][::-1]}),
        ("ReduceLogSumExp", {"a": np.array([INFINITY, NAN])}),
        *((f"Reduce{name}", {"a": np.array([big, big, 1])})
          for name in ("Sum", "Mean", "L1", "L2") for big in (1 << 52, 1 << 62)),
        *((name, {"a": HALVES}) for name in ("ReduceL2", "ReduceLogSum", "ReduceMean", "ReduceSum")),
        *((name, {"a": HALVES[0], "b": HALVES[1]}) for name in ("Add", "Mean", "Mul", "Sum")),
        ("Shrink", {"a": np.array([2**31 - 2, 2**24 + 1], np.int32)}), ("NonZero", {"a": np.int64(3)}),
    ],
)  # fmt: skip
def test_numbers_that_kernels_compute_differently_are_not_folded(op, operands):
    """NaN, infinity, 16-bit floats, which runtimes widen, and integers, which onnxruntime reduces in double."""
    model = extended(build(Case("RNN", 17, outputs=("Y",)))[0], helper.make_node(op, [*operands], ["z"]), operands)
    if op.startswith("Arg"):
        model.graph.output[-1].type.tensor_type.elem_type = INT64
    feeds = build(Case("RNN", 17, outputs=("Y",)))[1]
    lowered = rnn_lower.lower(model, fold=True)
    assert np.array_equal(run_onnxruntime(lowered, feeds)[-1], run_onnxruntime(model, feeds)[-1], equal_nan=True)
    assert rnn_lower.prove(model, lowered).ok


CHAINS = {
    "Floor of Exp of Log": ["Log", "Exp", "Floor"], "Ceil of Tanh": ["Tanh", "Ceil"], "Equal of Exp of Log": ["Log", "Exp", "Equal"],
    "Cast of Sin": ["Sin", "Cast"], "Sign of Erf": ["Erf", "Sign"], "ThresholdedRelu of Exp": ["Log", "Exp", "ThresholdedRelu"],
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("number", ["whole", "half"])
def test_rounding_that_a_later_node_of_constants_amplifies_is_not_folded(chain, number):
    """Runtimes round functions differently; what is certain, as the Floor of a product, is folded."""
    numbers = np.arange(1, 3000, dtype=np.float32) * np.float32(1 if number == "whole" else 0.5)
    (first, *others), model = CHAINS[chain], build(Case("RNN", 17, outputs=("Y",)))[0]
    model.graph.node.append(helper.make_node(first, ["a"], ["v0"]))
    for index, op in enumerate(others):
        second = ["a"] if op == "Equal" else []
        to = {"to": TensorProto.INT64} if op == "Cast" else {}
        model.graph.node.append(helper.make_node(op, [f"v{index}", *second], [f"v{index + 1}"], **to))
    last = helper.make_node("Cast", [f"v{len(others)}"], ["z"], to=TensorProto.FLOAT)
    model = extended(model, last, {"a": numbers, "half": np.array([0.5], np.float32)})
    model.graph.node.extend(
        [helper.make_node("Mul", ["a", "half"], ["m"]), helper.make_node("Floor", ["m"], ["certain"])]
    )
    model.graph.output.append(helper.make_tensor_value_info("certain", TensorProto.FLOAT, None))
    feeds, lowered = build(Case("RNN", 17, outputs=("Y",)))[1], rnn_lower.lower(model, fold=True)
    for got, wanted in zip(run_onnxruntime(lowered, feeds)[1:], run_onnxruntime(model, feeds)[1:], strict=True):
        assert np.array_equal(got, wanted)
    kept = {node.op_type for node in lowered.graph.node}
    assert {first, *others} <= kept
    assert not any("m" in node.output for node in lowered.graph.node)
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("certain", ["Shape", "ArgMax"])
def test_what_passes_on_no_rounding_is_folded(certain):
    """The sizes of a computed constant, and positions in one that is not computed."""
    model, feeds = build(Case("RNN", 17, outputs=("Y",)))
    nodes = {
        "Shape": [helper.make_node("Exp", ["a"], ["e"]), helper.make_node("Shape", ["e"], ["s"])],
        "ArgMax": [helper.make_node("ArgMax", ["a"], ["s"], keepdims=0)],
    }[certain]
    model.graph.node.extend([*nodes, helper.make_node("Equal", ["s", "two"], ["is"])])
    operands = {"a": np.array([1.5, 2.5], np.float32), "two": np.array([2])}
    model = extended(model, helper.make_node("Cast", ["is"], ["z"], to=TensorProto.FLOAT), operands)
    lowered = rnn_lower.lower(model, fold=True)
    assert not {certain, "Equal", "Cast"} & {node.op_type for node in lowered.graph.node}
    assert np.array_equal(run_onnxruntime(lowered, feeds)[-1], run_onnxruntime(model, feeds)[-1])
    assert rnn_lower.prove(model, lowered).ok


def test_a_constant_that_another_evaluator_folded_is_not_proved():
    model = build(Case("RNN", 17, outputs=("Y",)))[0]
    model.graph.node.append(helper.make_node("Log", ["a"], ["log"]))
    model = extended(model, helper.make_node("Floor", ["log"], ["z"]), {"a": np.array([2.0, 9.0], np.float32)})
    lowered = rnn_lower.lower(model, fold=True)
    assert rnn_lower.prove(model, lowered).ok
    floor = next(node for node in lowered.graph.node if node.op_type == "Floor")
    lowered.graph.initializer.append(numpy_helper.from_array(np.array([0.0, 2.0], np.float32), "folded"))
    floor.op_type, floor.input[0] = "Identity", "folded"
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize(("dtype", "kept_casts"), [(TensorProto.INT4, 2), (TensorProto.FLOAT16, 0)])
def test_weights_are_folded_through_types_that_all_runtimes_round_alike(dtype, kept_casts):
    model, _ = build(Case("GRU", 21, outputs=("Y",)))
    node = model.graph.node[0]
    for k, to in enumerate((TensorProto.FLOAT, dtype)):
        model.graph.node.insert(
            0, helper.make_node("Cast", [node.input[2] if k else "few"], ["few" if k else "R2"], to=to)
        )
    node.input[2] = "R2"
    lowered = rnn_lower.lower(model, fold=True)
    assert sum(each.op_type == "Cast" for each in lowered.graph.node) == kept_casts
    assert rnn_lower.prove(model, lowered).ok == (not kept_casts)


@pytest.mark.parametrize("outputs", [("Y", "", ""), ("Y", "unread", "")])
def test_an_unused_output_that_folding_drops_is_no_difference(outputs):
    """It stands before an operator without an equation, so that no run could prove what follows."""
    model, _ = build(Case("LSTM", 17, outputs=("Y",)))
    model.graph.node[0].output[:] = outputs
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    model.graph.node.extend([
        helper.make_node("Neg", ["two"], ["minus"]), helper.make_node("Mul", ["Y", "minus"], ["product"]),
        helper.make_node("Unknown", ["product"], ["Z"], domain="test"),
    ])  # fmt: skip
    model.opset_import.append(helper.make_opsetid("test", 1))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Z", FLOAT, None))
    assert rnn_lower.prove(model, rnn_lower.lower(model, fold=True)).ok


def test_a_sequence_has_a_type_without_an_element_type_of_its_own():
    model, _ = build(Case("RNN", 17, outputs=("Y",)))
    model.graph.node.extend([
        helper.make_node("SequenceConstruct", ["Y", "Y"], ["both"]),
        helper.make_node("ConcatFromSequence", ["both"], ["Z"], axis=0),
    ])  # fmt: skip
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Z", FLOAT, None))
    inferred = onnx.shape_inference.infer_shapes(rnn_lower.lower(model))
    assert any(info.type.HasField("sequence_type") for info in inferred.graph.value_info)
    assert not any("element type" in text for text in rnn_lower.prove(model, inferred).changed)


def kept(model: onnx.ModelProto, op: str) -> bool:
    return any(node.op_type == op for node in model.graph.node)


@pytest.mark.parametrize(
    ("op", "function"), [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide)]
)
def test_an_axis_of_broadcasting_is_not_ignored(op, function):
    """Before opset 7, the axis of the first operand to which the second one is aligned; numpy would align the last."""
    a, b = X[0, :3], X[1, 0]
    node = helper.make_node(op, ["a", "b"], ["z"], axis=0, broadcast=1)
    model = extended(build(Case("RNN", 6, outputs=("Y",)))[0], node, {"a": a, "b": b})
    folded = {tensor.name: tensor for tensor in rnn_lower.lower(model, fold=True).graph.initializer}
    assert "z" not in folded or np.array_equal(numpy_helper.to_array(folded["z"]), function(a, b[:, None]))
    (found,) = evaluate_node(ir.from_proto(node), [a, b], 6)
    np.testing.assert_array_equal(found, function(a, b[:, None]))


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_a_division_of_integers_by_zero_is_not_folded(op):
    numbers = {"a": np.array([5, 4]), "b": np.array([0, 2])}
    model = extended(build(Case("RNN", 17, outputs=("Y",)))[0], helper.make_node(op, ["a", "b"], ["z"]), numbers)
    lowered = rnn_lower.lower(model, fold=True)
    assert kept(lowered, op)
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("op", ["MatMul", "Add"])
def test_a_product_that_needs_gigabytes_is_not_folded(op):
    ones = np.ones((60000, 1), np.float32)
    model = extended(
        build(Case("RNN", 17, outputs=("Y",)))[0], helper.make_node(op, ["a", "b"], ["z"]), {"a": ones, "b": ones.T}
    )
    lowered = rnn_lower.lower(model, fold=True)
    assert kept(lowered, op)
    assert rnn_lower.prove(model, lowered).ok


def test_nodes_that_lack_an_input_are_not_completed():
    model = extended(
        build(Case("RNN", 1, outputs=("Y",)))[0], helper.make_node("Tile", ["a", "b"], ["z"]), {"a": X, "b": X}
    )
    model.graph.input.append(helper.make_tensor_value_info("c", FLOAT, [2, 5, 3]))
    model.graph.node[-1].input[0] = "c"
    lowered = rnn_lower.lower(model, fold=True)
    assert [list(node.input) for node in lowered.graph.node if node.op_type == "Tile"] == [["c", "b"]]


def test_steps_of_operators_without_an_equation_are_proved():
    """Constants are folded next to operators of another domain, random ones, and shapes that nobody knows."""
    model, _ = build(Case("GRU", 17, outputs=("Y",)))
    model.opset_import.append(helper.make_opsetid("com.other", 1))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    model.graph.node.extend([
        helper.make_node("RandomNormalLike", ["Y"], ["noise"]), helper.make_node("Odd", ["noise"], ["Z"], domain="com.other"),
        helper.make_node("Neg", ["two"], ["minus"]), helper.make_node("Mul", ["Z", "minus"], ["out"]),
    ])  # fmt: skip
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("out", FLOAT, None))
    lowered = rnn_lower.lower(model, fold=True)
    assert not kept(lowered, "Neg")
    assert rnn_lower.prove(model, lowered).ok
    other = onnx.ModelProto()
    other.CopyFrom(model)
    other.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.float32(3), "two"))
    assert not rnn_lower.prove(other, lowered).ok


SIZES = {
    "a dilated pool with padding": ("MaxPool", {"kernel_shape": [3], "strides": [2], "dilations": [2], "auto_pad": "SAME_LOWER"}, 8),
    "a pool that rounds up": ("AveragePool", {"kernel_shape": [1], "strides": [4], "ceil_mode": 1}, 11),
    "a pool that rounds up well": ("AveragePool", {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}, 8),
    "a Resize": ("Resize", {"mode": "nearest"}, 20),
    "an Upsample": ("Upsample", {}, 24),
    "a ConvTranspose of a given size": ("ConvTranspose", {"output_shape": [12], "strides": [2]}, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("fold", [False, True])
def test_sizes_that_inference_finds_and_runtimes_do_not(name, fold):
    op, attributes, steps = SIZES[name]
    opset = 9 if op == "Upsample" else 18
    model, _ = build(Case("GRU", opset, T=1, N=2, I=3, outputs=("Y",)))
    tensors = {"scales": np.float32([1, 1, 0.7 if op == "Resize" else 7 / 3])} if op in ("Resize", "Upsample") else {}
    inputs = ["x", "", "scales"] if op == "Resize" else ["x", *tensors]
    if op == "ConvTranspose":
        tensors, inputs = {"kernel": np.ones((3, 3, 2), np.float32)}, ["x", "kernel"]
    model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in tensors.items())
    model.graph.node[0].input[0] = "frames"
    for index, each in enumerate([
        helper.make_node(op, inputs, ["sized"], **attributes),
        helper.make_node("Transpose", ["sized"], ["frames"], perm=[2, 0, 1]),
    ]):  # fmt: skip
        model.graph.node.insert(index, each)
    model.graph.node.extend([
        helper.make_node("Shape", ["Y"], ["sizes"]), helper.make_node("Cast", ["sizes"], ["numbers"], to=TensorProto.FLOAT),
    ])  # fmt: skip
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, steps]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Y", TensorProto.FLOAT, None))
    model.graph.output.append(helper.make_tensor_value_info("numbers", TensorProto.FLOAT, [4]))
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, steps)).astype(np.float32)}
    lowered = rnn_lower.lower(model, fold=fold)  # onnxruntime folds the Shape that a Loop needs to the wrong number
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert fold or rnn_lower.prove(model, lowered).ok
    if name == "a pool that rounds up well":
        rnn_lower.lower(model, form="unroll", fold=fold)
    else:
        with pytest.raises(rnn_lower.UnsupportedError, match="sequence length of this node is unknown"):
            rnn_lower.lower(model, form="unroll", fold=fold)


@pytest.mark.parametrize("options", [{}, {"form": "unroll"}])
def test_notes_of_what_stays_are_kept(options):
    model, _ = build(Case("GRU", 17, weights="initializer", dynamic=True))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    tensor = model.graph.initializer[-1]
    tensor.doc_string = "a factor"
    tensor.metadata_props.add(key="kept", value="yes")
    model.graph.node.append(helper.make_node("Mul", ["X", "two"], ["Z"]))
    model.graph.output.append(helper.make_tensor_value_info("Z", 1, None))
    x = next(value for value in model.graph.input if value.name == "X")
    sizes = [dim.dim_param for dim in x.type.tensor_type.shape.dim if dim.dim_param]
    x.type.tensor_type.shape.dim[0].denotation = "DATA_TIME"
    folded = rnn_lower.lower(model, fold=True, dims=dict.fromkeys(sizes, 2), **options)
    assert next(each for each in folded.graph.initializer if each.name == "two") == tensor
    x = next(value for value in folded.graph.input if value.name == "X")
    first = x.type.tensor_type.shape.dim[0]
    assert (first.dim_value, first.denotation) == (2, "DATA_TIME")
