"""Operators of opsets 1 to 6 that no runtime executes any more, for onnx.reference, from the ONNX changelog."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as NewLoop


def _binary(name: str, function: object) -> type[OpRun]:
    class Binary(OpRun):
        op_domain = ""

        def _run(self, a, b, axis=None, broadcast=None, consumed_inputs=None):
            assert a.dtype == b.dtype
            if not broadcast:
                assert a.shape == b.shape, "operands of different shape need broadcast=1"
            elif b.size > 1:
                assert axis is None
                assert a.shape[a.ndim - b.ndim :] == b.shape, "B must be a suffix of A"
            return (function(a, b),)

    Binary.__name__ = name
    return Binary


class Split(OpRun):
    op_domain = ""

    def _run(self, x, axis=0, split=None, **more):
        return tuple(np.split(x, np.cumsum(split)[:-1], axis))


class Cast(OpRun):
    op_domain = ""

    def _run(self, x, to=None, **more):
        element = onnx.TensorProto.DataType.Value(to) if isinstance(to, str) else to
        return (x.astype(onnx.helper.tensor_dtype_to_np_dtype(element)),)


class Reshape(OpRun):
    op_domain = ""

    def _run(self, x, new_shape=None, shape=None, **more):
        wanted = list(new_shape) if new_shape is not None else list(shape)
        return (x.reshape([x.shape[k] if size == 0 else size for k, size in enumerate(wanted)]),)


class Clip(OpRun):
    op_domain = ""

    def _run(self, x, min=None, max=None, **more):
        return (np.clip(x, min, max).astype(x.dtype),)


class Loop(NewLoop):
    """onnx.reference joins the steps along their first axis; the text says along a new one."""

    op_domain = ""

    def _run(self, M, cond, *args, **more):
        stacked, keep = [], np.vstack
        np.vstack = lambda steps: stacked.append(np.stack(steps) if steps else np.zeros(0)) or stacked[-1]
        try:
            return super()._run(M, cond, *args, **more)
        finally:
            np.vstack = keep


OLD = [
    _binary("Add", np.add), _binary("Sub", np.subtract), _binary("Mul", np.multiply), _binary("Div", np.divide),
    _binary("Less", np.less), Split, Cast, Reshape, Clip, Loop,
]  # fmt: skip


def run_old(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(model, new_ops=OLD).run(None, feeds)
