"""Guess which recurrent nodes a step could be, from the functions and products in its new state."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.raising.algebra import Atom, NoGuessError, Sum, same

Function = tuple[Any, ...]
"""Name, alpha and beta."""


@dataclasses.dataclass(frozen=True)
class Gate:
    """The argument of a gate's function: matrices [inputs, hidden], [hidden, hidden], bias and peephole [hidden]."""

    function: Function
    limit: float | None
    W: np.ndarray
    R: np.ndarray
    b: np.ndarray
    Rb: np.ndarray
    P: np.ndarray
    x: Atom | None
    source: Sum | None


@dataclasses.dataclass(frozen=True)
class Cell:
    """One direction of a node: gates in the order of the operator, further functions, and where X comes from.

    state_c: the sum of the new cell state.
    """

    op_type: str
    gates: tuple[Gate, ...]
    functions: tuple[Function, ...]
    reset_after: bool = False
    coupled: bool = False
    state_c: Sum | None = None

    @property
    def x(self) -> Atom | None:
        return next((gate.x for gate in self.gates if gate.x is not None), None)

    @property
    def hidden_size(self) -> int:
        return len(self.gates[0].b)

    @property
    def limit(self) -> float | None:
        return self.gates[0].limit

    @property
    def source(self) -> Sum | None:
        """The sum of X that a gate reads."""
        return next((gate.source for gate in self.gates if gate.x is not None), None)


def cells(new: Sum, states: frozenset[ir.Value]) -> Iterator[Cell]:
    """The cells whose hidden state may be this new state.

    states: the states, and values computed from them alone.
    """
    new = unmasked(new)
    for guess in (_rnn, _gru, _lstm):
        for attempt in guess(new):
            try:
                cell = attempt(states)
            except NoGuessError:  # the new state is not computed in this way
                continue
            if len({gate.limit for gate in cell.gates}) == 1 and len({gate.x for gate in cell.gates if gate.x}) < 2:
                yield cell


def masks(new: Sum) -> Iterator[ir.Value]:
    """The conditions under which the new state is not the old one."""
    while (atom := new.atom()) is not None and atom.kind == "where":
        if atom.value is not None:
            yield atom.value
        new = atom.arguments[0]


def unmasked(new: Sum) -> Sum:
    """The new state without the mask that keeps old rows."""
    while (atom := new.atom()) is not None and atom.kind == "where":
        new = atom.arguments[0]
    return new


Attempt = Callable[[frozenset[ir.Value]], Cell]
"""Reads the gates if they are those of a cell."""


def _rnn(new: Sum) -> Iterator[Attempt]:
    atom = new.atom()
    if atom is not None and atom.kind == "function":
        yield lambda states: Cell("RNN", (gate := _gate(atom, states),), (gate.function,))


def _gru(new: Sum) -> Iterator[Attempt]:
    tops = _functions(new)
    for z, n in itertools.permutations(tops) if len(tops) == 2 else ():
        inside, _ = _argument(n)
        keeps_new = bool(np.all(_where_one(new, (z, n)) == 1))
        products = [atom for atom in inside.terms if atom.kind == "product"]
        if len(products) == 1 and (inside.terms[products[0]] == 1).all():
            for reset, linear in itertools.permutations(products[0].arguments):
                r = reset.atom()
                if r is not None and r.kind == "function" and linear.is_linear():
                    rest = {atom: matrix for atom, matrix in inside.terms.items() if atom is not products[0]}
                    yield functools.partial(
                        _gru_cell, keeps_new, z, r, n, dataclasses.replace(inside, terms=rest), linear
                    )
        for atom in inside.terms:
            r = _reset_gate(atom)
            if r is not None:
                yield functools.partial(_gru_cell, keeps_new, z, r, n, inside, None)


def _gru_cell(
    keeps_new: bool, z: Atom, r: Atom, n: Atom, rest: Sum, linear: Sum | None, states: frozenset[ir.Value]
) -> Cell:  # fmt: skip
    """keeps_new: whether z weights the new state instead of the old one.

    linear: the sum that r multiplies, if the product comes first.
    """
    update, gate = _gate(z, states), _gate(n, states, rest)
    update = _negated(update) if keeps_new else update
    if linear is not None:
        inner = _parts(linear, states)
        if gate.R.any() or inner.x is not None:
            raise NoGuessError
        gate = dataclasses.replace(gate, R=inner.R, Rb=inner.b)
    functions = (update.function, gate.function)
    return Cell("GRU", (update, _gate(r, states), gate), functions, reset_after=linear is not None)


def _negated(gate: Gate) -> Gate:
    """The gate that is 1 minus this one: 1 - sigmoid(x) is sigmoid(-x)."""
    return dataclasses.replace(gate, W=-gate.W, R=-gate.R, b=-gate.b, P=-gate.P)


def _where_one(total: Sum, ones: tuple[Atom, ...]) -> np.ndarray:
    """The value of a sum if these atoms are 1 and all others 0."""
    result = total.number
    for atom, matrix in total.terms.items():
        value = np.full(atom.columns, float(atom in ones))
        if atom.kind == "product":
            value = functools.reduce(np.multiply, (_where_one(argument, ones) for argument in atom.arguments))
        result = result + (value * matrix if matrix.ndim == 1 else value @ matrix)
    return result


def _reset_gate(atom: Atom) -> Atom | None:
    """r if an atom is r * h, else None."""
    product = None if atom.definition is None else atom.definition.atom()
    if product is None or product.kind != "product":
        return None
    functions = [
        factor for factor in (argument.atom() for argument in product.arguments) if factor and factor.kind == "function"
    ]
    return functions[0] if len(functions) == 1 else None


def _lstm(new: Sum) -> Iterator[Attempt]:
    product = new.atom()
    if product is None or product.kind != "product":
        return
    for outer, shown in itertools.permutations(argument.atom() for argument in product.arguments):
        if outer is not None and shown is not None and outer.kind == shown.kind == "function":
            (c,) = shown.arguments
            if (named := c.atom()) is not None and named.definition is not None:
                c = named.definition
            for i, f, g in _roles(c):
                yield functools.partial(_lstm_cell, outer, shown, c, i, f, g)


def _lstm_cell(
    o: Atom, shown: Atom, new: Sum, i: Atom, f: Atom | None, g: Atom, states: frozenset[ir.Value]
) -> Cell:  # fmt: skip
    """shown: the function of the new cell state.  f: None if it is 1 - i."""
    forget = i if f is None else f
    cell_states = (_previous(new, f, g), new)
    gates = tuple(_gate(function, states, c=cell_states) for function in (i, o, forget, g))
    if f is None and not np.all(_where_one(new, (i, g)) == 1):  # the one function is that of the forget gate
        gates = (_negated(gates[0]), *gates[1:])
    return Cell("LSTM", gates, (gates[0].function, gates[3].function, shown.parameters), False, f is None, new)


def _roles(c: Sum) -> Iterator[tuple[Atom, Atom | None, Atom]]:
    """The (input, forget, cell) functions of a new cell state; no forget gate if it is 1 - input."""
    products = [atom for atom, factor in c.terms.items() if atom.kind == "product" and (factor == 1).all()]
    if len(products) == 2 and len(c.terms) == 2:
        for new, carried in itertools.permutations(products):
            pair = [argument.atom() for argument in new.arguments]
            for f in (argument.atom() for argument in carried.arguments):
                if f is None or f.kind != "function" or any(gate is None or gate.kind != "function" for gate in pair):
                    continue
                for i, g in itertools.permutations(pair):
                    assert i is not None
                    assert g is not None
                    yield i, f, g
    tops = _functions(c)
    for i, g in itertools.permutations(tops, 2):
        if len(tops) == 2:
            yield i, None, g


def _previous(c: Sum, factor: Atom | None, g: Atom) -> Sum | None:
    """The factor of the forget gate: the previous cell state."""
    for product in (atom for atom in c.terms if atom.kind == "product" and factor is not None):
        for gate, state in itertools.permutations(product.arguments):
            if gate.atom() is factor and state.atom() is not g:
                return state
    states = {atom: matrix for atom, matrix in c.terms.items() if atom.kind == "value"}  # c + i * (g - c)
    return dataclasses.replace(c, terms=states, number=np.zeros(c.columns)) if len(states) == 1 else None


def _functions(new: Sum) -> list[Atom]:
    """The functions in a sum, also inside products."""
    functions: dict[Atom, None] = {}
    for atom in new.terms:
        if atom.kind == "function":
            functions[atom] = None
        elif atom.kind == "product":
            for argument in atom.arguments:
                functions.update(dict.fromkeys(_functions(argument)))
    return list(functions)


def _argument(atom: Atom) -> tuple[Sum, float | None]:
    """The argument of a function, and its clip limits."""
    (inside,) = atom.arguments
    clipped = inside.atom()
    if clipped is not None and clipped.kind == "clip":
        return clipped.arguments[0], clipped.parameters[0]
    return inside, None


def _gate(
    atom: Atom, states: frozenset[ir.Value], inside: Sum | None = None, c: tuple[Sum | None, Sum] | None = None
) -> Gate:
    argument, limit = _argument(atom)
    gate = _parts(argument if inside is None else inside, states, c)
    return dataclasses.replace(gate, function=atom.parameters, limit=limit)


def _parts(inside: Sum, states: frozenset[ir.Value], c: tuple[Sum | None, Sum] | None = None) -> Gate:
    """The parts of a pre-activation. c: the cell states before and after the step, for peepholes."""
    columns = inside.columns
    R, P, x, W = np.zeros((columns, columns)), np.zeros(columns), None, None
    for atom, matrix in inside.terms.items():
        if atom.kind != "value" or matrix.ndim != 2:
            raise NoGuessError
        if _is_cell_state(atom, c):
            if np.count_nonzero(matrix - np.diag(np.diag(matrix))):
                raise NoGuessError
            P = P + np.diag(matrix)
        elif atom.value in states or atom.define is not None:
            if matrix.shape != R.shape or R.any():
                raise NoGuessError
            R = matrix
        elif x is None:
            x, W = atom, matrix
        else:
            raise NoGuessError
    none = np.zeros((0, columns))
    return Gate(("", None, None), None, none if W is None else W, R, inside.number, np.zeros(columns), P, x, inside)


def _is_cell_state(atom: Atom, c: tuple[Sum | None, Sum] | None) -> bool:
    defined = atom.definition if atom.define is not None and c is not None else None
    states = (state for state in c or () if state is not None)
    return any(state.atom() is atom or (defined is not None and same(defined, state)) for state in states)
