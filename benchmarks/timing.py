"""Sessions that run in turn, so that all of them see the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime

Session = onnxruntime.InferenceSession


def session(model: onnx.ModelProto, threads: int) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    # A worker that spins while it waits would take the second core from the next session.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return Session(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def ratios(
    sessions: Mapping[str, Session], feeds: Mapping[str, np.ndarray], seconds: float
) -> dict[str, tuple[float, float]]:
    """Per name: median time in microseconds, median of its ratio to the first session in the same round."""
    for one in sessions.values():
        one.run(None, feeds)
    rounds: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < 5 or time.perf_counter() < end:
        row = {}
        for name, one in sessions.items():
            start = time.perf_counter()
            one.run(None, feeds)
            row[name] = time.perf_counter() - start
        rounds.append(row)
    first = next(iter(sessions))
    return {
        name: (1e6 * statistics.median(r[name] for r in rounds), statistics.median(r[name] / r[first] for r in rounds))
        for name in sessions
    }


def mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
