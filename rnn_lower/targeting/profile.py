"""The capabilities of a runtime, and the decisions that follow for lowering a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lower.builder.constant_operands import known
from rnn_lower.builder.versions import exists, first_opset
from rnn_lower.errors import Requirement
from rnn_lower.ir.walk import comes_from
from rnn_lower.legalize.constraints import CHECKS, OpConstraints
from rnn_lower.lowering.lowering import ARITHMETIC
from rnn_lower.targeting.native_support import RIGHT, Measured, Verdict, verdict

if TYPE_CHECKING:
    from rnn_lower.lowering.node import RecurrentNode

FIRST_BFLOAT16 = 13
"""The first opset with casts from and to bfloat16."""

LARGE = 20_000
"""The number of unrolled nodes above which most runtimes load a model slowly."""


@dataclasses.dataclass(frozen=True)
class Target:
    """How to lower for one runtime, as described in its target file.

    constraints: which nodes the runtime supports.  tune: rewrites of `tune.REWRITES` that were measured to save time on
    it, or without which it fails.
    status: "measured" on the runtime, or only "documented".  source: where the contents of the file come from.
    forms: the forms that it runs correctly; the first one is for long or unknown sequences.
    unroll_up_to: form auto unrolls a known length up to this one, if "unroll" is among the forms.
    static_batch: whether it needs a known batch size.  single_batch: whether the batch size must be 1.
    scan_captures: whether a Scan body may read values that nodes outside the body compute.
    versions: release lines that the newest file of a runtime covers, as in opencv@5.
    fused: for each recurrent operator, the features that run correctly without lowering and those that are silently
    wrong; None if it has the recurrent operators, but their features have not been measured.
    faster_lowered: for each recurrent operator, the batch size from which lowering it was measured to be faster.
    empty: whether it was shown to run tensors without elements, and a Loop without trips.
    functions: whether it was shown to run calls of a model's functions.
    sparse: whether it was shown to run sparse initializers.
    output_shapes: whether it loads no model with an output that declares no shape.
    own_outputs: whether each output of a model must come from a node with one output.
    sizes_inside: whether it returns no int64 that is computed from sizes.
    true_shapes: whether it loads no model that declares a wrong size.
    named_sizes: whether it loads no model with an input that has a free size without a name.
    named_batch: whether a Scan needs a batch size that is a number or the name of a size of an input.
    sequence_lens_opset: the first opset in which it runs sequence_lens if the length of X is unknown.
    path: the path of its file.
    slow: the number of unrolled steps above which loading is slow, and the measured seconds for an LSTM at T = 400.
    """

    name: str
    summary: str
    status: str
    source: str
    forms: tuple[str, ...]
    constraints: OpConstraints = OpConstraints()
    tune: tuple[str, ...] = ()
    unroll_up_to: int = 1
    static_batch: bool = False
    single_batch: bool = False
    slow: tuple[int, float] | None = None
    scan_captures: bool = True
    versions: tuple[str, ...] = ()
    fused: Mapping[str, Measured] | None = dataclasses.field(default_factory=dict)
    faster_lowered: Mapping[str, int] = dataclasses.field(default_factory=dict)
    empty: bool = False
    functions: bool = False
    sparse: bool = False
    output_shapes: bool = False
    own_outputs: bool = False
    sizes_inside: bool = False
    true_shapes: bool = False
    named_sizes: bool = False
    named_batch: bool = False
    sequence_lens_opset: int = 1
    path: Path = Path()

    @property
    def opsets(self) -> tuple[int, int]:
        """The first and the last opset that it supports."""
        return self.constraints.opsets

    @property
    def _known_batch(self) -> bool:
        return self.static_batch or self.single_batch or self.constraints.static

    def verdict(self, node: RecurrentNode) -> Verdict:
        """Whether it runs a recurrent node correctly without lowering."""
        listed = self.fused is None or node.op_type in (self.constraints.takes or ())
        measured = verdict(node, self.fused or {}, listed, f"{self.name} ({self.source.partition(';')[0]})")
        if measured.kind == RIGHT and not self._as_fast(node):
            return dataclasses.replace(measured, why=f"{measured.why}, but the lowered node ran faster in tests")
        return measured

    def keeps(self, node: RecurrentNode) -> bool:
        """Whether a node should be kept: it runs correctly, and no more slowly than lowered.

        A runtime that does not support nested Scans runs native nodes as Scans, too.
        """
        return self.verdict(node).kind == RIGHT and self._as_fast(node) and not self._would_nest(node)

    def _as_fast(self, node: RecurrentNode) -> bool:
        least = self.faster_lowered.get(node.op_type)
        return least is None or (node.static_batch or 0) < least

    def explained(self) -> Iterator[tuple[str, str]]:
        """The capabilities and their sources, line by line, for display."""
        first, last = self.opsets
        yield self.name, self.summary
        yield self.status, self.source
        yield "forms", ", ".join(self.forms)
        if "unroll" in self.forms and self.unroll_up_to > 1:
            yield "unrolled", "always" if self.forms == ("unroll",) else f"up to {self.unroll_up_to} steps"
        if self.tune:
            yield "tuned by", ", ".join(self.tune)
        yield "opsets", f"{first} and up" if last >= 99 else f"{first} to {last}"
        if self.sequence_lens_opset > 1:
            yield "sequence_lens", f"from opset {self.sequence_lens_opset} on, if the sequence length is unknown"
        batch = "1" if self.single_batch else "known" if self._known_batch else None
        yield "batch size", f"must be {batch}" if batch else "may be unknown"
        if self.constraints.static:
            yield "sizes", "all sizes must be known"
        if self.constraints.rank is not None:
            yield "ranks", f"up to {self.constraints.rank}"
        lists = (
            ("supported operators", self.constraints.takes), ("avoided operators", self.constraints.avoid or None),
            ("avoided element types", self.constraints.avoid_types or None),
            ("operators of other domains", self.constraints.other_domains),
        )  # fmt: skip
        yield from ((what, ", ".join(sorted(names)) or "none") for what, names in lists if names is not None)
        if not self.scan_captures:
            yield "Scan", "a body must not read values that are computed outside it"
        facts = (
            (self.empty, "empty tensors", "supported"),
            (self.functions, "calls of functions", "supported"),
            (self.sparse, "sparse initializers", "supported"),
            (self.output_shapes, "outputs", "must declare their shapes"),
            (self.own_outputs, "outputs", "must come from nodes with one output"),
            (self.sizes_inside, "outputs", "must not be int64 that is computed from sizes"),
            (self.true_shapes, "declared sizes", "must be true, so sizes that cannot be verified are dropped"),
            (self.named_sizes, "free sizes", "of inputs must have names"),
            (self.named_batch, "Scan",
             "the batch size must be known or the size of an input, not computed from several sizes"),
        )  # fmt: skip
        yield from ((what, words) for holds, what, words in facts if holds)
        for op_type, largest in self.constraints.saturates.items():
            yield op_type, f"fails for arguments beyond {largest:g}, so they are limited"
        for op_type, limits in self.constraints.limits.items():
            words = "; ".join(CHECKS[name][0](text) for name, text in limits.items())
            yield op_type, f"only {words}"
        for op_type, measured in (self.fused or {}).items():
            yield f"native {op_type}", f"right: {', '.join(sorted(measured.right)) or 'nothing'}"
            if measured.wrong:
                yield f"native {op_type}", f"silently wrong: {', '.join(sorted(measured.wrong))}"
        for op_type, least in self.faster_lowered.items():
            yield (
                f"{op_type} lowered",
                f"faster than the native operator{'' if least <= 1 else f' for batch sizes of {least} or more'}",
            )
        for what, source in self.constraints.sources.items():
            yield f"source of {what}", source
        if self.slow is not None:
            time = f"{self.slow[1]:g} s to load an LSTM unrolled to 400 steps"
            yield "loading", f"slow for more than {self.slow[0]} unrolled steps ({time})"

    def choose_form(self, node: RecurrentNode, opset: int) -> str:
        """The form for a node if no form is requested."""
        length, most = node.static_length, self.unroll_up_to
        if self.needs_name(node):
            most = max(most, self.slow[0] if self.slow else 0)
        if "unroll" in self.forms and length is not None and (length <= most or self._would_nest(node)):
            return "unroll"
        return next(iter(self.forms_for(node, opset)), "loop")

    def needs_name(self, node: RecurrentNode) -> bool:
        """Whether a Scan may fail because the model computes the batch size, which a Reshape may merge from several."""
        return self.named_batch and node.static_batch is None and comes_from(node.inputs["X"], ("Reshape",))

    def _would_nest(self, node: RecurrentNode) -> bool:
        """Whether a Scan for a node would be in the body of another one, which the runtime does not support."""
        return node.in_scan and self.constraints.limits.get("Scan", {}).get("nested") is False

    def why(self, node: RecurrentNode, form: str) -> str:
        """The reason for the choice of this form, for display."""
        if form not in ("unroll", self.forms[0]):
            return f"form {self.forms[0]} cannot be used for this node"
        if form == "unroll" and self.forms == ("unroll",):
            return f"{self.name} supports no other form"
        if form == "unroll" and node.static_length == 1:
            return "one step"
        if form == "unroll" and self.needs_name(node):
            return f"the Scan of {self.name} fails if the model computes the batch size"
        if form == "unroll" and self._would_nest(node):
            return f"{self.name} does not support a Scan in the body of another one"
        if self.path == Path():
            return "canonical"
        return (
            (
                f"the sequence has only {node.static_length} steps; rnn_lower unrolls sequences of up to "
                f"{self.unroll_up_to} steps"
            )
            if form == "unroll"
            else f"the fastest form on {self.name}"
        )

    def forms_for(self, node: RecurrentNode, opset: int) -> tuple[str, ...]:
        """The forms that are possible for a node at this opset, if its length is suitable."""
        scan = exists("Scan", opset) and (self.scan_captures or not _captures(node)) and not self._would_nest(node)
        listed = self.constraints.listed
        serves = {"scan": scan and listed("Scan"), "loop": listed("Loop"), "unroll": True}
        return tuple(form for form in self.forms if serves[form])

    def lacks(self, node: RecurrentNode, form: str, opset: int) -> list[Requirement]:
        """The requirements of the form and the runtime that the node does not meet."""
        requirements, text = [], f"target {self.name}"
        first, last = self.opsets
        possible = self.forms_for(node, opset)
        if node.dtype == ir.DataType.BFLOAT16 and opset < FIRST_BFLOAT16:
            what = f"bfloat16 needs opset {FIRST_BFLOAT16} or newer, but the model has opset {opset}"
            requirements.append(Requirement(what, opsets=(FIRST_BFLOAT16, last)))
        if node.dtype.name in self.constraints.avoid_types:
            what = f"{text} does not support the element type {node.dtype.name} of this node"
            requirements.append(Requirement(what, export="with another element type"))
        if form == "scan" and not exists("Scan", opset):
            since = first_opset("Scan")
            what = f"form scan needs opset {since} or newer, but the model has opset {opset}"
            forms = tuple(name for name in self.forms if name != "scan")
            requirements.append(Requirement(what, forms=forms, opsets=(since, last)))
        if form == "unroll" and node.static_length is None:
            forms = tuple(name for name in possible if name != form)
            requirements.append(_needs("form unroll", node, "seq_length", forms))
        if "sequence_lens" in node.inputs and node.static_length is None and opset < self.sequence_lens_opset:
            since = self.sequence_lens_opset
            what = f"{text} needs opset {since} for sequence_lens if the sequence length is unknown, not opset {opset}"
            requirements.append(Requirement(what, opsets=(since, last)))
        if not first <= opset <= last:
            what = f"{text} supports opsets {first} to {last}, but the model has opset {opset}"
            requirements.append(Requirement(what, opsets=self.opsets))
        if form not in self.forms:
            requirements.append(Requirement(f"{text} does not support form {form}", forms=possible or self.forms))
        elif form == "scan" and not self.scan_captures and _captures(node):
            what = f"{text} does not support a Scan whose weights are computed or cast outside of its body"
            requirements.append(Requirement(what, forms=possible))
        elif form == "scan" and self._would_nest(node):
            what = f"{text} does not support a Scan in the body of another one"
            requirements.append(Requirement(what, forms=possible))
        if self.constraints.static and node.static_length is None:
            requirements.append(_needs(text, node, "seq_length"))
        if self._known_batch and node.static_batch is None:
            requirements.append(_needs(text, node, "batch_size"))
        elif self.single_batch and node.static_batch != 1:
            what = f"{text} supports only a batch size of 1, not {node.static_batch}"
            export = "so that this node has a batch size of 1 or a symbolic one"
            requirements.append(Requirement(what, export=export, resizable=True))
        return requirements

    def warning(self, node: RecurrentNode, form: str, emitted: int, together: int) -> str:
        """Return a message if loading the unrolled nodes is slow, or if a Scan may not run, else an empty string.

        emitted: the number of nodes for this node.  together: for all unrolled nodes of the model.
        """
        if form == "scan" and node.batch_size is None and self.needs_name(node):
            return (
                f"{self.name} may not run the Scan if the model computes the batch size; set it (--dim), or add --fold"
            )
        if form != "unroll":
            return ""
        length = node.static_length or 0
        if together <= LARGE and (self.slow is None or length <= self.slow[0]):
            return ""
        message = f"unrolling {length} steps emits {emitted:,} nodes"
        if together != emitted:
            message += f" ({together:,} in total)"
        if self.slow is not None:
            message += f"; in a test, {self.name} took {self.slow[1]:g} s to load an LSTM unrolled to 400 steps"
        return f"{message}; shorten the sequence{', or use --form scan' if 'scan' in self.forms else ''}"


def _needs(who: str, node: RecurrentNode, size: str, forms: tuple[str, ...] = ()) -> Requirement:
    """The unmet requirement that "seq_length" or "batch_size" is known."""
    noun, found = {"seq_length": "sequence length", "batch_size": "batch size"}[size], getattr(node, size)
    is_ = "unknown" if found is None else repr(found)
    return Requirement(f"{who} needs a known {noun}, but the {noun} of this node is {is_}", forms=forms, sizes=(size,))


def _captures(node: RecurrentNode) -> bool:
    """Whether a body reads weights from outer nodes: the weights are computed at run time, or are cast."""
    weights = (node.inputs.get(name) for name in ("R", "B", "P"))
    return node.dtype in ARITHMETIC or any(weight is not None and known(weight) is None for weight in weights)
