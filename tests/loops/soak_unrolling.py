"""Random loops, unrolled: the same to 1e-6 on onnxruntime and proved, or refused by name. `python FILE [COUNT] [FIRST]`."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime
from loopmodels import random_model
from tallying import tally

import rnn_lower
from rnn_lower.errors import UnsupportedError


def examine(seed: int) -> str:
    """What became of one: unrolled, refused, or what is wrong."""
    made = random_model(seed)
    rng = np.random.default_rng(seed)
    try:
        original = _session(made.model)
    except Exception as error:
        return f"no model: {str(error)[:100]}"
    try:
        lowered = rnn_lower.lower(made.model, loops=True)
    except UnsupportedError as error:
        named = "Loop 'loop'" in str(error) or "'scan'" in str(error) or "inner" in str(error)
        return "refused" if made.refused and made.refused in str(error) and named else f"WRONG refusal {error}"
    left = [node for node in lowered.graph.node if node.op_type in ("Loop", "Scan")]
    if made.refused or left:
        return f"WRONG: {made.refused or 'a loop is left'}"
    feeds = {}
    for value in original.get_inputs():
        feeds[value.name] = rng.normal(size=value.shape).astype("f4")
    expected, actual = original.run(None, feeds), _session(lowered).run(None, feeds)
    for one, other in zip(expected, actual, strict=True):
        scale = max(1.0, float(np.abs(one).max(initial=0)))
        if one.shape != other.shape or not np.allclose(one / scale, other / scale, rtol=0, atol=1e-6, equal_nan=True):
            return (
                f"WRONG numbers {np.abs(one - other).max() if one.shape == other.shape else (one.shape, other.shape)}"
            )
    proof = rnn_lower.prove(made.model, lowered)
    return "proved" if proof.ok else f"NOT PROVED {[node.reason for node in proof.nodes][:1]} {proof.changed[:1]}"


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


if __name__ == "__main__":
    count, first = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((1, 5000), (2, 0)))
    expected = ("proved", "refused", "no model")
    print(tally(examine, range(first, first + count), lambda found: found.startswith(expected)))
