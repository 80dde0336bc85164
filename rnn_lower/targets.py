"""One row per runtime: the forms it runs, operators to avoid, its limits; each measured on the real runtime."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from rnn_lower.emit.constants import known_tensor
from rnn_lower.emit.versions import TABLE
from rnn_lower.emit.writer import Habits
from rnn_lower.errors import Lack, RnnLowerError
from rnn_lower.recurrent.lowering import ARITHMETIC

if TYPE_CHECKING:
    from rnn_lower.recurrent.node import RecurrentNode

logger = logging.getLogger("rnn_lower")

ALL_FORMS = ("scan", "loop", "unroll")


@dataclasses.dataclass(frozen=True)
class Target:
    """How to lower for one runtime.

    forms: those it runs right, the one for long or unknown sequences first.
    unroll_up_to: a known length up to this is unrolled in form auto, when "unroll" is among the forms.
    static_batch: whether it needs a known batch size.  scan_captures: whether a Scan body may read what nodes outside
    of it compute.  opsets: first and last opset it takes.
    slow: from how many unrolled steps loading is slow, and the measured seconds for an LSTM at T = 400.
    """

    name: str
    summary: str
    forms: tuple[str, ...] = ALL_FORMS
    habits: Habits = Habits()
    unroll_up_to: int = 1
    static_batch: bool = False
    opsets: tuple[int, int] = (1, 99)
    slow: tuple[int, float] | None = None
    scan_captures: bool = True

    def choose(self, node: RecurrentNode, opset: int) -> str:
        """The form for a node that nobody asked a form for."""
        length = node.static_length
        if "unroll" in self.forms and length is not None and length <= self.unroll_up_to:
            return "unroll"
        return next(iter(self.forms_for(node, opset)), "loop")

    def forms_for(self, node: RecurrentNode, opset: int) -> list[str]:
        """The forms that a node at this opset can take, given that its length serves."""
        scan = opset >= TABLE["Scan"].since and (self.scan_captures or not _captures(node))
        return [form for form in self.forms if form != "scan" or scan]

    def lacks(self, node: RecurrentNode, form: str, opset: int) -> list[Lack]:
        """What keeps the runtime from taking the node in this form."""
        found, told = [], f"target {self.name}"
        first, last = self.opsets
        if not first <= opset <= last:
            found.append(Lack(f"{told} takes opsets {first} to {last}, not {opset}", opsets=self.opsets))
        forms = tuple(self.forms_for(node, opset))
        if form not in self.forms:
            found.append(Lack(f"{told} does not run form {form}", forms=forms or self.forms))
        elif form == "scan" and not self.scan_captures and _captures(node):
            what = f"{told} takes no weights that are computed outside of a Scan (or cast there)"
            found.append(Lack(what, forms=forms))
        if self.static_batch and node.static_batch is None:
            what = f"{told} needs a known batch size, here it is {node.told('batch_size')}"
            found.append(Lack(what, sizes=("batch_size",)))
        return found

    def warn(self, node: RecurrentNode, form: str) -> None:
        """Say what is right but slow."""
        length = node.static_length
        if form == "unroll" and self.slow and length is not None and length > self.slow[0]:
            logger.warning(
                "%s: %d unrolled steps load slowly on %s (%g s for an LSTM of 400 steps)",
                node.describe(), length, self.name, self.slow[1],
            )  # fmt: skip


def _captures(node: RecurrentNode) -> bool:
    """Whether the weights in a body come from nodes: they are known at run time only, or are cast."""
    weights = (node.inputs.get(name) for name in ("R", "B", "P"))
    return node.dtype in ARITHMETIC or any(weight is not None and known_tensor(weight) is None for weight in weights)


_ALWAYS = 10**9
"""unroll_up_to of runtimes that know nothing else."""

_TANH = {"Tanh": 20.0}
"""OpenCV 5.0's Tanh is NaN above 44. From 20 on the result is 1 in float32 and in double."""

_PORTABLE = Habits(
    avoid=frozenset(("Split", "Clip", "Softsign", "Softplus", "HardSigmoid", "Elu", "ThresholdedRelu", "LeakyRelu")),
    saturates=_TANH,
)

_NO_SOFTPLUS = frozenset({"Softplus"})
"""It is infinite above 88.7 on tract and OpenCV."""

# How auto chooses on onnxruntime, measured by benchmarks/speed.py (CPU, one thread, geometric means over sizes):
#   Loop takes 1.06 to 1.2 times as long as Scan, so it serves only where there is no Scan (opset 8 and below).
#   A straight line of one step takes 0.5 to 0.8 of a Scan of one step.
#   From two steps on with an initial state it takes 0.93 to 1.01 of the Scan. Without one it leaves the first product
#   out (0.8 at T = 2, 0.87 at T = 4), and stays near the Scan up to T = 64 (1.0 to 1.1). Both gains are small beside
#   what a graph of T times as many nodes costs to load, so Scan it is.
_ROWS = (
    Target(
        "onnxruntime", "Scan, or a straight line for one step; every opset from 7 on",
        habits=Habits(guard_empty_scan=True, constants_in_body=True, pass_condition=True, name_batch=True),
        slow=(400, 0.5),
    ),
    Target(
        "openvino", "Scan, also with unknown lengths and batches, Loop with computed weights; short sequences unrolled",
        unroll_up_to=16, scan_captures=False,
    ),
    Target(
        "tract", "Scan, also with an unknown batch; short sequences unrolled", ("scan", "unroll"),
        Habits(avoid=_NO_SOFTPLUS), 16, opsets=(9, 99), slow=(100, 31),
    ),
    Target(
        "opencv", "unrolled; needs a known length and batch", ("unroll",),
        Habits(avoid=_NO_SOFTPLUS, saturates=_TANH), _ALWAYS, True, slow=(400, 1.7),
    ),
    Target(
        "mnn", "Loop; short sequences unrolled", ("loop", "unroll"), unroll_up_to=16, slow=(100, 4),
    ),
    Target(
        "onnx2torch", "unrolled, Slice for Split, opset 9 to 17", ("unroll",),
        Habits(avoid=_PORTABLE.avoid - {"Clip", "LeakyRelu", "Elu"}), _ALWAYS, True, (9, 17),
    ),
    Target(
        "tinygrad", "unrolled; needs a known length and batch", ("unroll",), unroll_up_to=_ALWAYS, static_batch=True,
        slow=(20, 85),
    ),
    Target(
        "tvm", "unrolled; needs a known length and batch", ("unroll",), unroll_up_to=_ALWAYS, static_batch=True,
        slow=(100, 30),
    ),
    Target(
        "iree", "unrolled, opset 13 and up; needs a known length and batch", ("unroll",),
        Habits(avoid=frozenset({"Softsign"})), _ALWAYS, True, (13, 99), (100, 20),
    ),
    Target(
        "onnx-reference", "Scan with sequences flipped outside, Loop, or unrolled",
        habits=Habits(flip_outside_scan=True),
    ),
    Target(
        "portable", "unrolled, the smallest operator set, opset 13 to 17: runs on all of these", ("unroll",),
        _PORTABLE, _ALWAYS, True, (13, 17), (100, 85),
    ),
)  # fmt: skip

TARGETS: dict[str, Target] = {row.name: row for row in _ROWS}


def find_target(name: str | None) -> Target:
    """The row of a runtime; None is onnxruntime. Raises RnnLowerError for a name that is not there."""
    target = TARGETS.get("onnxruntime" if name is None else name)
    if target is None:
        raise RnnLowerError(f"unknown target '{name}'; known are {', '.join(TARGETS)}")
    return target
