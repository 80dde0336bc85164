"""A model with every field of onnx.proto filled, around recurrent nodes that run on onnxruntime where it can."""

from __future__ import annotations

import numpy as np
import onnx
from onenode import OPTIONAL, Case, build
from onnx import AttributeProto, TensorProto, helper, numpy_helper


def full_model(opset: int = 18, place: str = "main") -> onnx.ModelProto:
    """Strange nodes of another domain carry every kind of attribute; nothing but checks of equality ever runs it."""
    model, _ = build(Case("LSTM", opset, optional=OPTIONAL["LSTM"], place=place))
    model.ir_version = 13
    model.producer_name, model.producer_version, model.domain = "someone", "1.2", "org.example"
    model.model_version, model.doc_string = 7, "about the model"
    _notes(model)
    model.opset_import.extend([helper.make_opsetid("odd", 3), helper.make_opsetid("ai.onnx.ml", 3)])
    graph = model.graph
    graph.doc_string = "about the graph"
    _notes(graph)
    for node in graph.node:
        node.doc_string = "about the node"
        _notes(node)
    graph.initializer.append(numpy_helper.from_array(np.arange(4, dtype=np.float32), "unused"))
    graph.initializer[-1].doc_string = "about the tensor"
    _notes(graph.initializer[-1])
    graph.sparse_initializer.append(_sparse("sparse"))
    graph.quantization_annotation.add(tensor_name="Y_h").quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    graph.node.append(_strange(opset))
    graph.node.append(helper.make_node("Use", ["sparse", "unused"], ["used"], "use", domain="odd"))
    graph.node.append(_control_flow())
    device = graph.node[-1].device_configurations.add(configuration_id="c", pipeline_stage=2)
    device.sharding_spec.add(tensor_name="strange", device=[0, 1]).sharded_dim.add(axis=1).simple_sharding.add(
        num_shards=2
    )
    model.configuration.add(name="c", num_devices=2, device=["a", "b"])
    _values(graph)
    _functions(model, opset)
    _training(model)
    return model


def _notes(message: object) -> None:
    for key, value in (("z", "last first"), ("a", "yes"), ("z", "twice")):
        message.metadata_props.add(key=key, value=value)


def _sparse(name: str) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([1.5, 2.5], np.float32), name), numpy_helper.from_array(np.array([1, 3])), [5]
    )


def _strange(opset: int) -> onnx.NodeProto:
    node = helper.make_node("Strange", ["Y_h", ""], ["strange"], "strange", domain="odd", overload="v2")
    _notes(node)
    inner = helper.make_graph([helper.make_node("Relu", ["Y_h"], ["inner"])], "inner", [], [_info("inner")])
    _notes(inner)
    inner.doc_string = "about the body"
    inner.sparse_initializer.append(_sparse("inner_sparse"))
    inner.value_info.append(_info("nobody_inside"))
    odd_type = helper.make_tensor_type_proto(TensorProto.FLOAT16, ["N", 3])
    odd_type.denotation = "IMAGE"
    kinds = {
        "f": (AttributeProto.FLOAT, 0.5), "i": (AttributeProto.INT, -3), "s": (AttributeProto.STRING, b"\xff\xfe"),
        "floats": (AttributeProto.FLOATS, [0.1, float("nan")]), "ints": (AttributeProto.INTS, [1, 2]),
        "strings": (AttributeProto.STRINGS, [b"p", b"\xff"]), "empty": (AttributeProto.INTS, []),
        "t": (AttributeProto.TENSOR, numpy_helper.from_array(np.eye(2), "t")),
        "tensors": (AttributeProto.TENSORS, [_texts(), _packed()]),
        "g": (AttributeProto.GRAPH, inner), "graphs": (AttributeProto.GRAPHS, [inner]),
        "sparse_tensor": (AttributeProto.SPARSE_TENSOR, _sparse("st")),
        "sparse_tensors": (AttributeProto.SPARSE_TENSORS, [_sparse("st2")]),
        "tp": (AttributeProto.TYPE_PROTO, odd_type), "type_protos": (AttributeProto.TYPE_PROTOS, [odd_type]),
    }  # fmt: skip
    fields = {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "TYPE_PROTO": "tp"}
    for name, (kind, value) in kinds.items():
        attribute = node.attribute.add(name=name, type=kind, doc_string="about the attribute")
        field = fields.get(AttributeProto.AttributeType.Name(kind), AttributeProto.AttributeType.Name(kind).lower())
        target = getattr(attribute, field)
        if isinstance(value, list):
            target.extend(value)
        elif hasattr(target, "CopyFrom"):
            target.CopyFrom(value)
        else:
            setattr(attribute, field, value)
    return node


def _texts() -> onnx.TensorProto:
    return TensorProto(name="texts", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"\xff\xfe"])


def _packed() -> onnx.TensorProto:
    return helper.make_tensor("packed", TensorProto.INT4, [3], [1, -2, 3])


def _control_flow() -> onnx.NodeProto:
    branch = helper.make_graph([helper.make_node("Relu", ["Y_h"], ["branch"])], "then", [], [_info("branch")])
    other = helper.make_graph([helper.make_node("Abs", ["Y_h"], ["other"])], "else", [], [_info("other")])
    return helper.make_node("If", ["flag"], ["chosen"], "choice", then_branch=branch, else_branch=other)


def _info(name: str) -> onnx.ValueInfoProto:
    value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    value.doc_string = "about the value"
    _notes(value)
    return value


def _values(graph: onnx.GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    denoted = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3])
    denoted.type.denotation = "IMAGE"
    denoted.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    graph.input.extend([denoted, _info("noted")])
    types = {
        "map": helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None)),
        "sequence": helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None)),
        "optional": helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None)),
        "sparse_type": helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2, 3]),
        "opaque": onnx.TypeProto(opaque_type=onnx.TypeProto.Opaque(domain="d", name="n"), denotation="odd"),
    }
    types["maps"] = helper.make_sequence_type_proto(types["map"])
    for name, type_proto in types.items():
        graph.input.append(helper.make_value_info(name, type_proto))
        graph.value_info.append(helper.make_value_info(f"unknown_{name}", type_proto))
    graph.value_info.extend([_info("Y_h"), _info("nobody")])
    graph.output.append(_info("strange"))


def _functions(model: onnx.ModelProto, opset: int) -> None:
    for overload in ("", "other"):
        function = helper.make_function(
            "local", "Helper", ["x"], ["y"],
            [helper.make_node("Relu", ["x"], ["y"], "relu")], [helper.make_opsetid("", opset)], ["alpha"],
        )  # fmt: skip
        function.overload, function.doc_string = overload, "about the function"
        function.attribute_proto.extend([helper.make_attribute("beta", 0.5), helper.make_attribute("w", _packed())])
        function.value_info.append(_info("y"))
        _notes(function)
        model.functions.append(function)
    if all(entry.domain != "local" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("local", 1))
    model.graph.node.append(helper.make_node("Helper", ["Y_h"], ["helped"], "help", domain="local", overload="other"))


def _training(model: onnx.ModelProto) -> None:
    info = model.training_info.add()
    info.initialization.CopyFrom(helper.make_graph([], "init", [], [], [_packed()]))
    info.algorithm.CopyFrom(helper.make_graph([], "algorithm", [], []))
    info.initialization_binding.add(key="a", value="b")
    info.update_binding.add(key="c", value="d")
