"""Run models for the tests: the fused operator on onnxruntime where it can be trusted with it, else the oracle."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx
from onenode import Case, build

import rnn_lower
from rnn_lower.checking import checker, runners
from rnn_lower.modelio.document import Document
from rnn_lower.proving.model_diff import frame_changes
from rnn_lower.proving.new_faults import new_faults
from rnn_lower.proving.report import CheckReport, Proof
from rnn_lower.proving.whole.whole_proof import prove_whole
from rnn_lower.targeting import native_refusals
from rnn_lower.targeting.probe import writing

FUSED = ("RNN", "GRU", "LSTM")


def run_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return runners.open_onnxruntime(Document(model))(feeds)


def run_reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return runners.open_reference(Document(model))(feeds)


def proved_as_wholes(original: onnx.ModelProto, other: onnx.ModelProto) -> Proof:
    """The proof that compares two models from inputs to outputs, whoever wrote them."""
    before, after = Document(original), Document(other)
    proof = prove_whole(before, after, 2, 0, math.inf)
    changed = (*proof.changed, *frame_changes((original, None), (other, None)), *new_faults(before, after))
    return dataclasses.replace(proof, changed=changed)


def refused(model: onnx.ModelProto) -> str | None:
    """Why onnxruntime must not be given the fused model."""
    reasons = (native_refusals.refused_by_onnxruntime(node) for node in rnn_lower.inspect(model))
    return next((reason for reason in reasons if reason), None)


def expected(case: Case) -> list[np.ndarray]:
    model, feeds = build(case)
    if 0 in (case.T, case.N, case.I):
        return run_reference(model, feeds)
    return judged(model, feeds)


def judged(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What a fused model has to give: onnxruntime says it, the oracle where onnxruntime must not be given the model."""
    return writing.expected(Document(model), feeds)


def lowered(case: Case, form: str = "auto", **options: object) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The lowered model, checked to be valid and free of fused operators, and the feeds."""
    model, feeds = build(case)
    before = model.SerializeToString(deterministic=True)
    result = rnn_lower.lower(model, form=form, **options)
    assert model.SerializeToString(deterministic=True) == before, "the argument was changed"
    assert not remaining(result), "a fused operator is left"
    if not options.keys() & {"opset", "target"}:
        assert {o.domain: o.version for o in result.opset_import} == {o.domain: o.version for o in model.opset_import}
    onnx.checker.check_model(result, full_check=True)
    return result, feeds


def remaining(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in every_node(model) if node.op_type in FUSED and node.domain == ""]


def every_node(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    def walk(nodes: object) -> list[onnx.NodeProto]:
        found = []
        for node in nodes:
            found.append(node)
            for attribute in node.attribute:
                for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
                    found += walk(graph.node)
        return found

    return walk(model.graph.node) + [node for function in model.functions for node in walk(function.node)]


def emitted(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    """The first emitted node of a type, in the main graph or in a body."""
    return next(node for node in every_node(model) if node.op_type == op_type and node.metadata_props)


def marked(*node: object, **details: object) -> onnx.NodeProto:
    """A node that claims to be emitted for the node of `onenode.build`."""
    made = onnx.helper.make_node(*node, **details)
    made.metadata_props.add(key="rnn_lower.node", value="node")
    return made


def loops(model: onnx.ModelProto) -> int:
    return sum(node.op_type in ("Scan", "Loop") for node in every_node(model))


def close(actual: list[np.ndarray], wanted: list[np.ndarray], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    assert len(actual) == len(wanted)
    for a, b in zip(actual, wanted, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        # One unit in the last place of a 16-bit type, both round once.
        unit = {2: 2**-10 if a.dtype == np.float16 else 2**-7}.get(a.dtype.itemsize, 0.0)
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=max(rtol, unit), atol=atol)


def agrees(case: Case, form: str = "auto", **options: object) -> None:
    """Lower, run on onnxruntime, compare with the judge."""
    model, feeds = lowered(case, form, **options)
    close(run_onnxruntime(model, feeds), expected(case))


def check_by_running(
    original: onnx.ModelProto, lowered: onnx.ModelProto, inputs: object = None, exact: bool = False
) -> CheckReport:
    """What `check` reports; without `exact` by runs alone, as of nodes that are not proved."""
    return checker.compare_models(original, lowered, inputs, 3, 0, 1e-3, 1e-5, exact)
