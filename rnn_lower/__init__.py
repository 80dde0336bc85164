"""Lower RNN, GRU and LSTM nodes of ONNX models to primitive operators that compute the same values.

Names are imported when they are first used, so that `import rnn_lower` is quick and does not load onnxruntime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnn_lower.api import (
        check,
        draw,
        function_body,
        inspect,
        inspect_loops,
        lint,
        lower,
        lower_file,
        prove,
        prove_streaming,
        raise_file,
        raise_loops,
        report,
        stream,
        stream_file,
        targets,
        unstream,
        unstream_file,
    )
    from rnn_lower.driver.lower_pass import LowerRecurrentPass, Record
    from rnn_lower.driver.rewrite_rules import rewrite_rules
    from rnn_lower.errors import InvalidNodeError, RnnLowerError, UnsupportedError
    from rnn_lower.lowering.node import RecurrentNode
    from rnn_lower.proving.report import CheckReport, NodeProof, Proof
    from rnn_lower.quantization.calibration import calibration_reader
    from rnn_lower.quantization.compact import compact
    from rnn_lower.quantization.overrides import quantization_overrides
    from rnn_lower.quantization.quantize import quantize
    from rnn_lower.raising.inspecting import LoopInfo
    from rnn_lower.raising.raise_loops import Raised
    from rnn_lower.reporting.gathering import Report
    from rnn_lower.streaming.comparison.proof import StreamProof
    from rnn_lower.streaming.session import StreamingSession
    from rnn_lower.targeting import Target
    from rnn_lower.targeting.lint import Finding, LintReport
    from rnn_lower.targeting.probe.report import KitReport, report_kit
    from rnn_lower.targeting.probe.writing import write_kit

__version__ = "0.1.0"

# fmt: off
_MODULES = {
    "api": (
        "check", "draw", "function_body", "inspect", "inspect_loops", "lint", "lower", "lower_file", "prove",
        "prove_streaming", "raise_file", "raise_loops", "report", "stream", "stream_file", "targets", "unstream",
        "unstream_file",
    ),
    "errors": ("InvalidNodeError", "RnnLowerError", "UnsupportedError"),
    "targeting.probe.report": ("KitReport", "report_kit"),
    "targeting.probe.writing": ("write_kit",),
    "targeting": ("Target",),
    "targeting.lint": ("Finding", "LintReport"),
    "driver.lower_pass": ("LowerRecurrentPass", "Record"),
    "driver.rewrite_rules": ("rewrite_rules",),
    "proving.report": ("CheckReport", "NodeProof", "Proof"),
    "lowering.node": ("RecurrentNode",),
    "quantization.calibration": ("calibration_reader",),
    "quantization.compact": ("compact",),
    "quantization.overrides": ("quantization_overrides",),
    "quantization.quantize": ("quantize",),
    "raising.inspecting": ("LoopInfo",),
    "raising.raise_loops": ("Raised",),
    "reporting.gathering": ("Report",),
    "streaming.comparison.proof": ("StreamProof",),
    "streaming.session": ("StreamingSession",),
}
# fmt: on

__all__ = [
    "CheckReport",
    "Finding",
    "InvalidNodeError",
    "KitReport",
    "LintReport",
    "LoopInfo",
    "LowerRecurrentPass",
    "NodeProof",
    "Proof",
    "Raised",
    "Record",
    "RecurrentNode",
    "Report",
    "RnnLowerError",
    "StreamProof",
    "StreamingSession",
    "Target",
    "UnsupportedError",
    "calibration_reader",
    "check",
    "compact",
    "draw",
    "function_body",
    "inspect",
    "inspect_loops",
    "lint",
    "lower",
    "lower_file",
    "prove",
    "prove_streaming",
    "quantization_overrides",
    "quantize",
    "raise_file",
    "raise_loops",
    "report",
    "report_kit",
    "rewrite_rules",
    "stream",
    "stream_file",
    "targets",
    "unstream",
    "unstream_file",
    "write_kit",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(importlib.import_module(f"rnn_lower.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'rnn_lower' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
