"""Arithmetic modulo a prime, against Python's own integers and fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from onenode import Case, arrays, attributes

from rnn_lower.proving.exact import equations, reference, scalar_functions
from rnn_lower.proving.exact.field import SMALL, Field, is_prime


@pytest.fixture(scope="module")
def field() -> Field:
    return Field(7)


def test_primes():
    below = [n for n in range(2, 3000) if all(n % d for d in range(2, math.isqrt(n) + 1))]
    assert [n for n in range(3000) if is_prime(n)] == below
    assert is_prime(2**31 - 1)
    assert not is_prime(3215031751 // 151)  # 28351 * 751, and the number itself fools the bases 2, 3, 5 and 7


def test_every_field_is_of_another_prime_of_31_bits():
    primes = {Field(seed).prime for seed in range(20)}
    assert len(primes) == 20
    assert all(is_prime(prime) and 2**30 < prime < 2**31 for prime in primes)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_floats_embed_exactly(field, dtype):
    rng = np.random.default_rng(0)
    numbers = np.concatenate([rng.normal(size=50), [0, -0.0, 1, -1], rng.normal(size=20) * 1e-7]).astype(dtype)
    limits = ml_dtypes.finfo(dtype)
    numbers = np.concatenate(
        [numbers, np.array([limits.max, limits.min, limits.smallest_subnormal, limits.smallest_normal], dtype)]
    )
    for number, element in zip(numbers, field.embed(numbers), strict=True):
        fraction = Fraction(float(number))
        assert int(element) == fraction.numerator * pow(fraction.denominator, -1, field.prime) % field.prime


def test_what_is_no_number_is_a_symbol(field):
    nan, inf, minus = field.embed(np.array([np.nan, np.inf, -np.inf]))
    assert len({int(nan), int(inf), int(minus), 0}) == 4
    assert field.embed(np.array([np.nan], np.float32)) == nan


@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 5, 4), (1, 1100, 7), (9, 1100, 2), (2, 0, 3), (0, 3, 2)])
def test_products_are_exact(field, rows, depth, columns):
    a, b = field.random((rows, depth)), field.random((depth, columns))
    wanted = a.astype(object) @ b.astype(object) % field.prime if depth else np.zeros((rows, columns))
    assert np.array_equal(field.matmul(a, b).astype(object), wanted)
    largest = np.full((2, depth), field.prime - 1, np.uint64)
    assert np.all(field.matmul(largest, largest.T) == depth % field.prime)


def test_arithmetic(field):
    a, b = field.random((100,)), field.random((100,))
    for mine, theirs in ((field.add, "__add__"), (field.subtract, "__sub__"), (field.multiply, "__mul__")):
        wanted = [getattr(int(x), theirs)(int(y)) % field.prime for x, y in zip(a, b, strict=True)]
        assert mine(a, b).tolist() == wanted
    assert np.all(field.multiply(a, field.inverse(a)) == 1)
    assert np.all(field.add(a, field.negative(a)) == 0)
    assert field.inverse(np.zeros(1, np.uint64)) == 0


def test_functions_are_those_of_their_name_and_no_others(field):
    x = np.unique(field.random((100_000,)))
    tanh, sigmoid = field.function("tanh", x), field.function("sigmoid", x)
    assert np.array_equal(tanh, field.function("tanh", x))
    assert np.sum(tanh == sigmoid) <= 2
    assert len(np.unique(tanh)) > len(x) - 10  # 2.3 pairs of 100,000 elements meet by chance
    assert abs(tanh.astype(np.float64).mean() / field.prime - 0.5) < 0.01


def test_order_of_small_integers_is_theirs(field):
    numbers = np.arange(-50, 51)
    x = field.integers(numbers)
    assert np.array_equal(field.small(x), numbers)
    assert np.array_equal(field.above_zero(x), numbers > 0)
    assert np.array_equal(field.small(field.relu(x)), np.maximum(numbers, 0))
    assert field.small(field.integers(np.array([SMALL]))) is None


def test_identities_of_what_is_made_of_relu(field):
    x, low, high = (field.random((1000,)) for _ in range(3))
    assert np.array_equal(field.subtract(field.relu(x), field.relu(field.negative(x))), x)
    least, most = scalar_functions.minimum(field, x, low), scalar_functions.maximum(field, x, low)
    assert np.array_equal(field.add(least, most), field.add(x, low))
    assert np.array_equal(most, scalar_functions.maximum(field, low, x))
    assert not np.array_equal(scalar_functions.clip(field, x, low, high), x)


@pytest.mark.parametrize("name", ["Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "HardSigmoid"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_the_text_in_integers_is_the_oracle(op, name, direction):
    """With small integers and activations without a curve, the field computes what floats compute exactly."""
    per = len(equations.DEFAULTS[op]) * (2 if direction == "bidirectional" else 1)
    case = Case(
        op, T=2, N=3, I=2, H=2, direction=direction, activations=(name,) * per, alpha=(2.0,) * per, beta=(1.0,) * per,
        optional=("B", "sequence_lens", "initial_h", "initial_c", "P"), lengths=(2, 0, 1), clip=6.0,
        lbr=1 if op == "GRU" else None,
    )  # fmt: skip
    rng = np.random.default_rng(3)
    values = {
        k: v if k == "sequence_lens" else rng.integers(-1, 2, v.shape).astype(np.float32)
        for k, v in arrays(case).items()
    }
    names = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
    given = [values[name] for name in (names if op == "LSTM" else names[:6])]
    wanted = reference.run(op, given, attributes(case))

    function = (name.lower(), 2.0, 1.0)
    node = equations.Recurrence(
        op, 2, equations.BACKWARDS.get(direction, (False,)), ((function,) * 3,) * 2, 6.0, op == "GRU", False, 0,
        np.dtype(np.float32),
    )  # fmt: skip
    field = Field(1)
    embedded = {k: field.embed(v) for k, v in values.items() if k not in ("B", "sequence_lens")}
    embedded["B"] = equations.bias(field, values["B"], node.dtype, folded=False)
    found = equations.evaluate(scalar_functions.arithmetic(field), node, embedded, values["sequence_lens"])
    for what, array in zip(("Y", "Y_h", "Y_c"), wanted, strict=False):
        assert np.array_equal(field.small(found[what]), array), what
