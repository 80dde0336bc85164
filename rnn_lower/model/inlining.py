"""Calls of functions, with the bodies of these in their place."""

from __future__ import annotations

import onnx
import onnx.inliner

from rnn_lower.model import tensors


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions; it stays as it is itself.

    onnx's inliner forgets the defaults that a function has for its attributes, so every call says them first.
    """
    said = onnx.ModelProto()
    said.CopyFrom(model)
    defaults = {(f.domain, f.name, f.overload): [*f.attribute_proto] for f in said.functions if f.attribute_proto}
    for node in (node for holder in tensors.holders(said) for node in holder.node) if defaults else ():
        given = {attribute.name for attribute in node.attribute}
        missing = defaults.get((node.domain, node.op_type, node.overload), ())
        node.attribute.extend(attribute for attribute in missing if attribute.name not in given)
    for function in said.functions:
        function.attribute.extend(attribute.name for attribute in function.attribute_proto)
        del function.attribute_proto[:]
    result: onnx.ModelProto = onnx.inliner.inline_local_functions(said)
    return result
