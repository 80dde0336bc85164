"""Arithmetic modulo a prime, which compares two formulas without rounding.

Every float is an integer times a power of two, so it has an exact image modulo an odd prime, and sums and products of
images are images of the exact sums and products. Field elements are numpy uint64 arrays below the prime; the dtype
distinguishes them from integers (int64) and booleans (bool). A function that is not a polynomial is a random function
keyed by its name: the same on both sides of a comparison, and equal only for equal arguments.
"""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np

Array = np.ndarray

SMALL = 1 << 17
"""Below this magnitude, the elements of integers have a sign; the sign of all other elements is a random function."""

_CHUNK = 1 << 13
"""Elements to embed at a time: the memory of larger intermediate results is new at each use, which takes more time."""

_MANTISSA, _SIGN, _LAST = 52, 1 << 11, 1074
"""Of a float64: the bits of the mantissa, the place of the sign above the exponent, and minus the least power of 2."""

_FREE = 29
"""The last bits of the mantissa that are 0 in floats of 32 bits, which makes them small."""

_PIECE, _PIECES, _MOST_DEPTH = 11, 3, 2048
"""A product of 11 and 31 bits, summed up to 2048 times, is exact in float64; three pieces make an element."""

_DEPTH, _WIDTH = 512, 256
"""The rows of a matrix to multiply by at a time, or the columns if it lies in memory column by column."""

_ELEMENTS = 1 << 22
"""The most elements of a product to compute at a time: its intermediate results need a multiple of their memory."""

_LARGE = 1000
"""The least elements of an array for which a division is faster than a remainder."""


class Field:
    """The integers modulo a prime between 2^30 and 2^31; `seed` determines the prime and the random functions.

    symbols: the NaN and infinities that were embedded, which obey no law of arithmetic.
    products: the number of multiplications in products of matrices.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.symbols: set[str] = set()
        self.products = 0
        self._numbers: dict[float, Array] = {}
        self._keys: dict[str, np.uint64] = {}
        self._buffer = np.empty(0)
        self._rng = np.random.default_rng(seed)
        candidates = iter(lambda: int(self._rng.integers(1 << 30, 1 << 31)) | 1, 0)
        self.prime = next(number for number in candidates if is_prime(number))
        self._p = np.uint64(self.prime)
        last_bits = [pow((self.prime + 1) // 2, _LAST, self.prime)] * 2  # subnormals share it with the next floats
        while len(last_bits) < _SIGN:
            last_bits.append(last_bits[-1] * 2 % self.prime)
        first_bits = [0, *((bit << _MANTISSA) % self.prime for bit in last_bits[1:])]
        self._last_bits, self._first_bits = (
            np.array([*bits, *(self.prime - bit for bit in bits)], np.uint64) for bits in (last_bits, first_bits)
        )
        self._short_last_bits = self._modulo(self._last_bits << np.uint64(_FREE))

    # -- elements --------------------------------------------------------------------------------------------------

    def random(self, shape: tuple[int, ...]) -> Array:
        return self._rng.integers(0, self.prime, shape, np.uint64)

    def embed(self, numbers: object) -> Array:
        """The exact image of floats of any type; NaN and the infinities become opaque symbols."""
        array = np.asarray(numbers)
        result = np.empty(array.shape, np.uint64)
        source, target = array.reshape(-1), result.reshape(-1)
        for start in range(0, source.size, _CHUNK):  # a float64 copy of all weights would be large
            part = source[start : start + _CHUNK].astype(np.float64)
            target[start : start + _CHUNK] = self._embed(part)
        return result

    def _embed(self, numbers: Array) -> Array:
        bits = numbers.view(np.uint64)
        powers = (bits >> np.uint64(_MANTISSA)).view(np.int64)  # sign and exponent; numpy copies unsigned indices
        mantissas = bits & np.uint64((1 << _MANTISSA) - 1)
        if (mantissas & np.uint64((1 << _FREE) - 1)).any():
            mantissas, last_bits = self._modulo(mantissas), self._last_bits
        else:
            mantissas, last_bits = mantissas >> np.uint64(_FREE), self._short_last_bits
        result = self._modulo(mantissas * last_bits[powers] + self._first_bits[powers])
        for index in np.flatnonzero(~np.isfinite(numbers)):
            self.symbols.add(str(numbers[index]))
            result[index] = self.symbol(numbers[index])
        return result

    def symbol(self, number: float) -> Array:
        """The element that stands for NaN or an infinity; unlike `embed`, this does not mean that a model has it."""
        return np.asarray(self._key(f"symbol {number}") % self._p)

    def number(self, number: float) -> Array:
        """The cached image of one number."""
        if number not in self._numbers or not math.isfinite(number):
            self._numbers[number] = self.embed(np.float64(number))
        return self._numbers[number]

    def integers(self, numbers: Array) -> Array:
        """The image of integers or booleans."""
        return np.asarray(np.asarray(numbers).astype(np.int64) % self.prime, np.uint64)

    def small(self, x: Array) -> Array | None:
        """The integers below SMALL that the elements represent, or None if one represents no such integer."""
        signed = self.signed(x)
        return signed if bool(np.all(np.abs(signed) < SMALL)) else None

    def signed(self, x: Array) -> Array:
        """Return the representatives nearest to 0."""
        signed = x.astype(np.int64)
        return np.asarray(np.where(signed > self.prime // 2, signed - self.prime, signed))

    # -- arithmetic ------------------------------------------------------------------------------------------------

    def _modulo(self, a: Array) -> Array:
        """a modulo the prime; numpy divides large arrays by one number much faster than it computes remainders."""
        return np.asarray(a % self._p if a.size < _LARGE else a - a // self._p * self._p)

    def add(self, a: Array, b: Array) -> Array:
        return self._modulo(a + b)

    def negative(self, a: Array) -> Array:
        return self._modulo(self._p - a)

    def subtract(self, a: Array, b: Array) -> Array:
        return self._modulo(a + (self._p - b))

    def multiply(self, a: Array, b: Array) -> Array:
        return self._modulo(a * b)

    def inverse(self, a: Array) -> Array:
        """1 / a by Fermat's little theorem; 0 for a = 0."""
        result, power, rest = np.ones_like(a), a, self.prime - 2
        while rest:
            if rest & 1:
                result = self.multiply(result, power)
            power, rest = self.multiply(power, power), rest >> 1
        return result

    def total(self, a: Array, axes: tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
        """The sum along axes, or of all elements."""
        return self._modulo(a.sum(axis=axes, dtype=np.uint64, keepdims=keepdims))

    def matmul(self, a: Array, b: Array) -> Array:
        """The product of a [..., K] and b [K, M], by exact float64 products."""
        rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        self.products += rows.size * b.shape[1]
        total = np.zeros((len(rows), b.shape[1]), np.uint64)
        height = max(1, _ELEMENTS // max(1, b.shape[1]))
        depth, width = (_DEPTH, max(1, b.shape[1])) if _by_rows(b) else (_MOST_DEPTH, _WIDTH)
        starts = (
            range(0, size, step) for size, step in zip((*rows.shape, b.shape[1]), (height, depth, width), strict=True)
        )
        for i, k, j in itertools.product(*starts):
            part = self._product(rows[i : i + height, k : k + depth], b[k : k + depth, j : j + width])
            total[i : i + height, j : j + width] = self.add(total[i : i + height, j : j + width], part)
        return total.reshape(*a.shape[:-1], b.shape[1])

    def _product(self, a: Array, b: Array) -> Array:
        """The exact product; the smaller operand is split into pieces of a few bits, to read the larger one once."""
        if a.size <= b.size:
            product = np.concatenate(self._pieces(a)) @ self._floats(b)
            parts = product.reshape(_PIECES, len(a), b.shape[1])
        else:
            product = self._floats(a) @ np.concatenate(self._pieces(b), axis=1)
            parts = product.reshape(len(a), _PIECES, b.shape[1]).swapaxes(0, 1)
        total: Array = np.zeros((), np.uint64)
        for index, part in enumerate(parts):
            total = self.add(total, self._scaled(part, index * _PIECE))
        return total

    def _floats(self, a: Array) -> Array:
        """A matrix of integers below 2^53 as float64, in memory that the next call overwrites."""
        if self._buffer.size < a.size:
            self._buffer = np.empty(a.size)
        memory = self._buffer[: a.size]
        result = memory.reshape(a.shape) if _by_rows(a) else memory.reshape(a.shape[::-1]).T
        np.copyto(result, a.view(np.int64))  # processors convert signed integers faster
        return result

    def _pieces(self, a: Array) -> list[Array]:
        mask = np.uint64((1 << _PIECE) - 1)
        return [(a >> np.uint64(index * _PIECE) & mask).astype(np.float64) for index in range(_PIECES)]

    def _scaled(self, product: Array, bits: int) -> Array:
        return self.multiply(self._modulo(product.astype(np.uint64)), np.array(pow(2, bits, self.prime), np.uint64))

    # -- random functions ------------------------------------------------------------------------------------------

    def _key(self, name: str) -> np.uint64:
        if name not in self._keys:
            digest = hashlib.blake2b(f"{self._seed} {name}".encode(), digest_size=8).digest()
            self._keys[name] = np.uint64(int.from_bytes(digest, "little"))
        return self._keys[name]

    def function(self, name: str, x: Array) -> Array:
        """A random function of one element: the finalizer of splitmix64, keyed by name."""
        with np.errstate(over="ignore"):  # numpy warns for scalars only
            mixed = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ self._key(name)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return self._modulo(mixed ^ (mixed >> np.uint64(31)))

    def above_zero(self, x: Array) -> Array:
        """0 < x: booleans if all x represent small integers, else 0, 1 or a random element."""
        signed = self.signed(x)
        small = np.abs(signed) < SMALL
        if bool(small.all()):
            return signed > 0
        return np.where(small, (signed > 0).astype(np.uint64), self.function("above zero", x))

    def sigmoid(self, x: Array) -> Array:
        """A random function s with s(x) + s(-x) = 1."""
        signed = self.signed(x)
        share = self.function("sigmoid", np.abs(signed).astype(np.uint64))
        return np.where(signed < 0, self.subtract(np.uint64(1), share), share)  # type: ignore[arg-type]

    def relu(self, x: Array) -> Array:
        """x s(x) for a random function s with s(x) + s(-x) = 1, so that relu(x) - relu(-x) = x."""
        signed = self.signed(x)
        switch = self.function("sign", np.abs(signed).astype(np.uint64))
        switch = np.where(signed > 0, switch, self.subtract(np.uint64(1), switch))  # type: ignore[arg-type]
        hard = (signed > 0).astype(np.uint64)
        return self.multiply(x, np.where(np.abs(signed) < SMALL, hard, switch))


def _by_rows(matrix: Array) -> bool:
    """Whether the elements of a row lie closer in memory than those of a column."""
    return bool(abs(matrix.strides[0]) >= abs(matrix.strides[1]))


def is_prime(number: int) -> bool:
    """Whether a number is prime: the Miller-Rabin test, exact below 3.2 * 10^9 with these bases (Jaeschke 1993)."""
    if number < 11 or any(number % base == 0 for base in (2, 3, 5, 7)):
        return number in (2, 3, 5, 7)
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1

    def passes(base: int) -> bool:
        power = pow(base, odd, number)
        return power == 1 or any(pow(power, 1 << k, number) == number - 1 for k in range(twos))

    return all(map(passes, (2, 3, 5, 7)))
