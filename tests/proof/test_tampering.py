"""Files that were changed after they were lowered, in ways that a proof has to see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from judge import every_node, marked, run_onnxruntime
from onenode import Case, build
from onnx import helper, numpy_helper

import rnn_lower
from rnn_lower.driver.legalize_rest import LEGALIZED
from rnn_lower.ir.protobuf import holders
from rnn_lower.ir.walk import is_emitted
from rnn_lower.proving.model_diff import only_recurrent_nodes_changed


def test_a_converted_node_is_compared_with_the_converted_original():
    model, _ = build(Case("LSTM", 13))
    model.graph.node.append(helper.make_node("Relu", ["Y"], ["Z"]))
    model.graph.output.append(helper.make_tensor_value_info("Z", 1, None))
    lowered = rnn_lower.lower(model, opset=17)
    assert rnn_lower.prove(model, lowered).ok
    next(node for node in lowered.graph.node if node.output[0] == "Z").op_type = "Neg"
    assert not rnn_lower.prove(model, lowered).ok


def test_a_marked_node_of_the_same_operator_is_not_the_one_that_was_kept():
    model, _ = build(Case("LSTM", 17))
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    node = changed.graph.node[0]
    node.metadata_props.add(key="rnn_lower.node", value="node")
    del node.output[1:], changed.graph.output[1:]
    del model.graph.output[1:]
    node.attribute.append(helper.make_attribute("direction", "reverse"))
    assert not rnn_lower.prove(model, changed).ok


def test_a_maximum_of_three_is_no_maximum_of_two():
    model, _ = build(Case("RNN", 17, activations=("Relu",)))
    lowered = rnn_lower.lower(model, form="unroll")
    for name, number in (("zero", 0.0), ("hundred", 100.0)):
        lowered.graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), name))
    for node in lowered.graph.node:
        if node.op_type == "Relu":
            node.op_type, node.input[:] = "Max", [node.input[0], "zero", "hundred"]
    assert not rnn_lower.prove(model, lowered).ok


def with_branches(inner: tuple[onnx.NodeProto, ...] = ()) -> onnx.ModelProto:
    """The LSTM beside an If whose branch reads h from around it, after other nodes."""
    model, _ = build(Case("LSTM", 17))
    result = [helper.make_tensor_value_info("r", 1, None)]
    yes = helper.make_graph([*inner, helper.make_node("Relu", ["h"], ["r"])], "yes", [], result)
    no = helper.make_graph([helper.make_node("Neg", ["X"], ["r"])], "no", [], result)
    model.graph.node.extend([
        helper.make_node("Abs", ["X"], ["h"]),
        helper.make_node("If", ["c"], ["Z"], then_branch=yes, else_branch=no),
    ])  # fmt: skip
    model.graph.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    model.graph.output.append(helper.make_tensor_value_info("Z", 1, None))
    return model


def test_a_marked_node_does_not_stand_before_what_a_branch_takes_from_outside():
    model, hidden = with_branches(), marked("Add", ["X", "X"], ["h"], "hidden")
    lowered = rnn_lower.lower(model)
    place = [node.op_type for node in lowered.graph.node].index("If")
    lowered.graph.node[place].CopyFrom(with_branches((hidden,)).graph.node[2])
    told = only_recurrent_nodes_changed((model, None), (lowered, None))
    assert [line for line in told if "redefines 'h'" in line], told
    for command in (rnn_lower.prove, rnn_lower.check):
        with pytest.raises(rnn_lower.RnnLowerError, match="'h' is defined twice, here and in an outer scope"):
            command(model, lowered)


def test_names_of_others_that_come_later_may_be_used_in_a_branch():
    """onnxruntime and onnx.checker take these."""
    model = with_branches((helper.make_node("Neg", ["X"], ["later"]),))
    model.graph.node.append(helper.make_node("Identity", ["Z"], ["later"]))
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    assert rnn_lower.check(model, lowered).ok


def external(folder: Path, number: float) -> onnx.TensorProto:
    folder.mkdir()
    (folder / "d.bin").write_bytes(np.array([number], np.float32).tobytes())
    tensor = onnx.TensorProto(name="held", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="d.bin")
    return tensor


def of_default(tensor: onnx.TensorProto, name: str = "value") -> onnx.ModelProto:
    """A function with a default that is a tensor."""
    model, _ = build(Case("LSTM", 17))
    constant = helper.make_node("Constant", [], ["k"])
    constant.attribute.append(onnx.AttributeProto(name=name, ref_attr_name="v", type=onnx.AttributeProto.TENSOR))
    body = [constant, helper.make_node("Add", ["a", "k"], ["b"])]
    function = helper.make_function("own", "f", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    function.attribute_proto.append(onnx.AttributeProto(name="v", type=onnx.AttributeProto.TENSOR, t=tensor))
    model.functions.append(function)
    model.graph.node.append(helper.make_node("f", ["Y"], ["Z"], domain="own"))
    return finished(model)


def of_attribute(model: onnx.ModelProto, **held: object) -> onnx.ModelProto:
    """A node of an unknown operator with one attribute."""
    node = helper.make_node("Foo", ["Y"], ["Z"], domain="own")
    kind = {"tensors": "TENSORS", "sparse_tensors": "SPARSE_TENSORS", "graphs": "GRAPHS"}[next(iter(held))]
    node.attribute.append(onnx.AttributeProto(name="v", type=getattr(onnx.AttributeProto, kind), **held))
    model.graph.node.append(node)
    return finished(model)


def finished(model: onnx.ModelProto) -> onnx.ModelProto:
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.output.append(helper.make_tensor_value_info("Z", 1, None))
    return model


def sparse(values: onnx.TensorProto) -> onnx.SparseTensorProto:
    indices = numpy_helper.from_array(np.array([0]), "indices")
    return onnx.SparseTensorProto(values=values, indices=indices, dims=[3])


HOLDERS = {
    "default of a function": of_default,
    "tensors": lambda tensor: of_attribute(build(Case("LSTM", 17))[0], tensors=[tensor, tensor]),
    "sparse tensors": lambda tensor: of_attribute(build(Case("LSTM", 17))[0], sparse_tensors=[sparse(tensor)]),
}


@pytest.mark.parametrize("where", HOLDERS)
def test_data_in_files_is_compared_by_what_it_holds(where, tmp_path):
    for name, number in (("a", 1.0), ("b", 2.0)):
        onnx.save(HOLDERS[where](external(tmp_path / name, number)), tmp_path / name / "m.onnx")
    proof = rnn_lower.prove(str(tmp_path / "a" / "m.onnx"), str(tmp_path / "b" / "m.onnx"))
    assert [line for line in proof.changed if "tensor 'held' has changed" in line], proof.changed
    (tmp_path / "c").mkdir()
    rnn_lower.lower_file(str(tmp_path / "a" / "m.onnx"), str(tmp_path / "c" / "out.onnx"))
    assert rnn_lower.prove(str(tmp_path / "a" / "m.onnx"), str(tmp_path / "c" / "out.onnx")).ok


NUMBERS = [numpy_helper.from_array(np.ones(1, np.float32), name) for name in ("one", "two")]
GRAPH = helper.make_graph([], "empty", [], [])
VALUES = {"tensors": NUMBERS, "sparse_tensors": list(map(sparse, NUMBERS)), "graphs": [GRAPH, GRAPH]}


@pytest.mark.parametrize("kind", VALUES)
def test_another_number_of_values_is_seen(kind):
    model = of_attribute(build(Case("LSTM", 17))[0], **{kind: VALUES[kind]})
    lowered = rnn_lower.lower(model)
    del getattr(next(node for node in lowered.graph.node if node.op_type == "Foo").attribute[0], kind)[1:]
    told = rnn_lower.prove(model, lowered).changed
    assert [line for line in told if "the number of entries has changed" in line], told


def test_a_loop_that_does_not_end_is_out_of_scope():
    model, _ = build(Case("LSTM", 17, T=1, outputs=("Y",)))
    lowered = rnn_lower.lower(model, form="unroll")
    last = next(node for node in lowered.graph.node if "Y" in node.output)
    last.output[list(last.output).index("Y")] = "before"
    values = [helper.make_tensor_value_info(name, 1, None) for name in ("h", "h_out")]
    trip, going, still = (helper.make_tensor_value_info(*one, []) for one in (("t", 7), ("go", 9), ("still", 9)))
    nodes = [marked("Identity", ["go"], ["still"]), marked("Identity", ["h"], ["h_out"])]
    body = helper.make_graph(nodes, "body", [trip, going, values[0]], [still, values[1]])
    lowered.graph.node.append(marked("Loop", ["many", "true", "before"], ["Y"], body=body))
    for name, value in (("many", np.array(2**40)), ("true", np.array(True))):
        lowered.graph.initializer.append(numpy_helper.from_array(value, name))
    (proof,) = rnn_lower.prove(model, lowered).nodes
    assert "more than 100000 times" in proof.reason


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("place", ["main", "if", "function"])
@pytest.mark.parametrize("as_function", [False, True])
def test_nodes_that_read_what_comes_later(form, place, as_function):
    """onnx's checker rejects such files; onnxruntime rejects them in bodies."""
    model, _ = build(Case("LSTM", 17, place=place))
    lowered = rnn_lower.lower(model, form=form, as_function=as_function)
    assert rnn_lower.prove(model, lowered).ok
    unsorted = 0
    for graph in holders(lowered):
        nodes = list(graph.node)
        del graph.node[:]
        graph.node.extend(reversed(nodes))
        read = {name for node in nodes for name in node.input}
        if any(name in read for node in nodes for name in node.output):
            proof = rnn_lower.prove(model, lowered)
            assert not proof.ok
            assert any("checker reports" in line for line in proof.changed), proof
            unsorted += 1
        del graph.node[:]
        graph.node.extend(nodes)
    assert unsorted


def body_of(model: onnx.ModelProto) -> onnx.GraphProto:
    scan = next(node for node in model.graph.node if node.op_type == "Scan")
    return next(attribute.g for attribute in scan.attribute if attribute.name == "body")


def declared(graph: onnx.GraphProto) -> onnx.ValueInfoProto:
    """The declaration of a value that a MatMul computes."""
    name = next(node.output[0] for node in graph.node if node.op_type == "MatMul")
    del graph.value_info[:]
    return graph.value_info.add(name=name)


FLOATS = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: [setattr(node, "name", "same") for node in m.graph.node], "several nodes have the name 'same'"),
        (lambda m: [setattr(node, "name", "same") for node in body_of(m).node], "several nodes have the name 'same'"),
        (lambda m: body_of(m).input[0].type.tensor_type.ClearField("elem_type"), "has no tensor element type"),
        (
            lambda m: body_of(m).input[0].type.CopyFrom(helper.make_sequence_type_proto(FLOATS)),
            "has no tensor element type",
        ),
        (
            lambda m: declared(m.graph).type.CopyFrom(helper.make_sequence_type_proto(FLOATS)),
            "has no tensor element type",
        ),
        (
            lambda m: declared(m.graph).type.CopyFrom(helper.make_optional_type_proto(FLOATS)),
            "has no tensor element type",
        ),
        (lambda m: declared(m.graph).type.sparse_tensor_type.SetInParent(), "has no tensor element type"),
        (lambda m: setattr(body_of(m), "name", ""), "checker reports"),
    ],
)
def test_files_that_do_not_load_are_not_proved(change, reason):
    model, _ = build(Case("LSTM", 17))
    lowered = rnn_lower.lower(model, form="scan")
    change(lowered)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    proof = rnn_lower.prove(model, lowered)
    assert not proof.ok
    assert any(reason in line for line in (*proof.changed, *(node.reason for node in proof.nodes))), proof


def test_an_original_that_is_not_sorted_is_proved():
    model, _ = build(Case("LSTM", 17))
    model.graph.node.insert(0, helper.make_node("Relu", ["Y"], ["Z"]))
    model.graph.output.append(helper.make_tensor_value_info("Z", 1, None))
    assert rnn_lower.prove(model, rnn_lower.lower(model)).ok


def masks(model: onnx.ModelProto, nodes: list[tuple[str, list[str], dict[str, object]]], both: bool) -> None:
    """Compute the lengths, or both operands of the mask's Less, by further nodes; "x" is the operand."""
    less = next(node for node in model.graph.node if node.op_type == "Less")
    place = list(model.graph.node).index(less)
    for k in (0, 1) if both else (1,):
        value = less.input[k]
        for number, (op, inputs, attributes) in enumerate(nodes):
            names = [value if name == "x" else name for name in inputs]
            value = f"added_{k}_{number}"
            model.graph.node.insert(place, marked(op, names, [value], f"{value}_node", **attributes))
            place += 1
        less.input[k] = value


CONSTANTS = {
    "large": np.int32(65536), "unsigned": np.uint64(1), "float": np.float32(2**25), "fifty": np.int32(50),
    "two": np.int32(2), "hundred": np.int32(100), "shape": np.array([1, 1]), "five": np.int32(5),
    "table": np.minimum(np.arange(-5, 205), 100).astype(np.int32),
}  # fmt: skip
MASKS = {
    "an int32 that wraps": ([("Mul", ["x", "large"], {}), ("Mul", ["x", "large"], {})], True, 5),
    "an unsigned number": ([("Cast", ["x"], {"to": 13}), ("Sub", ["x", "unsigned"], {})], True, 5),
    "float16": ([("Cast", ["x"], {"to": 10}), ("Cast", ["x"], {"to": 1})], True, 2051),
    "bfloat16": ([("Cast", ["x"], {"to": 16}), ("Cast", ["x"], {"to": 1})], True, 259),
    "a large float": ([("Cast", ["x"], {"to": 1}), ("Add", ["x", "float"], {})], True, 5),
    "a computed limit": ([("Mul", ["fifty", "two"], {}), ("Min", ["L", "x"], {})], False, 105),
    "a reshaped limit": ([("Reshape", ["hundred", "shape"], {}), ("Min", ["L", "x"], {})], False, 105),
    "a table": ([("Add", ["x", "five"], {}), ("Gather", ["table", "x"], {})], False, 105),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_wrong_for_some_lengths(name):
    """Each agrees in exact arithmetic at the lengths that a proof runs, but not in a runtime or beyond them."""
    nodes, both, T = MASKS[name]
    case = Case("RNN", 17, T=T, N=2, dynamic=True, optional=("sequence_lens",))
    model, feeds = build(case)
    lowered = rnn_lower.lower(model, form="scan")
    lengths = next(node for node in lowered.graph.node if node.op_type == "Less").input[1]
    for key, number in CONSTANTS.items():
        lowered.graph.initializer.append(numpy_helper.from_array(np.asarray(number), key))
    chained = [(op, [lengths if each == "L" else each for each in inputs], more) for op, inputs, more in nodes]
    masks(lowered, chained, both)
    onnx.checker.check_model(lowered)
    feeds["sequence_lens"] = np.array([T, T - 2], feeds["sequence_lens"].dtype)
    ours, theirs = run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds)
    assert not all(np.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))
    assert not rnn_lower.prove(model, lowered).ok


def test_one_row_with_lengths_is_compared():
    model, _ = build(Case("RNN", 17, dynamic=True, optional=("sequence_lens",), outputs=("Y", "Y_h")))
    lowered = rnn_lower.lower(model, form="scan")
    last = next(node for node in lowered.graph.node if "Y_h" in node.output)
    place = list(lowered.graph.node).index(last)
    for node in (
        marked("Unsqueeze", [last.input[0], last.input[1]], ["more"], "more"),
        marked("Squeeze", ["more"], ["fewer"], "fewer"),
    ):
        lowered.graph.node.insert(place, node)
        place += 1
    last.input[0] = "fewer"
    assert not rnn_lower.prove(model, lowered).ok


def test_a_declaration_of_an_output_is_compared():
    model, _ = build(Case("GRU", 17, dynamic=True))
    model.graph.node.append(helper.make_node("Shape", ["Y"], ["sizes"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("sizes", onnx.TensorProto.INT64, [4]))
    lowered = rnn_lower.lower(model, form="scan")
    assert rnn_lower.prove(model, lowered).ok
    lowered.graph.value_info.append(helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, [7, 1, 2, 4]))
    assert not rnn_lower.prove(model, lowered).ok


def test_an_output_keeps_the_sizes_that_are_found():
    model, _ = build(Case("GRU", 17, T=3, N=2, H=4))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, [3, 1, 2, 4]))
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    lowered.graph.output[0].type.tensor_type.shape.dim[0].ClearField("dim_value")
    assert not rnn_lower.prove(model, lowered).ok
    lowered.graph.output[0].type.tensor_type.ClearField("shape")
    assert not rnn_lower.prove(model, lowered).ok


def test_a_body_that_returns_a_value_twice_with_different_declarations():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[2,1,3] x) => (float[a,b,c] y, float[d,e,f,g] all)
        <int64 trips = {3}, float[1,16,3] W = {0}, float[1,16,4] R = {0}> {
        y, all, states = Loop <body = body (int64 i, bool c, float[2,1,3] s) => (bool d, float[2,1,3] t, float[1,1,4] h, float[a,b,c] t) {
            n, h = LSTM <hidden_size = 4> (s, W, R) d = Identity (c) t = Add (s, s) }> (trips, , x) }""")
    for tensor in model.graph.initializer[1:]:
        tensor.CopyFrom(numpy_helper.from_array(np.ones(tensor.dims, np.float32), tensor.name))
    model.graph.node[0].attribute[0].g.output[3].type.tensor_type.ClearField("shape")
    assert rnn_lower.prove(model, rnn_lower.lower(model)).ok


def with_unread_rnn(lowered: onnx.ModelProto) -> None:
    """Add a recurrent node, as a model has in which loops became recurrent nodes."""
    shapes = {"zero_W": (1, 2, 3), "zero_R": (1, 2, 2)}
    lowered.graph.initializer.extend(
        numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in shapes.items()
    )
    lowered.graph.node.append(helper.make_node("RNN", ["X", *shapes], ["zero_Y"], "unread", hidden_size=2))


def with_mark(lowered: onnx.ModelProto) -> None:
    """State that nodes were replaced that are not recurrent."""
    lowered.metadata_props.add(key=LEGALIZED, value="opencv --legalize-all")


FRAME = {
    "metadata_props": lambda m: m.metadata_props.add(key="a", value="b"),
    "opset_import": lambda m: m.opset_import.add(domain="other", version=1),
    "doc_string": lambda m: setattr(m.graph, "doc_string", "another"),
    "functions": lambda m: m.functions.append(
        helper.make_function("other", "F", ["a"], ["b"], [helper.make_node("Identity", ["a"], ["b"])], m.opset_import)
    ),
    "output": lambda m: setattr(m.graph.output[0].type.tensor_type.shape.dim[0], "dim_value", 77),
    "input": lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[2], "dim_param", "any"),
}


@pytest.mark.parametrize("choose", [with_unread_rnn, with_mark])
@pytest.mark.parametrize("field", FRAME)
def test_a_file_does_not_choose_a_weaker_proof(field, choose):
    """Both make the prover compare whole models, which must not hide other changes."""
    model, _ = build(Case("LSTM", 17, I=3))
    lowered = rnn_lower.lower(model)
    choose(lowered)
    assert not rnn_lower.prove(model, lowered).ok
    FRAME[field](lowered)
    proof = rnn_lower.prove(model, lowered)
    assert any(field in line or "checker reports" in line for line in proof.changed), proof


def moved_to(domain: str, name: str):
    def change(lowered: onnx.ModelProto) -> None:
        (function,) = lowered.functions
        (call,) = (node for node in lowered.graph.node if node.domain == function.domain)
        (entry,) = (entry for entry in lowered.opset_import if entry.domain == function.domain)
        function.name, function.domain = name, domain
        call.op_type, call.domain, entry.domain = name, domain, domain

    return change


@pytest.mark.parametrize(
    "change",
    [
        moved_to("com.microsoft", "QAttention"),  # an operator of onnxruntime
        lambda m: setattr(m, "ir_version", 100),
        lambda m: m.functions[0].opset_import.add(domain="other", version=1),
        lambda m: m.functions[0].attribute.append("axis"),
        lambda m: m.opset_import.remove(next(entry for entry in m.opset_import if entry.domain)),
    ],
)
def test_a_function_is_one_that_lowering_makes(change):
    model, _ = build(Case("LSTM", 17))
    lowered = rnn_lower.lower(model, as_function=True)
    change(lowered)
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("name", ["rnn_lower::GRU_scan/X_W", "X_W"])
def test_a_false_size_of_a_value_that_is_named_like_one_of_a_function(name):
    both, other = build(Case("GRU", 17, dynamic=True))[0], build(Case("GRU", 17, dynamic=True, seed=1))[0]
    (node,) = other.graph.node
    node.name, node.output[:] = "other", ["Z"]
    both.graph.node.append(node)
    both.graph.output.append(helper.make_tensor_value_info("Z", 1, None))
    lowered = rnn_lower.lower(both, select=lambda node: node.name != "other", as_function=True)
    lowered = rnn_lower.lower(lowered)
    product = next(node.output[0] for node in lowered.graph.node if node.op_type == "MatMul")
    for node in lowered.graph.node:
        for ends in (node.input, node.output):
            ends[:] = [name if each == product else each for each in ends]
    assert rnn_lower.prove(both, lowered).ok
    lowered.graph.value_info.append(helper.make_tensor_value_info(name, 1, [None, 7, None]))
    assert not rnn_lower.prove(both, lowered).ok


def tiled(lowered: onnx.ModelProto) -> None:
    """Repeat an output once along its first axis; numpy also accepts fewer repeats than axes, ONNX does not."""
    producer = next(node for node in lowered.graph.node if "Y" in node.output)
    producer.output[list(producer.output).index("Y")] = "once"
    lowered.graph.initializer.append(numpy_helper.from_array(np.array([1]), "repeats"))
    lowered.graph.node.append(marked("Tile", ["once", "repeats"], ["Y"]))


def twice(lowered: onnx.ModelProto) -> None:
    """Store the numbers of a weight in two fields."""
    weight = next(tensor for tensor in lowered.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT)
    weight.float_data.extend(numpy_helper.to_array(weight).ravel())


@pytest.mark.parametrize("change", [tiled, twice, lambda m: setattr(m.graph.node[0], "domain", "ai.onnx")])
@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
def test_a_model_that_the_checker_rejects_is_not_proved(change, form):
    model, _ = build(Case("LSTM", 17, T=3))
    lowered = rnn_lower.lower(model, form=form)
    change(lowered)
    with pytest.raises((onnx.checker.ValidationError, onnx.shape_inference.InferenceError)):
        onnx.checker.check_model(lowered, full_check=True)
    assert not rnn_lower.prove(model, lowered).ok


def computed_on(lowered: onnx.ModelProto, *steps: tuple[str, float]) -> onnx.ModelProto:
    """The model with more nodes behind Y, each with a constant operand."""
    producer = next(node for node in lowered.graph.node if "Y" in node.output)
    producer.output[list(producer.output).index("Y")] = "value0"
    for index, (op_type, number) in enumerate(steps):
        lowered.graph.initializer.append(numpy_helper.from_array(np.float32(number), f"number{index}"))
        output = "Y" if index == len(steps) - 1 else f"value{index + 1}"
        lowered.graph.node.append(marked(op_type, [f"value{index}", f"number{index}"], [output]))
    return lowered


@pytest.mark.parametrize(
    ("steps", "exact"),
    [
        ([("Add", 2.0**30), ("Sub", 2.0**30)], False),
        ([("Sub", 2.0**30), ("Add", 2.0**30)], False),
        ([("Mul", 2.0**-140), ("Div", 2.0**-140)], False),
        ([("Mul", 2.0**100), ("Mul", 2.0**100), ("Div", 2.0**100), ("Div", 2.0**100)], False),
        ([("Mul", 2.0), ("Div", 2.0)], True),
    ],
)
def test_constants_that_cancel_are_not_proved_where_floats_lose_digits(steps, exact):
    model, feeds = build(Case("LSTM", 17, outputs=("Y",)))
    lowered = computed_on(rnn_lower.lower(model), *steps)
    onnx.checker.check_model(lowered)
    pairs = zip(run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds), strict=True)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in pairs) == exact
    assert rnn_lower.prove(model, lowered).ok == exact


def test_an_empty_output_has_all_other_sizes():
    model, _ = build(Case("LSTM", 17, T=0, outputs=("Y",)))
    lowered = rnn_lower.lower(model, form="unroll")
    assert rnn_lower.prove(model, lowered).ok
    del lowered.graph.output[0].type.tensor_type.shape.dim[:]
    lowered.graph.output[0].type.tensor_type.ClearField("shape")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    producer = next(node for node in lowered.graph.node if "Y" in node.output)
    producer.output[list(producer.output).index("Y")] = "unread"
    lowered.graph.initializer.append(numpy_helper.from_array(np.array([0, 1, 0, 4]), "sizes"))
    lowered.graph.node.append(marked("ConstantOfShape", ["sizes"], ["Y"]))
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_a_state_of_a_scan_keeps_its_shape(op):
    """numpy adds a state of one row to a batch; a Scan refuses that its state grows."""
    model, feeds = build(Case(op, 17, N=3, H=3, dynamic=True))
    lowered = rnn_lower.lower(model, form="scan")
    scan = next(node for node in lowered.graph.node if node.op_type == "Scan")
    lowered.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 3), np.float32), "one_row"))
    states = len(scan.input) - next(each.i for each in scan.attribute if each.name == "num_scan_inputs")
    scan.input[:states] = ["one_row"] * states
    with pytest.raises(Exception, match=r"Scan|state"):
        run_onnxruntime(lowered, feeds)
    proof = rnn_lower.prove(model, lowered)
    assert not proof.ok
    assert "changes its shape" in str(proof)


def test_a_marked_constant_of_another_domain_is_compared():
    model, _ = build(Case("GRU", 17))
    model.graph.node.append(helper.make_node("Gelu", ["X"], ["g"], domain="com.microsoft"))
    model.graph.output.append(helper.make_tensor_value_info("g", 1, None))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    lowered = rnn_lower.lower(model, form="scan")
    assert rnn_lower.prove(model, lowered).ok
    unknown = marked("Constant", [], ["unread"], "unread")
    unknown.domain = "com.microsoft"
    lowered.graph.node.append(unknown)
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("opset", [11, 17])
def test_six_hundred_unrolled_steps_are_proved(opset):
    model, _ = build(Case("RNN", opset, T=600, N=1, I=2, H=2))
    proof = rnn_lower.prove(model, rnn_lower.lower(model, form="unroll"))
    assert proof.ok, proof


@pytest.mark.parametrize("number", [-10, 0, 99])
def test_a_cast_to_an_unknown_type_is_no_proof(number):
    model, _ = build(Case("GRU", 7, N=2, lengths=(2, 1), lengths_as="input"))
    lowered = rnn_lower.lower(model, form="loop")
    casts = [node for holder in holders(lowered) for node in holder.node if node.op_type == "Cast"]
    casts[0].attribute[0].i = number
    assert not rnn_lower.prove(model, lowered).ok
    with pytest.raises(rnn_lower.RnnLowerError):
        rnn_lower.check(model, lowered)


def test_a_weight_that_only_a_function_call_reads_is_compared_by_the_proof():
    model, _ = build(Case("GRU", 17))
    lowered = rnn_lower.lower(model, as_function=True)
    weight = next(tensor for tensor in lowered.graph.initializer if tensor.name == "W")
    array = numpy_helper.to_array(weight).copy()
    array[0, 0, 1] += 1e-5
    weight.CopyFrom(numpy_helper.from_array(array, "W"))
    proof = rnn_lower.prove(model, lowered)
    assert not proof.changed
    assert "first differs in gate z" in str(proof)
    assert not rnn_lower.check(model, lowered).ok
    weight.doc_string = "changed"
    assert rnn_lower.prove(model, lowered).changed


def carry(scan: onnx.NodeProto, start: str, names: tuple[str, str], dtype: int) -> None:
    """Let a Scan of one state carry one more number from step to step, by the names in its body."""
    body = next(each.g for each in scan.attribute if each.name == "body")
    for held, name in zip((body.input, body.output), names, strict=True):
        held.append(helper.make_tensor_value_info(name, dtype, [1]))
        first, *others, last = list(held)
        del held[:]
        held.extend([first, last, *others])
    scan.input[:] = [scan.input[0], start, *list(scan.input)[1:]]
    scan.output[:] = [scan.output[0], "s_final", *list(scan.output)[1:]]


def test_a_loop_carries_no_integers_that_change():
    """They could count to any number of steps in binary digits."""
    model, _ = build(Case("GRU", 17, T=5, N=1, I=2, H=2, dynamic=True, optional=(), outputs=("Y",)))
    lowered = rnn_lower.lower(model, form="scan")
    scan = next(node for node in lowered.graph.node if node.op_type == "Scan")
    lowered.graph.initializer.append(numpy_helper.from_array(np.array([3]), "three"))
    carry(scan, "three", ("s", "s_next"), onnx.TensorProto.INT64)
    body = next(each.g for each in scan.attribute if each.name == "body")
    for op, inputs, is_proved in (("Identity", ["s"], True), ("Sub", ["three", "s"], False)):
        body.node.append(marked(op, inputs, ["s_next"], "next"))
        proof = rnn_lower.prove(model, lowered)
        assert proof.ok == is_proved, proof
        assert is_proved or "changes a state of type int64" in str(proof)
        del body.node[-1]


def test_a_loop_carries_no_other_floats_than_states():
    """A float that grows from step to step is lost in a sum at first, and changes the result of long sequences."""
    model, _ = build(Case("GRU", 17, T=5, N=1, I=2, H=2, dynamic=True, optional=(), outputs=("Y",)))
    lowered = rnn_lower.lower(model, form="scan")
    scan = next(node for node in lowered.graph.node if node.op_type == "Scan")
    body = next(each.g for each in scan.attribute if each.name == "body")
    constants = {"start": [0.37], "grow": [1.3], "one": [1.0]}
    for name, numbers in constants.items():
        lowered.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.float32), name))
    state, final = body.input[0].name, body.output[0].name
    for node in body.node:
        node.input[:] = ["state/kept" if name == state else name for name in node.input]
    first = [
        marked("Mul", ["s", "grow"], ["s_next"], "grows"), marked("Add", ["s_next", "one"], ["s_sum"], "sum"),
        marked("Sub", ["s_sum", "s_next"], ["s_one"], "one_again"), marked("Mul", [state, "s_one"], ["state/kept"], "kept"),
    ]  # fmt: skip
    nodes = [*first, *body.node]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del body.node[:]
    body.node.extend(copies)
    carry(scan, "start", ("s", "s_next"), onnx.TensorProto.FLOAT)
    assert final == body.output[0].name
    rng = np.random.default_rng(0)
    short, long = ({"X": rng.standard_normal((steps, 1, 2)).astype(np.float32)} for steps in (40, 300))
    wanted, found = ([run_onnxruntime(each, feeds)[0] for feeds in (short, long)] for each in (model, lowered))
    assert np.abs(wanted[0] - found[0]).max() < 1e-4 < 1e-2 < np.abs(wanted[1] - found[1]).max()
    proof = rnn_lower.prove(model, lowered)
    assert not proof.ok
    assert "no state of the recurrent node" in str(proof)


def test_a_difference_that_the_proof_computes_counts_beside_other_changes():
    model, _ = build(Case("LSTM", 17, optional=("initial_h", "initial_c")))
    lowered = rnn_lower.lower(model)
    reader = next(node for node in lowered.graph.node if "initial_c" in node.input)
    reader.input[list(reader.input).index("initial_c")] = "clipped"
    limits = [numpy_helper.from_array(np.float32(limit), name) for name, limit in (("low", -150), ("high", 150))]
    lowered.graph.initializer.extend(limits)
    lowered.graph.node.insert(0, marked("Clip", ["initial_c", "low", "high"], ["clipped"], "clips"))
    lowered.doc_string = "edited"
    assert not rnn_lower.prove(model, lowered).ok
    assert not rnn_lower.check(model, lowered).ok


@pytest.mark.parametrize("steps", [4, 7])
def test_steps_that_overflow_are_proved(steps):
    """A ThresholdedRelu returns 0 for the NaN of an overflow, which depends on the order of additions."""
    activations = ("ThresholdedRelu", "Relu", "ThresholdedRelu")
    case = Case("LSTM", 17, T=steps, N=3, optional=("initial_c",), activations=activations, alpha=(0.99, 0.9))
    model, _ = build(case)
    proof = rnn_lower.prove(model, rnn_lower.lower(model))
    assert proof.ok, proof


@pytest.mark.parametrize("as_function", [False, True])
def test_a_weight_that_was_emitted_before_and_is_shared_is_compared(as_function):
    """An earlier lowering replaced one of two nodes with the same weights."""
    model, _ = build(Case("GRU", 17, outputs=("Y",)))
    first = model.graph.node[0]
    second = onnx.NodeProto.FromString(first.SerializeToString())
    second.name, second.output[0] = "second", "Y2"
    model.graph.node.append(second)
    model.graph.output.append(helper.make_tensor_value_info("Y2", 1, None))
    before = rnn_lower.lower(model, select=lambda node: node.name != "second", as_function=True)
    lowered = rnn_lower.lower(before, as_function=as_function)
    assert rnn_lower.prove(before, lowered).ok
    weight = next(tensor for tensor in lowered.graph.initializer if tensor.name == "W")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + np.float32(0.5), "W"))
    assert not rnn_lower.prove(before, lowered).ok
    assert not rnn_lower.check(before, lowered).ok


def test_a_declaration_of_a_value_that_was_emitted_before_is_compared():
    model, _ = build(Case("LSTM", 17, dynamic=True, outputs=("Y",)))
    first = model.graph.node[0]
    second = onnx.NodeProto.FromString(first.SerializeToString())
    second.name, second.output[0] = "second", "Y2"
    first.output[0] = "inner"
    model.graph.node.extend([second, helper.make_node("Relu", ["inner"], ["Y"])])
    model.graph.output.append(helper.make_tensor_value_info("Y2", 1, None))
    before = rnn_lower.lower(model, select=lambda node: node.name != "second")
    lowered = rnn_lower.lower(before)
    assert rnn_lower.prove(before, lowered).ok
    infos = lowered.graph.value_info
    for info in [info for info in infos if info.name == "inner"]:
        infos.remove(info)
    infos.append(helper.make_tensor_value_info("inner", 1, [5, 1, 2, 7]))
    assert not rnn_lower.prove(before, lowered).ok


@pytest.mark.parametrize(
    ("opset", "name", "value", "equal"),
    [(19, "saturate", 0, False), (19, "saturate", 2, False), (19, "saturate", 1, True), (24, "round_mode", "down", False),
     (24, "round_mode", "x", False), (24, "round_mode", "up", True)],
)  # fmt: skip
def test_attributes_of_a_cast_that_count_for_other_types(opset, name, value, equal):
    """onnxruntime refuses some, and computes something else with others."""
    model, feeds = build(Case("LSTM", opset, dynamic=True, direction="reverse", optional=("B", "sequence_lens")))
    lowered = rnn_lower.lower(model, form="scan")
    for node in every_node(lowered):
        if node.op_type == "Cast":
            node.attribute.append(helper.make_attribute(name, value))
    try:
        results = zip(run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds), strict=True)
        same = all(np.allclose(a, b, atol=1e-5) for a, b in results)
    except Exception:  # it does not load
        same = False
    assert (same, rnn_lower.prove(model, lowered).ok) == (equal, equal)


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_a_split_without_sizes_is_no_proof(form):
    """Since opset 18, onnxruntime does not load it; onnx's inference only sees this where it knows shapes."""
    model, feeds = build(Case("LSTM", 18, dynamic=True))
    lowered = rnn_lower.lower(model, form=form)
    for node in every_node(lowered):
        if node.op_type == "Split":
            del node.input[1:]
    proof = rnn_lower.prove(model, lowered)
    assert not proof.ok
    assert "split" in " ".join(proof.reasons)
    with pytest.raises(Exception, match="Neither 'split' input nor 'num_outputs'"):
        run_onnxruntime(lowered, feeds)


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
def test_outputs_without_names_are_no_proof(form):
    """onnxruntime ends the process for a Split or a Loop with one."""
    model, _ = build(Case("GRU", 17, T=3))
    lowered = rnn_lower.lower(model, form=form)
    lowered.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 1]), "ones"))
    lowered.graph.node.append(marked("Split", ["X", "ones"], ["part_0", "", "part_2"], axis=0))
    proof = rnn_lower.prove(model, lowered)
    assert not proof.ok
    assert "an output without a name" in str(proof)


def test_weights_of_kept_nodes_are_compared_where_a_mark_asks_for_a_whole_proof():
    """Sizes that no trial has reach the other rows of a table."""
    model, _ = build(Case("GRU", 17, dynamic=True, outputs=("Y",)))
    table = np.random.default_rng(0).standard_normal((64, 1, 1)).astype(np.float32)
    for name, array in {"table": table, "zero": np.array([0]), "one": np.array([1])}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.node.extend([
        helper.make_node("Shape", ["X"], ["s"], end=1), helper.make_node("Slice", ["table", "zero", "s", "zero"], ["rows"]),
        helper.make_node("Add", ["X", "rows"], ["Z"]),
    ])  # fmt: skip
    model.graph.output.append(helper.make_tensor_value_info("Z", 1, None))
    lowered = rnn_lower.lower(model)
    lowered.metadata_props.add(key=LEGALIZED, value="opencv --legalize-all")
    other = next(tensor for tensor in lowered.graph.initializer if tensor.name == "table")
    other.CopyFrom(numpy_helper.from_array(np.where(np.arange(64)[:, None, None] < 40, table, -table), "table"))
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("target", ["nothing", "Softplus", "/nowhere/mine.toml --legalize-all"])
def test_a_step_that_cannot_be_done_is_told(target):
    model, _ = build(Case("GRU", 17))
    lowered = rnn_lower.lower(model)
    lowered.metadata_props.add(key=LEGALIZED, value=target)
    proof = rnn_lower.prove(model, lowered)
    assert not proof.ok
    assert "this step fails now" in proof.changed[0]


@pytest.mark.parametrize("outer", ["Neg (q)", "LSTM <hidden_size = 2> (X, W2, R)"])
@pytest.mark.parametrize("reader", ["Add (Y, Y)", "Relu (Y)", "If (c) <then_branch = t () => (r) { r = Exp (Y) }, else_branch = e () => (r) { r = Tanh (Y) }>"])  # fmt: skip
@pytest.mark.parametrize("unknown", [False, True])
def test_a_name_does_not_move_to_a_value_of_another_graph(outer, reader, unknown):
    """Without the node of the branch, its reader would read the value that the main graph gives the same name."""
    weights = ",".join(str(index % 5 / 4 - 0.5) for index in range(24))
    more = "SimplifiedLayerNormalization (q, one)" if unknown else "Abs (q)"  # which only onnxruntime knows
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[3,2,3] X, float[3,1,2,2] q, bool c) => (float[3,1,2,2] out, float[3,1,2,2] Y, float[3,1,2,2] n)
        <float[1,8,3] W = {{{weights}}}, float[1,8,3] W2 = {{{weights.replace("0.5", "0.3")}}},
         float[1,8,2] R = {{{",".join(weights.split(",")[:16])}}}, float[2] one = {{1, 1}}> {{
        out = If (c) <then_branch = yes () => (r) {{ Y = LSTM <hidden_size = 2> (X, W, R) r = {reader} }},
                      else_branch = no () => (r) {{ r = Identity (q) }}>
        Y = {outer}
        n = {more} }}""")
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered)
    branch = next(node for node in lowered.graph.node if node.op_type == "If").attribute[0].g
    kept = [node for node in branch.node if not is_emitted(node)]
    del branch.node[:], branch.value_info[:], branch.initializer[:]
    branch.node.extend(kept)
    nodes = sorted(
        (onnx.NodeProto.FromString(n.SerializeToString()) for n in lowered.graph.node), key=lambda n: n.op_type == "If"
    )
    del lowered.graph.node[:]
    lowered.graph.node.extend(nodes)
    read = {name for holder in holders(lowered) for node in holder.node for name in node.input}
    weights = [tensor for tensor in lowered.graph.initializer if tensor.name in read]
    del lowered.graph.initializer[:]
    lowered.graph.initializer.extend(weights)
    feeds = {"X": np.ones((3, 2, 3), np.float32), "q": np.ones((3, 1, 2, 2), np.float32), "c": np.array(True)}
    assert not np.allclose(run_onnxruntime(lowered, feeds)[0], run_onnxruntime(model, feeds)[0])
    proof = rnn_lower.prove(model, lowered)
    assert not proof.ok
    assert any("'Y' now refers to a value of another graph" in change for change in proof.changed)
