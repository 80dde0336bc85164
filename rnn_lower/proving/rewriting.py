"""Do again what lowering did to the whole model before it replaced nodes: raise, fold, unroll, convert, legalize.

`prove` compares the lowered file with the result node by node, and proves each of these steps by itself. The file tells
only which steps to do.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

from rnn_lower.driver.legalize_rest import LEGALIZED, legalize_as
from rnn_lower.driver.lower_pass import prepared
from rnn_lower.driver.suggestions import unlogged
from rnn_lower.errors import ConversionError, RnnLowerError
from rnn_lower.ir.walk import NODE_MARK, count_nodes, nodes, opset_of, output_names, recurrent_nodes
from rnn_lower.loops.model import MARK, describe, loops
from rnn_lower.lowering.node import display_name
from rnn_lower.modelio.document import Document
from rnn_lower.opset.convert import converted
from rnn_lower.options import Dims, Options
from rnn_lower.proving.model_inputs import fixed_sizes
from rnn_lower.shapes.fixed_dims import axis_name
from rnn_lower.transforms.fold import is_folded

RAISING, FOLDING, UNROLLING, LEGALIZATION = "raising", "constant folding", "unrolling", "legalization"

Raise = Callable[[Document, Dims | None], Document]
"""Fix sizes and replace loops with recurrent nodes. Callers supply this function, because it needs the prover."""


class StepError(RnnLowerError):
    """The lowered model states a step that cannot be done."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A rewriting of a whole model: what it is, and the model before and after it, at one opset."""

    what: str
    before: Document
    after: Document


def rewritings(
    source: Document, lowered: Document, raised: Raise | None = None
) -> Iterator[tuple[Document, list[Step]]]:  # fmt: skip
    """What lowering may have made of the original before it replaced nodes, and in which steps; the likeliest first.

    Raises RnnLowerError if no plan is possible, for example if the original cannot be converted to the opset of the
    lowered model.
    """
    error, found = None, False
    attempt = None if raised is None else functools.cache(lambda: raised(source, _sizes_of(lowered, source)))
    for plan in _plans(source, lowered):
        if RAISING in plan and raised is None:
            continue
        try:
            with unlogged():  # lowering logged this already
                document, steps = rewritten(source, lowered, plan, attempt)
        except RnnLowerError as failure:  # folding may remove the node that cannot be converted
            if not found and not isinstance(failure, ConversionError):
                raise
            error = failure
        else:
            found = True
            if (RAISING in plan) == any(step.what == RAISING for step in steps):
                yield document, steps
    if error is not None and not found:
        raise error


def _plans(source: Document, lowered: Document) -> list[tuple[str, ...]]:
    """The steps that may lead from the original to the lowered model, apart from its conversion and legalization."""
    there = {output_names(node) for node, _ in loops(lowered.model)}
    gone = {describe(node) for node, _ in loops(source.model) if output_names(node) not in there}
    unrolled = _marks(lowered, MARK) - _marks(source, MARK)
    folds = is_folded(lowered.proto)
    unrolling = [(UNROLLING,), (FOLDING, UNROLLING)]  # unrolling folds as well, but leads to other names
    plans: list[tuple[str, ...]] = [()] if not folds or is_folded(source.proto) else []  # nothing may be left to fold
    plans += [(FOLDING,)] if folds else []
    if folds and gone:
        plans = [*unrolling, *plans] if unrolled else [*plans, *unrolling]
    if _may_be_raised(source, lowered):
        plans += [(RAISING, *plan) for plan in plans]
    return plans


def _may_be_raised(source: Document, lowered: Document) -> bool:
    """Whether loops of the original may have become recurrent nodes of the lowered model, or were lowered as such."""
    if _marks(source, NODE_MARK):  # a raised loop may have been lowered to one again
        return True
    if not any(loops(source.model)):
        return False
    names = {display_name(node) for node, _ in recurrent_nodes(lowered.model)} | _marks(lowered, NODE_MARK)
    return not names <= {display_name(node) for node, _ in recurrent_nodes(source.model)}


def _marks(document: Document, key: str) -> set[str]:
    """The metadata values that nodes have for a key."""
    return {node.metadata_props[key] for node, _ in nodes(document.model) if key in node.metadata_props}


def _legalized(document: Document) -> list[str]:
    """For each legalization of other nodes, what the file says of it."""
    return document.model.metadata_props.get(LEGALIZED, "").splitlines()


def rewritten(
    source: Document, lowered: Document, plan: tuple[str, ...] = (), raised: Callable[[], Document] | None = None
) -> tuple[Document, list[Step]]:  # fmt: skip
    """The original after the steps of a plan, its conversion and its legalization, and these steps.

    raised: the original with its sizes fixed and its loops raised.
    """
    sizes, steps = _sizes_of(lowered, source), list[Step]()
    result = source.copied().fixed(sizes) if sizes else source
    if RAISING in plan and raised is not None:
        source, sizes = raised(), None
        steps.append(Step(RAISING, result, source))
        result = source
    if FOLDING in plan or UNROLLING in plan:
        most_nodes = max(Options().max_nodes, count_nodes(lowered.model.graph))
        options = Options(fold=FOLDING in plan, loops=UNROLLING in plan, dims=sizes, max_nodes=most_nodes)
        folded = prepared(source.copied(), options, keep_loops=True)[0]
        steps.append(Step(UNROLLING if UNROLLING in plan else FOLDING, result, folded))
        result = folded
    opset = opset_of(lowered.proto)
    was_mixed = _opsets(lowered) == {opset} and len(_opsets(result)) > 1
    if opset is not None and (was_mixed or opset != opset_of(result.proto)):
        result = converted(result, opset)
    if lines := _legalized(lowered)[len(_legalized(source)) :]:
        legal = result.copied()
        try:
            legalize_as(legal.model, lines)
        except RnnLowerError as error:  # from a target of another version
            raise StepError(f"the lowered model was legalized for a target, and this step fails now: {error}") from None
        legal = Document(legal.write_back(), legal.folder)
        steps.append(Step(LEGALIZATION, result, legal))
        result = legal
    return result, [step for step in steps if not _is_same(step)]


def _opsets(document: Document) -> set[int | None]:
    """The opsets that a model and its functions import."""
    return {opset_of(document.proto), *map(opset_of, document.proto.functions)} - {None}


def _is_same(step: Step) -> bool:
    """Whether a step changed nothing that computes."""
    a, b = step.before.proto, step.after.proto
    return bool(a.graph == b.graph) and list(a.functions) == list(b.functions)


def _sizes_of(lowered: Document, original: Document) -> Dims | None:
    """The free sizes of the original's inputs that the lowered model fixes."""
    fixed = fixed_sizes(original.model, lowered.proto)
    return {axis_name(name, axis): size for (name, axis), size in fixed.items()} or None
