"""The numbers at which a model may change its behaviour: constants that it compares with, counts to or slices at."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS, LOOPS
from rnn_lower.ir.traits import DATA_MOVEMENT, ELEMENTWISE, MEASURING
from rnn_lower.ir.walk import Scope, constant, nodes, subgraphs, upstream
from rnn_lower.modelio.document import Document
from rnn_lower.proving.exact.call import OutOfScopeError, cast_type
from rnn_lower.proving.exact.element_types import WIDE_INTEGERS
from rnn_lower.proving.model_inputs import chosen_inputs
from rnn_lower.proving.whole.counting_states import check_counting
from rnn_lower.proving.whole.whole_evaluator import COMPARE, COMPARISONS
from rnn_lower.shapes.required_sizes import required_sizes
from rnn_lower.shapes.size_values import SizeValue, computed_sizes, constant_sizes, shape_sizes
from rnn_lower.shapes.sizes import UNKNOWN, Size, size
from rnn_lower.transforms.evaluate import computed_constants

SHAPES = ("Concat", "ConstantOfShape", "Expand", "Reshape", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")

TABLES = ("Gather", "GatherElements", "GatherND")
"""Operators that look up rows of their first input by index."""

TABLE_READERS = (*TABLES, "Slice", "Split")
"""Operators that select rows of their first input, at most as many as it has."""

POSITIONS = (*TABLES, "Scatter", "ScatterElements", "ScatterND", "Slice")
"""Operators that select or replace elements at the positions that all but their first input give."""

OF_STEPS = ("Add", "Cast", "Concat", "Identity", "Neg", "Reshape", "Squeeze", "Sub", "Unsqueeze", "Where")
"""Operators that may compute with the number of a step: they add to it, or compare it with constants that are tried."""

OF_SIZES = (*OF_STEPS, *COMPARISONS, *MEASURING, "And", "Expand", "Gather", "Not", "Or", "ReduceMax", "Slice", "Split")
"""Operators that may compute what a loop adds to the number of a step, or compares it with."""

COPIED = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that hand on an integer of the caller."""

WIDE = (*WIDE_INTEGERS, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The types that represent every number of a step; others wrap around or round."""

FEW = 4
"""The most different elements of a constant that counts as numbers; others are tables, except in comparisons."""

MOST_COUNTED = 2000
"""The largest constant beyond which sizes are tried. A graph may change its behaviour at any integer that an operator
reads, except the operators of SHAPES, and at any float that one of COMPARE reads."""

TRIED_NUMBERS = 256
"""The maximum number of compared constants to try as integer inputs."""


Known = Mapping[ir.Value | None, np.ndarray]
"""The values that constants alone determine."""


ListKey = tuple[str, tuple[int, ...], bytes]
"""What two equal constants have in common."""


def compared_lists(comparisons: Iterable[ir.Node], known: Known) -> set[ListKey]:
    """The constants of many elements that comparisons read. known: what constants alone determine."""
    arrays = (known.get(value, constant(value)) for node in comparisons for value in node.inputs)
    return {_key(array) for array in arrays if array is not None and array.size > FEW}


def _key(array: np.ndarray) -> ListKey:
    return str(array.dtype), array.shape, array.tobytes()


def compared_numbers(
    comparisons: Iterable[ir.Node], known: Known, shared: Set[ListKey] = frozenset()
) -> Iterator[int]:  # fmt: skip
    """Yield the constants that comparisons read, and their neighbours.

    known: what constants alone determine.  shared: lists that do not count, because both models compare with them.
    """
    for array in (known.get(value, constant(value)) for node in comparisons for value in node.inputs):
        if array is None or array.dtype.kind not in "iuf" or (array.size > FEW and _key(array) in shared):
            continue
        numbers = [int(n) for n in np.unique(array) if np.isfinite(n) and abs(int(n)) < 2**62]
        yield from (n + more for n in numbers for more in (-1, 0, 1))


def _counted(node: ir.Node, scope: Scope, known: Known, whole: bool) -> Iterator[int]:
    """Yield constants that a node compares with, counts with or slices at, except for columns in loop bodies.

    whole: whether tables count, too: all numbers of a comparison, otherwise the least and the largest one.
    """
    arrays = [known.get(value, constant(value)) for value in node.inputs]
    if node.op_type in TABLES and scope.outer is not None and arrays and arrays[0] is not None:
        yield from arrays[0].shape  # a step may look up its position in a table of this size
    axes = arrays[3] if node.op_type == "Slice" and len(arrays) > 3 else None
    for index, array in enumerate(arrays):
        kinds = "" if node.op_type in SHAPES else "iuf" if node.op_type in COMPARE else "iu"
        if array is None or array.dtype.kind not in kinds:
            continue
        if axes is not None and scope.outer is not None and index in (1, 2):
            array = array[np.ravel(axes)[: array.size] == 0]
        is_compared = node.op_type in COMPARISONS
        if array.size > FEW and not (whole or is_compared):
            continue
        different = array if array.size <= FEW else np.unique(array)
        if different.size <= FEW or (whole and is_compared):
            yield from _numbers(different)
        elif whole:
            yield from _numbers(different[[0, -1]])


def counted_numbers(
    model: ir.Model, known: Known | None = None, of: Set[ir.Value | None] | None = None, whole: bool = False
) -> Counter[int]:  # fmt: skip
    """The constants that a node compares with or a loop counts to, and how often.

    known: values that count as constants, otherwise what constants determine.  of: only nodes of these values.
    whole: whether tables count, too.
    """
    known = known_values(model) if known is None else known
    wanted = ((node, scope) for node, scope in nodes(model) if of is None or not of.isdisjoint(node.outputs))
    return Counter(number for node, scope in wanted for number in _counted(node, scope, known, whole))


def check_counted(numbers: Iterable[int]) -> None:
    """Raise OutOfScopeError if a number is too large for a size."""
    if (largest := max(numbers, default=0)) > MOST_COUNTED:
        text = f"a node compares a size with the constant {largest}"
        raise OutOfScopeError(f"{text}; the proof supports constants up to {MOST_COUNTED}")


def all_thresholds(model: ir.Model) -> set[int]:
    """The constants that a node compares with or a loop counts to, and the largest step that a body can recognize.

    Raises OutOfScopeError if a loop may count otherwise than by adding and comparing.
    """
    known = known_values(model)
    given = {node: _given_integers(node, chosen_inputs(model)) for node, _ in nodes(model)}
    alone = len(set[ir.Value]().union(*given.values())) == 1  # the proof gives numbers to one input at a time
    of = {value for node, integers in given.items() if not (alone and integers) for value in node.outputs}
    return {*counted_numbers(model, known, of), _most_steps(model, known)}


def _given_integers(node: ir.Node, inputs: Sequence[ir.Value]) -> set[ir.Value]:
    """The single integers of the caller that a node compares with constants; none if it compares anything else.

    The proof gives these constants to the inputs, so they are no sizes to be tried.
    """
    if node.op_type not in COMPARISONS:
        return set()

    def copied(maker: ir.Node, _: int) -> Sequence[ir.Value | None]:
        return maker.inputs[:1] if maker.op_type in COPIED else ()

    read = [each for each in upstream(node.inputs, copied) if constant(each) is None]
    ends = {each for each in read if (maker := each.producer()) is None or maker.op_type not in COPIED}
    single = {value for value in inputs if _is_integer(value) and _is_single(value)}
    return ends if ends <= single else set()


def _is_single(value: ir.Value) -> bool:
    return value.shape is not None and all(size == 1 for size in value.shape)


def known_values(model: ir.Model) -> Known:
    """What constants alone determine."""
    return computed_constants((node, scope.opset) for node, scope in nodes(model))


def known_sizes(document: Document, known: Known) -> Known:
    """The integers that fixed sizes determine, which are as good as constants. known: what constants determine."""
    required = {name: sizes[0] for name, sizes in required_sizes(document.model).items() if len(sizes) == 1}
    contents, names = dict[ir.Value | None, SizeValue | None](), itertools.count()

    def unknown(_: object = None) -> Size:
        return size(f"{UNKNOWN}{next(names)}")

    for node, _ in nodes(document.model):
        if node.domain not in DEFAULT_DOMAINS:
            continue
        if node.op_type == "Shape":
            shape = None if node.inputs[0] is None else document.shape_info.shape(node.inputs[0])
            sizes = (required.get(dim, dim) if isinstance(dim, str) else dim for dim in shape or ())
            dims = [size(dim) if isinstance(dim, int) else unknown() for dim in sizes]
            content = None if shape is None else shape_sizes(node, dims)
        else:
            arrays = {value: known.get(value, constant(value)) for value in node.inputs if value not in contents}
            contents |= {value: None if array is None else constant_sizes(array) for value, array in arrays.items()}
            content = computed_sizes(node, [contents[value] for value in node.inputs], unknown)
        contents |= {value: content for value in node.outputs[:1] if value not in known}
    numbers = {value: None if held is None else held.numbers for value, held in contents.items()}
    return {value: np.array(found) for value, found in numbers.items() if found is not None and value not in known}


def _most_steps(model: ir.Model, known: Known) -> int:
    """The largest step that a loop body can tell from the ones before it: the sum of what it adds or compares.

    Raises OutOfScopeError if a body computes otherwise with the integers that it receives, such as its step, or with
    sizes. The position i - 5 * (i / 100), for example, differs from i at no size that is tried.
    """
    loops = [node for node, _ in nodes(model) if node.op_type in LOOPS]
    check_bodies(loops)
    inputs = [value for node in loops for _, body in subgraphs(node) for value in body.inputs]
    waiting = [value for value in inputs if _is_integer(value)]
    seen, read = set(waiting), list[ir.Value | None]()
    while waiting:
        for node, index in waiting.pop().uses():
            is_position = node.op_type in POSITIONS and index > 0
            if is_position or any(subgraphs(node)):
                continue
            read += node.inputs
            if node.op_type in COMPARISONS:
                continue
            to = cast_type(node.attributes["to"].value) if node.op_type == "Cast" else ir.DataType.INT64
            multiplies = node.op_type in ("Add", "Sub") and seen.issuperset(node.inputs)
            if node.op_type not in OF_STEPS or to not in WIDE or multiplies:
                raise OutOfScopeError(f"{node.op_type} '{node.name}' computes with the number of a step")
            waiting += [value for value in node.outputs if value not in seen]
            seen.update(node.outputs)
    for loop in loops:
        read += [value for value in loop.inputs if value is not None and (_is_integer(value) or value in known)]
        read += loop.inputs[:1] if loop.op_type == "Loop" else ()
    return _sum_of_numbers(read, known, seen)


def check_bodies(loops: Iterable[ir.Node]) -> None:
    """Raise OutOfScopeError if an integer or boolean state of a Loop or a Scan may count otherwise than by adding."""
    for node in loops:
        for _, body in subgraphs(node):
            check_counting(body, _whole_states(node, body))


def _whole_states(node: ir.Node, body: ir.Graph) -> dict[ir.Value, ir.Value]:
    """The states of a Loop or a Scan that are integers or booleans: before and after a step."""
    scanned = node.attributes.get_int("num_scan_inputs", 0)
    before, after = (body.inputs[2:], body.outputs[1:]) if node.op_type == "Loop" else (body.inputs, body.outputs)
    pairs = zip(before[: len(before) - scanned], after, strict=False)
    return {value: result for value, result in pairs if _is_integer(value) or value.dtype == ir.DataType.BOOL}


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _sum_of_numbers(read: list[ir.Value | None], known: Known, seen: set[ir.Value]) -> int:
    """The sum of all constants from which values are computed, other than the numbers of steps that were `seen`.

    Raises OutOfScopeError for an operator that computes otherwise with sizes than by adding, comparing and selecting.
    """
    total = 0
    while read:
        value = read.pop()
        array = None if value is None else known.get(value, constant(value))
        if array is not None:
            total += max(map(abs, _numbers(array)), default=0)
        elif value is not None and value not in seen and (node := value.producer()) is not None:
            if node.op_type not in OF_SIZES or _is_limited(node, known):  # no size that is tried need reach the limit
                raise OutOfScopeError(f"{node.op_type} '{node.name}' computes what a loop adds to the number of a step")
            seen.add(value)
            read += () if node.op_type in MEASURING else node.inputs
    return total


def _is_limited(node: ir.Node, known: Known) -> bool:
    """Whether a node has a limit that is none of a few numbers: it narrows integers, or reads or measures a table."""
    if node.op_type == "Cast":
        return cast_type(node.attributes["to"].value) not in (*WIDE, ir.DataType.BOOL)
    if node.op_type in MEASURING:
        moved = upstream(node.inputs[:1], _of_same_size)
        makers = [maker for value in moved if value not in known and (maker := value.producer()) is not None]
        return any(maker.op_type in ("Slice", "Split") and _is_known(maker.inputs[0], known) for maker in makers)
    arrays = [array for value in node.inputs if (array := known.get(value, constant(value))) is not None]
    is_table = any(array.dtype.kind in "iuf" and np.unique(array).size > FEW for array in arrays)
    return is_table or (node.op_type in TABLE_READERS and _is_known(node.inputs[0], known))


def _of_same_size(maker: ir.Node, _: int) -> Sequence[ir.Value | None]:
    """The operand that decides how large the results of a node are, if it is one."""
    if maker.op_type in TABLES:
        return maker.inputs[1:2]
    is_plain = maker.op_type in ELEMENTWISE and len(maker.inputs) == 1
    return maker.inputs[:1] if is_plain or maker.op_type in DATA_MOVEMENT else ()


def _is_known(value: ir.Value | None, known: Known) -> bool:
    return known.get(value, constant(value)) is not None


def _numbers(array: np.ndarray) -> list[int]:
    """The numbers of a constant, without those that stand for no limit."""
    numbers = np.ravel(array) if array.dtype.kind in "iuf" else ()
    return [int(number) for number in numbers if np.isfinite(number) and abs(int(number)) < 2**31 - 1]
