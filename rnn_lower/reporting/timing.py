"""Where the time goes on onnxruntime: how long a run takes, and the share of each operator, by its own profiler."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime

from rnn_lower.checking.samples import Feeds
from rnn_lower.errors import RnnLowerError, one_line

MOST_SECONDS, MOST_RUNS, PROFILED_RUNS = 0.4, 200, 5


@dataclasses.dataclass(frozen=True)
class Timing:
    """seconds: the median of `runs` runs on one thread.  shares: of the time in kernels, by operator, largest first.

    What runs in a body counts for its own operator; what is left of a Scan or Loop is what walking costs.
    """

    seconds: float
    runs: int
    shares: Mapping[str, float]


def time_model(path: Path, feeds: Feeds, folder: Path) -> Timing:
    """Run a model with these inputs. folder: for the profiler's file. Raises RnnLowerError when it does not run."""
    try:
        session = _session(path)
        feeds = {value.name: feeds[value.name] for value in session.get_inputs() if value.name in feeds}
        seconds = _seconds(session, feeds)
        profiled = _session(path, folder / path.stem)
        for _ in range(1 + PROFILED_RUNS):
            profiled.run(None, feeds)
        events = json.loads(Path(profiled.end_profiling()).read_text(encoding="utf-8"))
    except Exception as error:  # onnxruntime raises whatever it raises
        raise RnnLowerError(f"it does not run on onnxruntime: {one_line(error)}") from None
    return Timing(statistics.median(seconds), len(seconds), _shares(events))


def _session(path: Path, prefix: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if prefix is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _seconds(session: Any, feeds: Feeds) -> list[float]:
    session.run(None, feeds)
    found: list[float] = []
    while not found or (sum(found) < MOST_SECONDS and len(found) < MOST_RUNS):
        begun = time.perf_counter()
        session.run(None, feeds)
        found.append(time.perf_counter() - begun)
    return found


def _shares(events: list[dict[str, Any]]) -> dict[str, float]:
    """Of each operator, without what ran inside of it, which begins and ends while it runs."""
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    own: Counter[str] = Counter()
    around: list[tuple[int, str]] = []
    for event in sorted(kernels, key=lambda event: (event["ts"], -event["dur"])):
        while around and around[-1][0] <= event["ts"]:
            around.pop()
        operator = event["args"]["op_name"]
        own[operator] += event["dur"]
        if around:
            own[around[-1][1]] -= event["dur"]
        around.append((event["ts"] + event["dur"], operator))
    total = sum(own.values()) or 1
    return {operator: max(0, spent) / total for operator, spent in own.most_common()}
