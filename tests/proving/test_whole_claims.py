"""Pairs of whole models that differ where field elements know nothing of numbers: none of them is proved equal."""

from __future__ import annotations

import math

import onnx
import pytest
from judge import proved_as_wholes

import rnn_lower
from rnn_lower.ir.walk import NODE_MARK
from rnn_lower.modelio.document import Document
from rnn_lower.proving.whole import whole_evaluator
from rnn_lower.proving.whole.whole_proof import prove_whole

LOOP = """
    trips = Constant <value = int64 {2}> ()
    h = Loop (trips, , x) <body = step (int64 i, bool go, float[N, 3] s) => (bool on, float[N, 3] t) {
        on = Identity (go)
        t = Add (s, s)
    }>
"""
UNROLLED = """
    once = Add (x, x)
    h = Add (once, once)
"""


def model(steps: str, tail: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, 3] x, uint8[3] k) => (y) {{ {steps} {tail} }}
    """)


WHOLE = "w = Cast <to = 7> (h) two = Constant <value = int64 {2}> () "
DIFFER = {
    "integer division": (WHOLE + "y = Identity (w)", WHOLE + "d = Div (w, two) y = Mul (d, two)"),
    "order of integers": (WHOLE + "n = Add (w, two) y = Less (n, two)", WHOLE + "z = Sub (w, w) y = Less (w, z)"),
    "unsigned integers that wrap": (
        "one = Constant <value = uint8[1] {1}> () s = Sub (k, one) y = Cast <to = 7> (s) u = Identity (h)",
        "l = Cast <to = 7> (k) o = Constant <value = int64[1] {1}> () y = Sub (l, o) u = Identity (h)",
    ),
    "the largest of few": ("y = ArgMax <axis = 1> (h)", "g = Mul (h, h) y = ArgMax <axis = 1> (g)"),
    "nothing by nothing": ("z = Sub (h, h) y = Div (h, z)", "y = Sub (h, h)"),
    "places that are not zero": (
        "y = NonZero (h)", "s = Shape (h) o = ConstantOfShape <value = float[1] {1.0}> (s) y = NonZero (o)",
    ),
    "a row that floats choose": (
        "t = Constant <value = float[3] {1.0, 2.0, 3.0}> () i = ArgMax <axis = 1> (h) y = Gather (t, i)",
        "t = Constant <value = float[3] {1.0, 2.0, 4.0}> () i = ArgMax <axis = 1> (h) y = Gather (t, i)",
    ),
    "ends that floats choose": (
        WHOLE + "o = Constant <value = int64[1] {0}> () m = ReduceMax <keepdims = 0> (w) e = Unsqueeze (m, o) "
        "y = Slice (h, o, e, o)",
        WHOLE + "o = Constant <value = int64[1] {0}> () m = ReduceMin <keepdims = 0> (w) e = Unsqueeze (m, o) "
        "y = Slice (h, o, e, o)",
    ),
    "kernel_shape that is not the kernel's": (
        "o = Constant <value = int64[1] {0}> () f = Unsqueeze (h, o) w = Constant <value = float[1, 1, 1] {2.0}> () "
        "g = Transpose <perm = [1, 0, 2]> (f) y = Conv <kernel_shape = [1]> (g, w)",
        "o = Constant <value = int64[1] {0}> () f = Unsqueeze (h, o) w = Constant <value = float[1, 1, 1] {2.0}> () "
        "g = Transpose <perm = [1, 0, 2]> (f) y = Conv <kernel_shape = [2]> (g, w)",
    ),
    "infinity less itself": (
        "i = Constant <value = float {inf}> () a = Add (h, i) y = Sub (a, i)", "y = Identity (h)",
    ),
    "what is dropped in training": (
        "r = Constant <value = float {0.5}> () t = Constant <value = bool {1}> () y = Dropout (h, r, t)",
        "r = Constant <value = float {0.5}> () t = Constant <value = bool {1}> () y = Dropout (h, r, t)",
    ),
    "the smallest": (
        "n = Constant <value = int64[1] {2}> () y, i = TopK (h, n)",
        "n = Constant <value = int64[1] {2}> () y, i = TopK <largest = 0> (h, n)",
    ),
    "a cast to the type of something": (
        "o = Constant <value = float {1.0}> () t = Cast <to = 10> (o) w = CastLike (h, t) y = Cast <to = 1> (w)", "y = Identity (h)",
    ),
    "the logarithm of nothing": ("z = Sub (h, h) n = Log (z) o = Sub (n, n) y = Add (h, o)", "y = Identity (h)"),
    "the shape of nothing": (
        "o = Constant <value = int64[2] {0, 3}> () y = ConstantOfShape (o) u = Identity (h)",
        "o = Constant <value = int64[2] {0, 7}> () y = ConstantOfShape (o) u = Identity (h)",
    ),
    "types that do not fit": ("y = Identity (h)", "c = Cast <to = 11> (h) y = Add (c, h)"),
    "an operator that does not exist": ("y = Identity (h)", "y = Identity (h) z = Nonsense (h)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DIFFER)
def test_what_field_elements_cannot_tell_is_not_proved(kind):
    before, after = (model(steps, tail) for steps, tail in zip((LOOP, UNROLLED), DIFFER[kind], strict=True))
    assert not proved_as_wholes(before, after).ok


def chosen(steps: str, number: int, then: str, rest: str) -> onnx.ModelProto:
    """What is done where an integer of the caller's is one number, and where not, with a row of a table."""
    table = ", ".join(map(str, range(300)))
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, 3] x, int64 k, int64[N] ids) => (y) {{ {steps}
            n = Constant <value = int64 {{{number}}}> ()
            t = Constant <value = float[300] {{{table}}}> ()
            s = Constant <value = int64[2] {{100, 3}}> ()
            rows = Reshape (t, s)
            row = Gather (rows, ids)
            c = Equal (k, n)
            p = If (c) <then_branch = a () => (float[N, 3] u) {{ {then} }}, else_branch = b () => (float[N, 3] v) {{ {rest} }}>
            y = Add (p, row)
        }}
    """)


CHOICES = {
    "the number": (16000, 8000, "u = Add (h, h)", "v = Neg (h)"),
    "what is done with it": (16000, 16000, "u = Mul (h, h)", "v = Neg (h)"),
    "what is done else": (16000, 16000, "u = Add (h, h)", "v = Mul (h, h)"),
}


def paired(steps: str, number: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, 3] x, int64 a, int64 b) => (y) <int64 one = {{16000}}, int64 other = {{{number}}}> {{
            {steps}
            c = Equal (a, one) d = Equal (b, other) both = And (c, d) y = Where (both, h, x)
        }}""")


def test_numbers_that_two_inputs_must_have_together_are_not_tried():
    documents = [Document(paired(steps, number)) for steps, number in ((LOOP, 24000), (UNROLLED, 8000))]
    assert not prove_whole(*documents, 2, 0, math.inf, exact_sizes=True).ok


def test_constants_that_are_computed_are_compared_with():
    before, after = (
        onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["": 17]>
            main (float[N, 3] x, int64 a) => (y) <float n = {{{number}}}> {{
                {steps}
                k = Cast <to = 7> (n) c = Equal (a, k) y = Where (c, h, x)
            }}""")
        for steps, number in ((LOOP, 1500.0), (UNROLLED, 1400.0))
    )
    assert not proved_as_wholes(before, after).ok


def rated(steps: str, number: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, 3] x, int64[1] rate) => (y) <int64 n = {{{number}}}> {{
            {steps}
            one = Squeeze (rate) low = Equal (one, n) y = Where (low, h, x)
        }}""")


def test_integers_of_the_caller_are_no_sizes():
    """A number that no size may have does not keep a loop from being proved, and counts all the same."""
    before, after, other = (
        Document(rated(steps, number)) for steps, number in ((LOOP, 16000), (UNROLLED, 16000), (UNROLLED, 8000))
    )
    assert prove_whole(before, after, 2, 0, math.inf, exact_sizes=True).ok
    assert not prove_whole(before, other, 2, 0, math.inf, exact_sizes=True).ok


@pytest.mark.parametrize("what", CHOICES)
def test_integers_of_the_caller_are_compared_with(what):
    number, other, then, rest = CHOICES[what]
    right = chosen(LOOP, number, "u = Add (h, h)", "v = Neg (h)")
    assert proved_as_wholes(right, chosen(UNROLLED, number, "u = Add (h, h)", "v = Neg (h)")).ok
    assert not proved_as_wholes(right, chosen(UNROLLED, other, then, rest)).ok


@pytest.mark.parametrize("default", ["", ", int64 rate = {5}"])
def test_integers_of_the_caller_are_compared_with_where_no_body_is(default):
    """A rate that one node recognizes decides how often a loop runs; unrolled, it has no body that must have run."""
    before, after = (
        onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["": 17]>
            main (float[N, 3] x, int64 rate) => (y) <int64 n = {{8000}}, int64 one = {{1}}, int64 two = {{2}}{default}> {{
                low = Equal (rate, n) trips = Where (low, one, two)
                {steps}
                y = Identity (h)
            }}""")
        for steps in (LOOP.replace("trips = Constant <value = int64 {2}> ()", ""), UNROLLED)
    )
    assert not proved_as_wholes(before, after).ok


def counted(steps: str, tail: str) -> onnx.ModelProto:
    """A model that reads integers of three types, and truth values."""
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, 3] x, int64[2] n, int32[2] w, uint8[2] s, bool[40] b) => (y, h) {{ {steps}
            one = Constant <value = int64 {{1}}> ()
            most = Constant <value = int64 {{1000}}> ()
            {tail}
        }}
    """)


FACTORS = 13
PRODUCT = " ".join(
    f"c{k} = Constant <value = int64 {{{k}}}> () d{k} = Sub (n, c{k}) p{k} = Mul ({f'p{k - 1}' if k else 'one'}, d{k})"
    for k in range(FACTORS)
)
INTEGERS = {
    "a cast to 8 bits": ("y = Identity (n)", "c = Cast <to = 3> (n) y = Cast <to = 7> (c)"),
    "a cast to float16": ("y = Identity (n)", "c = Cast <to = 10> (n) y = Cast <to = 7> (c)"),
    "a sum of 32 bits": (
        "l = Cast <to = 7> (w) y = Add (l, l)", "d = Add (w, w) y = Cast <to = 7> (d)",
    ),
    "a sum of 8 bits": (
        "o = Cast <to = 7> (s) y = Add (o, one)", "u = Cast <to = 2> (one) d = Add (s, u) y = Cast <to = 7> (d)",
    ),
    "a polynomial": ("y = Identity (n)", PRODUCT + f" y = Add (n, p{FACTORS - 1})"),
    "the sign": ("y = Sub (n, one)", "d = Sub (n, most) g = Sign (d) y = Add (n, g)"),
    "an absolute value": ("y = Sub (most, n)", "d = Sub (n, most) y = Abs (d)"),
    "the place of the largest": (
        "y = Sub (n, n)", "a = Constant <value = int64[1] {0}> () m = Unsqueeze (most, a) c = Concat <axis = 0> (n, m) "
        "t = Constant <value = int64 {2}> () g = ArgMax <keepdims = 0> (c) i = Sub (t, g) y = Mul (i, n)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", INTEGERS)
def test_models_that_differ_for_integers_beyond_small_ones_are_not_proved(kind):
    before, after = (counted(steps, tail) for steps, tail in zip((LOOP, UNROLLED), INTEGERS[kind], strict=True))
    assert not proved_as_wholes(before, after).ok


@pytest.mark.parametrize("kind", INTEGERS)
def test_what_both_do_with_integers_is_proved(kind):
    proof = proved_as_wholes(*(counted(steps, INTEGERS[kind][1]) for steps in (LOOP, UNROLLED)))
    assert proof.ok, proof.reasons


def decided(steps: str, tail: str) -> onnx.ModelProto:
    """A model in which integers decide what is done with x."""
    table = ", ".join(map(str, range(40)))
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, 3] x, int64[2] ids, int64 rate, bool[200] mask, bool reset) => (h, y)
        <float[40] table = {{{table}}}, int64 most = {{5000}}, int64[1] first = {{0}}, int64[1] last = {{-1}}, float few = {{150}}>
        {{ {steps} {tail} }}
    """)


DECIDED = {
    "a row of a large table": (
        "y = Gather (table, ids)",
        "m = Constant <value = float {30.0}> () w = Min (table, m) y = Gather (w, ids)",
    ),
    "a branch within a branch": (
        "e = Equal (rate, most) y = If (e) <then_branch = a () => (float[N, 3] u) { u = If (reset) "
        "<then_branch = c () => (float[N, 3] p) { p = Add (h, h) }, else_branch = d () => (float[N, 3] q) { q = Neg (h) }> }, "
        "else_branch = b () => (float[N, 3] v) { v = Identity (h) }>",
        "e = Equal (rate, most) y = If (e) <then_branch = a () => (float[N, 3] u) { u = If (reset) "
        "<then_branch = c () => (float[N, 3] p) { p = Mul (h, h) }, else_branch = d () => (float[N, 3] q) { q = Neg (h) }> }, "
        "else_branch = b () => (float[N, 3] v) { v = Identity (h) }>",
    ),
    "a branch at other sizes": (
        "e = Equal (rate, most) y = If (e) <then_branch = a () => (float[K, 3] u) { u = Identity (h) }, "
        "else_branch = b () => (float[M, 3] v) { v = Neg (h) }>",
        "e = Equal (rate, most) y = If (e) <then_branch = a () => (float[K, 3] u) { "
        "n = Constant <value = int64[1] {3}> () u = Slice (h, first, n, first) }, "
        "else_branch = b () => (float[M, 3] v) { v = Neg (h) }>",
    ),
    "a size": (
        "r = Abs (rate) n = Unsqueeze (r, first) z = ConstantOfShape (n) m = Size (z) y = Greater (m, most)",
        "y = Greater (first, first)",
    ),
    "a column of one-hot rows": (
        "n = Constant <value = int64 {40}> () v = Constant <value = float[2] {0, 1}> () o = OneHot (ids, n, v) "
        "u = Unsqueeze (table, last) y = MatMul (o, u)",
        "n = Constant <value = int64 {40}> () v = Constant <value = float[2] {0, 1}> () o = OneHot (ids, n, v) "
        "m = Constant <value = float {30.0}> () w = Min (table, m) u = Unsqueeze (w, last) y = MatMul (o, u)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DECIDED)
def test_models_that_differ_where_integers_rarely_lead_are_not_proved(kind, monkeypatch):
    monkeypatch.setattr(whole_evaluator, "FEW", 39 if kind == "a row of a large table" else whole_evaluator.FEW)
    before, after = (decided(steps, tail) for steps, tail in zip((LOOP, UNROLLED), DECIDED[kind], strict=True))
    assert not proved_as_wholes(before, after).ok


@pytest.mark.parametrize("kind", sorted(DECIDED.keys() - {"a size", "a row of a large table"}))
def test_models_that_integers_lead_in_the_same_way_are_proved(kind):
    proof = proved_as_wholes(*(decided(steps, DECIDED[kind][0]) for steps in (LOOP, UNROLLED)))
    assert proof.ok, proof.reasons


def test_models_with_narrow_integers_are_proved():
    made = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]> main (float[N, 3] x, int4[2] k) => (h, y)
        { t = Constant <value = int64 {2}> () h = Loop (t, , x) <body = step (int64 i, bool go, float[N, 3] s) => (bool on, float[N, 3] u)
        { on = Identity (go) u = Add (s, s) }> y = Cast <to = 7> (k) }
    """)
    assert rnn_lower.prove(made, rnn_lower.lower(made, loops=True)).ok


def test_models_that_do_not_load_are_not_proved():
    for change in (
        lambda model: model.graph.node[-1].attribute.append(onnx.helper.make_attribute("odd", 1)),
        lambda model: setattr(model, "ir_version", 99),
    ):
        after = model(UNROLLED, "y = Identity (h)")
        assert proved_as_wholes(model(LOOP, "y = Identity (h)"), after).ok
        change(after)
        assert not proved_as_wholes(model(LOOP, "y = Identity (h)"), after).ok


def test_sizes_that_large_integers_would_give_are_no_obstacle():
    tail = "z = Constant <value = int64 {0}> () f = Abs (w) c = Cast <to = 7> (f) t = ReduceMax <keepdims = 0> (c) y = Range (z, t, one)"
    proof = proved_as_wholes(*(counted(steps, tail) for steps in (LOOP, UNROLLED)))
    assert proof.ok, proof.reasons


SAME = (
    "n = Constant <value = int64[1] {2}> () y, i = TopK <largest = 0> (h, n)",
    "y = Identity (h)", "y = ArgMax <axis = 1> (h)", "y = Hardmax (h)", WHOLE + "y = Div (w, two)",
    "i = Constant <value = float {-inf}> () y = Max (h, i)", "l = Cast <to = 7> (k) y = Sub (l, l)",
    "t = Constant <value = float[3] {1.0, 2.0, 3.0}> () i = ArgMax <axis = 1> (h) y = Gather (t, i)",
    "r = Constant <value = float {0.5}> () y, m = Dropout (h, r)",
    "n = Constant <value = float {nan}> () o = Constant <value = float {1.0}> () z = Constant <value = float {0.0}> () "
    "c = Greater (o, z) w = Where (c, o, n) y = Mul (h, w)",
)  # fmt: skip


@pytest.mark.parametrize("tail", SAME)
def test_what_they_can_tell_is_proved(tail):
    proof = proved_as_wholes(model(LOOP, tail), model(UNROLLED, tail))
    assert proof.ok, proof.reasons


def test_a_cast_to_the_type_that_there_is_changes_nothing():
    chosen = "n = Constant <value = float {-1e10}> () y = Where (c, n, h)"
    truth = f"z = Constant <value = float {{0.0}}> () e = Equal (x, z) c = Cast <to = 9> (e) {chosen}"
    proof = proved_as_wholes(model(LOOP, truth), model(UNROLLED, truth.replace("Cast <to = 9>", "Identity")))
    assert proof.ok, proof.reasons


def test_a_constant_too_large_to_be_made_is_out_of_scope():
    tail = (
        "s = Constant <value = int64[2] {300000, 300000}> () z = ConstantOfShape (s) r = ReduceSum (z) y = Mul (h, r)"
    )
    assert "elements" in str(proved_as_wholes(model(LOOP, tail), model(UNROLLED, tail)).reasons)


def test_models_of_many_frames_are_run_with_many():
    kernel = f"k = Constant <value = float[1, 1, 40] {{{', '.join(['0.5'] * 40)}}}> ()"
    one, other = "h = Add (x, x) y = Conv (h, k)", "z = Identity (x) h = Add (z, x) y = Conv (h, k)"
    wrong = "h = Mul (x, x) y = Conv (h, k)"

    def framed(steps: str) -> onnx.ModelProto:
        return onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["": 17]>
            main (float[N, 1, frames] x) => (y) {{ {kernel} {steps} }}
        """)

    assert prove_whole(*(Document(framed(steps)) for steps in (one, other)), 2, 0, 1e9).ok
    assert not prove_whole(*(Document(framed(steps)) for steps in (one, wrong)), 2, 0, 1e9).ok


OLDER = {
    "Hardmax over all axes": (
        "r = Reshape <shape = [1, -1, 3]> (h) y = Hardmax (r)", "r = Reshape <shape = [1, -1, 3]> (h) y = Hardmax <axis = 2> (r)",
    ),
    "training": tuple(
        f"a = Constant <value = float[3] {{1.0, 2.0, 3.0}}> () y = BatchNormalization <is_test = {n}> (h, a, a, a, a)"
        for n in (1, 0)
    ),
    "the axis that broadcasts": tuple(
        f"o = Constant <value = float[3] {{1.0, 2.0, 3.0}}> () r = Reshape <shape = [3, 3]> (h)"
        f" y = Add <broadcast = 1, axis = {axis}> (r, o)" for axis in (0, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OLDER)
def test_attributes_count_that_no_equation_looks_at(kind):
    before, after = (model(steps, tail) for steps, tail in zip((LOOP, UNROLLED), OLDER[kind], strict=True))
    same = model(UNROLLED, OLDER[kind][0])
    for each in (before, after, same):
        each.opset_import[0].version, each.ir_version = 6 if kind == "training" else 4, 3
    assert not proved_as_wholes(before, after).ok
    assert kind != "training" or proved_as_wholes(before, same).ok


def with_default(steps: str, factor: str, value: float = 2.0, listed: bool = True) -> onnx.ModelProto:
    """s = [value] is an input with a default, if listed."""
    made = model(steps, f"c = Constant <value = float[1] {{2.0}}> () y = Mul (h, {factor})")
    made.graph.initializer.append(onnx.helper.make_tensor("s", 1, [1], [value]))
    if listed:
        made.graph.input.append(onnx.helper.make_tensor_value_info("s", 1, [1]))
    return made


@pytest.mark.parametrize(
    ("before", "after", "proved"),
    [
        (with_default(LOOP, "s"), with_default(UNROLLED, "s"), True),
        (with_default(LOOP, "s"), with_default(UNROLLED, "c"), False),
        (with_default(LOOP, "c"), with_default(UNROLLED, "s"), False),
        (with_default(LOOP, "s"), with_default(UNROLLED, "s", 3.0), False),
        (with_default(LOOP, "s"), with_default(UNROLLED, "s", listed=False), False),
        (with_default(LOOP, "s", listed=False), with_default(UNROLLED, "s"), False),
    ],
    ids=["same", "ignored", "read", "another", "not listed", "listed"],
)
def test_what_a_caller_may_give_instead_of_a_default_counts(before, after, proved):
    assert proved_as_wholes(before, after).ok is proved


def test_a_cast_to_16_bits_rounds_whoever_claims_to_have_emitted_it():
    rounded = model(UNROLLED, "w = Cast <to = 10> (h) y = Cast <to = 1> (w)")
    for node in rounded.graph.node:
        node.metadata_props.add(key=NODE_MARK, value="x")
    assert not proved_as_wholes(model(LOOP, "y = Identity (h)"), rounded).ok


@pytest.mark.parametrize("ids", ["float", "int64"])
def test_the_depth_of_a_one_hot_matters(ids):
    """It is added to negative indices."""

    def vectors(depth: int) -> onnx.ModelProto:
        return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g ({ids}[N] x) => (float[N,5] y)
            <int64 depth = {{{depth}}}, float[2] values = {{0, 1}}, int64[1] no = {{0}}, int64[1] five = {{5}},
             int64[1] one = {{1}}, {ids} far = {{105}}> {{
            i = Sub (x, far) v = OneHot (i, depth, values) y = Slice (v, no, five, one) }}""")

    assert not proved_as_wholes(vectors(200), vectors(100))
    assert proved_as_wholes(vectors(200), vectors(200))
