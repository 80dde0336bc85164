"""What counts as known: declared inputs, initializers, and what inference makes of them; never an annotation alone."""

from __future__ import annotations

import faulthandler
import os
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import pytest
from judge import close, every_node, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper
from paths import own_models

import rnn_lower
from rnn_lower.modelio.document import Document
from rnn_lower.proving.model_diff import only_recurrent_nodes_changed
from rnn_lower.shapes import shape_info


def behind_an_unknown(case: Case, claimed: list[int | None]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The node's X comes out of a Slice whose ends are an input: what is said of its shape nothing confirms."""
    model, feeds = build(case)
    graph = model.graph
    graph.node[0].input[0] = "cut"
    graph.node.insert(0, onnx.helper.make_node("Slice", ["X", "zero", "ends", "axes"], ["cut"]))
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(v), n) for n, v in (("zero", [0, 0]), ("axes", [0, 1]))
    )
    graph.input.append(onnx.helper.make_tensor_value_info("ends", onnx.TensorProto.INT64, [2]))
    graph.value_info.append(onnx.helper.make_tensor_value_info("cut", onnx.TensorProto.FLOAT, claimed))
    feeds["ends"] = np.array([case.T, case.N])
    return model, feeds


@pytest.mark.parametrize("claimed", [[5, 2, 3], [5, 1, 3], [0, 2, 3], [7, 0, 3], [5, None, None], [-1, -1, 3]])
@pytest.mark.parametrize("form", ["auto", "scan", "loop"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_stale_annotations_are_not_believed(op, form, claimed):
    """7 steps of 3 rows arrive, whatever the annotation says."""
    model, feeds = behind_an_unknown(Case(op, 14, "bidirectional", T=7, N=3, optional=("B",)), claimed)
    for outputs in (slice(None), slice(1, None)):
        close(
            run_onnxruntime(rnn_lower.lower(model, form=form), feeds)[outputs], run_onnxruntime(model, feeds)[outputs]
        )


def test_an_unconfirmed_length_is_not_unrolled():
    model, _ = behind_an_unknown(Case("LSTM", 14, T=7, N=3), [5, 3, 3])
    for options in ({"form": "unroll"}, {"target": "opencv"}):
        with pytest.raises(rnn_lower.UnsupportedError, match="known"):
            rnn_lower.lower(model, **options)


def test_a_confirmed_length_is_unrolled():
    """Shape inference finds it without any annotation, in a body as well."""
    for place in ("main", "if", "loop"):
        model, _ = build(Case("GRU", 14, place=place, outputs=("Y_h",)))
        graph = model.graph
        node = onnx.helper.make_node("Relu", ["X"], ["positive"])
        graph.node.insert(0, node)
        recurrent = next(node for node in every_node(model) if node.op_type == "GRU")
        recurrent.input[0] = "positive"
        result = rnn_lower.lower(model, form="unroll")
        assert not {"Scan", "GRU"} & {node.op_type for node in every_node(result)}


def test_negative_sizes_are_unknown():
    """Of inputs too: Paddle writes them, and onnxruntime takes them so."""
    for op in ("RNN", "GRU", "LSTM"):
        case = Case(op, 14, "reverse", T=4, N=3, optional=("B",))
        model, feeds = build(case)
        wanted = run_onnxruntime(model, feeds)
        for dims in ((-1, 3), (-1, -1), (4, -2)):
            for axis, size in enumerate(dims):
                model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
            for form in ("auto", "scan", "loop"):
                close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), wanted)
            assert rnn_lower.check(model, rnn_lower.lower(model)).ok
            (node,) = rnn_lower.inspect(model)
            assert node.seq_length == (4 if dims[0] == 4 else None)


def test_inference_that_dies_tells_nothing(monkeypatch):
    """It aborts the process on some models; the child's death leaves sizes unknown, and the rest goes on."""

    def die(_: bytes) -> bytes:
        faulthandler.disable()  # the child's death is no news
        os.abort()

    monkeypatch.setattr(shape_info.onnx.shape_inference, "infer_shapes", die)
    model, feeds = behind_an_unknown(Case("GRU", 14, T=7, N=3), [7, 3, 3])
    close(run_onnxruntime(rnn_lower.lower(model), feeds), run_onnxruntime(model, feeds))


def test_what_onnx_ir_cannot_write_tells_nothing():
    """Names of metadata that are no text, beside one that is."""
    model, feeds = behind_an_unknown(Case("GRU", 14, T=7, N=3), [None, 3, 3])
    function = onnx.helper.make_function(
        "own", "same", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], [helper.make_opsetid("", 14)]
    )
    for key in ("text", "KEY?"):
        function.metadata_props.add(key=key, value="")
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    content = model.SerializeToString().replace(b"KEY?", b"KEY\xff")
    odd = onnx.ModelProto.FromString(content)
    lowered = rnn_lower.lower(odd, form="scan")
    assert lowered.functions[0].SerializeToString() == odd.functions[0].SerializeToString()
    with pytest.raises(rnn_lower.UnsupportedError, match="needs a known sequence length"):
        rnn_lower.lower(odd, form="unroll")
    with pytest.raises(rnn_lower.UnsupportedError, match="the package onnx_ir"):
        rnn_lower.lower(odd, fold=True)
    model.ClearField("functions")
    close(run_onnxruntime(rnn_lower.lower(model), feeds), run_onnxruntime(model, feeds))


def test_inference_that_aborts_on_a_slice_of_a_negative_size():
    model, feeds = build(Case("LSTM", 14, T=5))
    model.graph.node[0].input[0] = "cut"
    model.graph.node.insert(0, onnx.helper.make_node("Slice", ["X", "zero", "five"], ["cut"]))
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array([v]), n) for n, v in (("zero", 0), ("five", 5))
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    close(run_onnxruntime(rnn_lower.lower(model), feeds), run_onnxruntime(model, feeds))


def test_made_up_names_are_not_told():
    model, _ = build(Case("GRU", 14))
    model.graph.node[0].input[0] = "some"
    model.graph.node.insert(0, onnx.helper.make_node("NonZero", ["X"], ["positions"]))
    model.graph.node.insert(1, onnx.helper.make_node("Cast", ["positions"], ["numbers"], to=1))
    model.graph.node.insert(2, onnx.helper.make_node("Unsqueeze", ["numbers", "one"], ["some"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "W"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("W", 1, [1, 12, None]))
    (node,) = rnn_lower.inspect(model)
    assert (node.seq_length, node.batch_size, node.input_size) == (3, 1, None)


def test_a_function_called_with_two_types_is_refused():
    model, _ = build(Case("RNN", 18, place="function", weights="input"))
    call = onnx.NodeProto()
    call.CopyFrom(model.graph.node[0])
    call.name, call.input[:], call.output[:] = "second", [f"{n}16" for n in call.input], ["Z", "Z_h"]
    model.graph.node.append(call)
    for value in list(model.graph.input):
        half = onnx.ValueInfoProto()
        half.CopyFrom(value)
        half.name, half.type.tensor_type.elem_type = f"{value.name}16", onnx.TensorProto.FLOAT16
        model.graph.input.append(half)
    model.graph.output.append(onnx.helper.make_tensor_value_info("Z_h", onnx.TensorProto.FLOAT16, None))
    with pytest.raises(rnn_lower.UnsupportedError, match=r"FLOAT and FLOAT16.*fold"):
        rnn_lower.lower(model)
    inlined = onnx.inliner.inline_local_functions(model)
    assert {node.op_type for node in every_node(rnn_lower.lower(inlined, form="scan"))} >= {"Scan"}


def test_weights_without_a_folder_are_carried_along(tmp_path):
    """A ModelProto whose weights are in files: nothing is read from the working directory."""
    model, feeds = build(Case("LSTM", 14, H=16, I=16, optional=("B",)))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w", size_threshold=0)
    bare = onnx.load(path, load_external_data=False)
    result = rnn_lower.lower(bare)
    assert not {"LSTM"} & {node.op_type for node in every_node(result)}
    onnx.save(result, tmp_path / "out.onnx")
    loaded = onnx.load(tmp_path / "out.onnx")
    close(run_onnxruntime(loaded, feeds), run_onnxruntime(onnx.load(path), feeds))
    with pytest.raises(rnn_lower.RnnLowerError, match="in files whose folder is unknown"):
        rnn_lower.check(bare, result)


def test_facts_of_a_document_and_of_an_onnx_ir_model_are_the_same():
    model, _ = build(Case("GRU", 14, place="if"))
    document = Document(model)
    for known in (shape_info.ShapeInfo(document.model, document.outline), shape_info.ShapeInfo(document.model)):
        shapes = {v.name: known.shape(v) for v in document.model.graph.inputs}
        assert shapes["X"] == (5, 2, 3)
        node = next(node for node in document.model.graph.all_nodes() if node.op_type == "GRU")
        assert known.shape(node.outputs[0]) == (5, 1, 2, 4)
        assert known.dtype(node.outputs[0]) == ir.DataType.FLOAT


def test_a_weight_has_the_shape_of_its_data():
    """Whatever value_info tells of it."""
    model, _ = build(Case("GRU", 14))
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "W")
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("W", 1, list(weight.dims)))
    weight.dims[:] = [3, 1, 12]
    with pytest.raises(rnn_lower.InvalidNodeError, match="W has shape"):
        rnn_lower.lower(model)


@pytest.mark.parametrize("form", ["auto", "loop"])
def test_what_a_caller_may_override_is_no_fact(form):
    """The shape that a Reshape goes by is an initializer and an input: the length is the caller's."""
    model, feeds = build(Case("RNN", 14, T=4, N=1, optional=("B",)))
    graph = model.graph
    graph.node[0].input[0] = "shaped"
    graph.node.insert(0, onnx.helper.make_node("Reshape", ["X", "to"], ["shaped"]))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([4, 1, 3]), "to"))
    graph.input.append(onnx.helper.make_tensor_value_info("to", onnx.TensorProto.INT64, [3]))
    for axis in range(3):
        graph.input[0].type.tensor_type.shape.dim[axis].Clear()
    result = rnn_lower.lower(model, form=form)
    rng = np.random.default_rng(0)
    for shape in ((4, 1, 3), (8, 1, 3), (4, 2, 3)):
        given = {"X": rng.uniform(-1, 1, shape).astype(np.float32), "to": np.array(shape)}
        close(run_onnxruntime(result, given), run_onnxruntime(model, given))
    with pytest.raises(rnn_lower.UnsupportedError, match="known sequence length"):
        rnn_lower.lower(model, form="unroll")
    assert feeds


@pytest.mark.parametrize("form", ["auto", "loop", "unroll"])
def test_bodies_of_nodes_out_of_order_keep_their_own_sizes(form):
    """Two Ifs whose bodies use one name for sequences of 4 and of 7 steps, the second written first."""
    model, feeds = build(Case("RNN", 14, place="if", outputs=("Y_h",), T=7))
    graph = model.graph
    for attribute in graph.node[-1].attribute:
        inner = attribute.g.node[0]
        inner.input[0] = "x"
        attribute.g.node.insert(0, onnx.helper.make_node("Relu", ["X"], ["x"]))
    other = onnx.NodeProto()
    other.CopyFrom(graph.node[-1])
    other.name, other.output[0] = "other", "Z"
    for attribute in other.attribute:
        body = attribute.g
        body.node[0].CopyFrom(onnx.helper.make_node("Relu", ["late"], ["x"]))
        body.node[1].name += "_other"
        body.node[1].output[1] += "_other"
        body.output[0].name += "_other"
    graph.node.insert(0, other)
    graph.node.append(onnx.helper.make_node("Slice", ["X", "zero", "four"], ["late"]))
    graph.initializer.extend(onnx.numpy_helper.from_array(np.array([v]), n) for n, v in (("zero", 0), ("four", 4)))
    graph.output.append(onnx.helper.make_tensor_value_info("Z", 1, None))
    close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), run_onnxruntime(model, feeds))
    assert sorted(node.seq_length for node in rnn_lower.inspect(model)) == [4, 4, 7, 7]


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_a_false_size_behind_a_node(op, form):
    """onnxruntime makes one Reshape of two that follow each other, by the size that is declared between them."""
    case = Case(op, 14, T=5, N=3)
    model, feeds = build(case)
    graph, node = model.graph, next(node for node in model.graph.node if node.op_type == op)
    if form != "unroll":
        graph.input[0].type.tensor_type.shape.dim[0].dim_param = "frames"
    y = node.output[0]
    node.output[0] = "all"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 3, case.H]), "flat"))
    graph.node.append(onnx.helper.make_node("Reshape", ["all", "flat"], ["steps"]))
    graph.node.append(onnx.helper.make_node("Neg", ["steps"], ["less"]))
    graph.node.append(onnx.helper.make_node("Unsqueeze", ["less", "one"], [y]))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    graph.value_info.append(onnx.helper.make_tensor_value_info("all", onnx.TensorProto.FLOAT, [16, 1, 3, case.H]))
    lowered = rnn_lower.lower(model, form=form)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == []


@pytest.mark.parametrize("dims", [[4, 2, 3], [2, 3]], ids=["size", "rank"])
def test_what_cannot_be_is_taken_back(dims):
    """Of a value on the way to a node: what is declared of it would be believed inside of a body, and refused there."""
    model, feeds = build(Case("LSTM", 14, T=5, N=2, H=3, optional=("initial_h",)))
    graph, node = model.graph, next(node for node in model.graph.node if node.op_type == "LSTM")
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "frames"
    for place, name in enumerate(("nearer", "near")):
        graph.node.insert(0, onnx.helper.make_node("Relu", [["near", "initial_h"][place]], [name]))
    node.input[5] = "nearer"
    graph.value_info.append(onnx.helper.make_tensor_value_info("near", onnx.TensorProto.FLOAT, dims))
    lowered = rnn_lower.lower(model, form="scan")
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == []
    info = next(info for info in lowered.graph.value_info if info.name == "near")
    left = [dim.dim_value for dim in info.type.tensor_type.shape.dim if dim.HasField("dim_value")]
    assert left == ([2, 3] if len(dims) == 3 else [])


def test_numbers_of_shapes_tell_what_cannot_be():
    """The states are zeros of a shape that the model computes; what is declared of them says something else."""
    model, feeds = build(Case("LSTM", 14, T=5, N=2, H=3, optional=("initial_h",)))
    graph, node = model.graph, next(node for node in model.graph.node if node.op_type == "LSTM")
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "frames"
    graph.input[0].type.tensor_type.shape.dim[1].dim_param = "rows"
    for name, array in (("one", [1]), ("hidden", [3]), ("zero", np.float32(0))):
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    for row in (
        ("Expand", ["zero", "sizes"], ["zeros"]), ("Concat", ["one", "rows", "hidden"], ["sizes"]),
        ("Slice", ["whole", "one", "two"], ["rows"]), ("Shape", ["X"], ["whole"]),
    ):  # fmt: skip
        graph.node.insert(0, onnx.helper.make_node(*row, **({"axis": 0} if row[0] == "Concat" else {})))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([2]), "two"))
    node.input[5] = "zeros"
    graph.value_info.append(onnx.helper.make_tensor_value_info("zeros", onnx.TensorProto.FLOAT, [1, "rows", 7]))
    lowered = rnn_lower.lower(model, form="scan")
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == []


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_a_false_size_behind_a_change_of_shape(form):
    """onnxruntime makes one Reshape of several in a row, and believes what the model declares of the last."""
    model, feeds = build(Case("RNN", 14, T=5, N=1, H=3))
    graph = model.graph
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].Clear()
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 1, 3]), "flat"))
    graph.node.append(onnx.helper.make_node("Reshape", ["Y", "flat"], ["reshaped"]))
    graph.node.append(onnx.helper.make_node("Relu", ["reshaped"], ["Z"]))
    graph.value_info.append(onnx.helper.make_tensor_value_info("reshaped", onnx.TensorProto.FLOAT, [1, 1, 3]))
    graph.output[0].name = "Z"
    lowered = rnn_lower.lower(model, form=form)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == []


def test_inference_that_never_ends():
    """onnx 1.23 counts the numbers of a shape one by one, however many it is told that there are."""
    model, feeds = build(Case("GRU", 14, T=5, N=2))
    graph = model.graph
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "frames"
    for name, number in (("one", 1), ("many", 1 << 62)):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([number]), name))
    rows: list[tuple[str, list[str], list[str], dict[str, int]]] = [
        ("Expand", ["one", "all"], ["wide"], {}), ("Concat", ["far"], ["all"], {"axis": 0}),
        ("Reshape", ["whole", "many"], ["far"], {}), ("Shape", ["X"], ["whole"], {}),
    ]  # fmt: skip
    for op_type, inputs, outputs, attributes in rows:
        graph.node.insert(0, onnx.helper.make_node(op_type, inputs, outputs, **attributes))
    graph.value_info.append(onnx.helper.make_tensor_value_info("wide", onnx.TensorProto.INT64, [4]))
    lowered = rnn_lower.lower(model)
    for one in (model, lowered):  # onnxruntime refuses to reshape so
        del one.graph.node[: len(rows)]
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def in_a_loop(claimed: list[int | str]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """An LSTM over what a Loop collects, of which the body claims a shape."""
    model, feeds = build(Case("LSTM", 14, T=5, N=2, optional=("initial_h",)))
    graph, node = model.graph, next(node for node in model.graph.node if node.op_type == "LSTM")
    graph.input[0].type.tensor_type.shape.dim[1].dim_param = "rows"
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    boolean, integer = onnx.TensorProto.BOOL, onnx.TensorProto.INT64
    body = onnx.helper.make_graph(
        [make("Gather", ["X", "index"], ["frame"]), make("Reshape", ["frame", "form"], ["step"]),
         make("Identity", ["more"], ["again"])],
        "body", [info("index", integer, []), info("more", boolean, [])],
        [info("again", boolean, []), info("step", onnx.TensorProto.FLOAT, claimed)],
    )  # fmt: skip
    graph.node.insert(0, make("Loop", ["steps", "go"], ["frames"], body=body))
    graph.node.insert(0, make("Concat", ["minus", "wide"], ["form"], axis=0))
    arrays = {"steps": np.array(5), "go": np.array(True), "minus": np.array([-1]), "wide": np.array([3])}
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    node.input[0] = "frames"
    return model, feeds


@pytest.mark.parametrize("claimed", [[7, 3], [2, 3], ["rows", 3]])
@pytest.mark.parametrize("form", ["scan", "loop"])
def test_what_a_body_claims_of_its_results_is_not_believed(form, claimed):
    model, feeds = in_a_loop(claimed)
    lowered = rnn_lower.lower(model, form=form)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == []


def test_what_a_body_claims_of_its_inputs_is_not_believed():
    """The state of a loop that Keras wrote, said to be turned: the result of the loop would be, and X behind it."""
    model = onnx.load(next(path for path in own_models() if path.stem == "keras_gru_lstm"))
    bodies = (attribute.g for node in model.graph.node for attribute in node.attribute if attribute.HasField("g"))
    state = next(value for body in bodies for value in body.input if value.name.endswith("gru_1_while_placeholder_2:0"))
    dims = state.type.tensor_type.shape.dim
    turned = [dim.SerializeToString() for dim in reversed(dims)]
    for dim, text in zip(dims, turned, strict=True):
        dim.ParseFromString(text)
    lowered = rnn_lower.lower(model, form="scan")
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == []
    assert rnn_lower.check(model, lowered).ok


def test_a_size_that_may_be_is_left():
    """And the comparison of models does not let it go."""
    model, _ = build(Case("LSTM", 14, T=5, N=2, H=3, optional=("initial_h",)))
    graph = model.graph
    graph.node.append(onnx.helper.make_node("Relu", [graph.output[0].name], ["beyond"]))
    graph.node.append(onnx.helper.make_node("Relu", ["beyond"], ["further"]))
    graph.output.append(onnx.helper.make_tensor_value_info("further", onnx.TensorProto.FLOAT, None))
    graph.value_info.append(onnx.helper.make_tensor_value_info("beyond", onnx.TensorProto.FLOAT, [5, 1, 2, 3]))
    lowered = rnn_lower.lower(model)
    info = next(info for info in lowered.graph.value_info if info.name == "beyond")
    assert info == next(info for info in graph.value_info if info.name == "beyond")
    info.type.tensor_type.shape.dim[0].ClearField("dim_value")
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == ["graph: value_info has changed"]


@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_a_false_size_further_up(op, form):
    """What inference makes of it would be believed of X, and products be reshaped by it."""
    model, _ = build(Case(op, 17, dynamic=True, optional=("B",)))
    model.graph.node[0].input[0] = "x"
    model.graph.node.insert(0, onnx.helper.make_node("Neg", ["p"], ["x"]))
    model.graph.node.insert(0, onnx.helper.make_node("Relu", ["X"], ["p"]))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("p", 1, [5, 2, 3]))
    lowered = rnn_lower.lower(model, form=form)
    for T, N in ((2, 5), (10, 1), (6, 3)):
        feeds = build(Case(op, 17, T=T, N=N, dynamic=True, optional=("B",)))[1]
        close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == []


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("given", [False, True])
def test_what_no_caller_of_a_caller_gives_is_not_there(depth, given):
    """A function may pass on what nobody has passed to it."""
    model, feeds = build(Case("GRU", 17, optional=("initial_h",)))
    (node,) = model.graph.node
    names = ["X", "W", "R", "initial_h"]
    inner = onnx.NodeProto.FromString(node.SerializeToString())
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    for level in range(depth):
        function = onnx.helper.make_function("own", f"F{level}", names, list(node.output), [inner], imports)
        model.functions.append(function)
        inner = onnx.helper.make_node(f"F{level}", names, node.output, domain="own")
    model.opset_import.append(imports[1])
    call = onnx.helper.make_node(f"F{depth - 1}", names if given else names[:3], node.output, "call", domain="own")
    model.graph.node[0].CopyFrom(call)
    lowered = rnn_lower.lower(model)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def dynamic(nodes: list[onnx.NodeProto], outputs: dict[str, list[Any]], op: str, D: int = 1) -> onnx.ModelProto:
    """Nodes around one of H = 4 that reads x or X, with false or true sizes of outputs."""
    rng, gates = np.random.default_rng(0), {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    tensors = [
        numpy_helper.from_array(rng.standard_normal((D, gates * 4, width)).astype(np.float32), name)
        for name, width in (("W", 3), ("R", 4))
    ]
    tensors += [numpy_helper.from_array(np.array(v), n) for n, v in (("one", [1]), ("joined", [0, 0, -1]))]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["T", "N", 3])
    graph = helper.make_graph(nodes, "g", [x], infos, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FALSE = [[5, 2], [1, 2], [7, 1], [7, 4], [14, 1], [28, 2]]


@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("sizes", FALSE, ids=str)
@pytest.mark.parametrize("where", ["what it reads", "what it gives", "what is made of it", "of both directions"])
def test_false_sizes_of_outputs(where, sizes, op, form, caplog):
    """An output of the model may be what a node reads: a runtime believes what is declared of it."""
    caplog.set_level("WARNING")  # the command line may have raised it
    D = 2 if where == "of both directions" else 1
    before = [helper.make_node("Relu", ["X"], ["x"])] if where == "what it reads" else []
    node = helper.make_node(
        op,
        ["x" if before else "X", "W", "R"],
        ["Y", "Y_h"],
        hidden_size=4,
        direction=["forward", "bidirectional"][D - 1],
    )
    after = {
        "what is made of it": [helper.make_node("Squeeze", ["Y", "one"], ["y"])],
        "of both directions": [
            helper.make_node("Transpose", ["Y"], ["turned"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", ["turned", "joined"], ["y"]),
        ],
    }.get(where, [])
    T, N = sizes
    shapes = {"Y": [T, 1, N, 4], "Y_h": [1, N, 4]} if where == "what it gives" else {"Y": None, "Y_h": None}
    shapes |= {"x": [T, N, 3]} if before else {"y": [T, N, 4 * D]} if after else {}
    model = dynamic([*before, node, *after], shapes, op, D)
    feeds = {"X": np.random.default_rng(1).standard_normal((7, 2, 3)).astype(np.float32)}
    lowered = rnn_lower.lower(model, form=form)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == []
    if where != "of both directions":
        assert "declared shape" in caplog.text


def test_sizes_of_outputs_that_follow_stay():
    model, _ = build(Case("GRU", 17))
    assert rnn_lower.lower(model).graph.output == model.graph.output


def test_sizes_of_outputs_elsewhere_stay(caplog):
    nodes = [helper.make_node("GRU", ["X", "W", "R"], ["Y"], hidden_size=4), helper.make_node("Relu", ["X"], ["z"])]
    model = dynamic(nodes, {"Y": None, "z": [3, 3, 3]}, "GRU")
    assert rnn_lower.lower(model).graph.output == model.graph.output
    assert "declared shape" not in caplog.text


@pytest.mark.parametrize("own", [False, True])
def test_bodies_read_integers_from_outside(own):
    """Unless an own value of the body has the same name."""
    inner = "axes = Add (other, other) a = Squeeze (x, axes)" if own else "a = Squeeze (x, axes)"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[3,1,4] x, bool c) => (float[a,b] y)
        <int64[1] axes = {{1}}, int64[1] other = {{1}}> {{
        y = If (c) <then_branch = t () => (float[m,n] a) {{ {inner} }}, else_branch = e () => (float[p,q] b) {{ b = Squeeze (x, axes) }}> }}""")
    held = ir.from_proto(model)
    shape = shape_info.ShapeInfo(held).verified_shape(held.graph.outputs[0])
    assert (shape == (3, 4)) != own


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_one_step_of_a_loop_has_a_known_length(op):
    """The number of a step has the rank that it declares, so that a Gather of the frame has a known rank."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    matrix = ",".join(str(index % 5 / 5) for index in range(gates * 9))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,2,3] x, float[1,2,3] h) => (float[1,2,3] y)
        <float[1,{gates * 3},3] W = {{{matrix}}}, float[1,{gates * 3},3] R = {{{matrix}}}, int64[1] zero = {{0}}, bool true = {{1}}, int64 at = {{0}}> {{
        s = Shape (x) n = Gather (s, at)
        y = Loop (n, true, h) <body = b (int64 i, bool c, float[1,2,3] state) => (bool go, float[1,2,3] next) {{
            frame = Gather (x, i) row = Unsqueeze (frame, zero)
            no, next = {op} <hidden_size = 3> (row, W, R, , , state) go = Identity (c) }}> }}""")
    (node,) = rnn_lower.inspect(model)
    assert (node.static_length, node.static_batch) == (1, 2)
    lowered = rnn_lower.lower(model, target="openvino")
    feeds = {"x": np.ones((4, 2, 3), np.float32), "h": np.zeros((1, 2, 3), np.float32)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered)
