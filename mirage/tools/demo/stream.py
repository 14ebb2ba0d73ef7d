"""The residual stream of a demo model: the layout of its coordinates, and how it is read and
written.

A stream is `[y, -y]`: its mean is zero, so LayerNorm and RMSNorm have the same effect on it. The
logical vector y of D = hidden / 2 coordinates holds a constant, the token's code (signs), and for
every chain of the circuit its state, vote and hint (signs of size SIGN) and its tally (a poll
before its sign is taken). Only tallies vary in size, and they are small: so a norm divides by one
known number, which its weight undoes. The constant is large and no layer writes it: it dominates
the norm, so a small error elsewhere cannot grow from layer to layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage.tools.demo.circuit import ALPHABET, SPELLING, Circuit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ONE = 0
"""Coordinate of the constant."""
LEVEL = 64.0
"""Size of the constant; that of a code's signs is 1."""
SIGN = 0.25
"""Size of a state, vote or hint."""
TALLY = 2.0**-8
"""Size of a unanimous tally."""
MISS = 0.6
"""Largest inner product of two tokens' codes, as a part of the number of signs in a code."""
SILENCE = -100.0
"""Logit of a token that the circuit cannot generate; that of the chosen one is at least 6."""


def read(matrix: Floats) -> Floats:
    """Matrix of shape [..., hidden] over the stream, from one of shape [..., D] over logical
    coordinates.
    """
    return np.concatenate([matrix / 2, -matrix / 2], axis=-1)


def write(matrix: Floats) -> Floats:
    """Matrix of shape [hidden, ...] into the stream, from one of shape [D, ...] into logical
    coordinates.
    """
    return np.concatenate([matrix, -matrix], axis=0)


@dataclass(frozen=True)
class CodeStream:
    """Coordinates for one circuit; `codes` has shape [vocabulary, code length]."""

    circuit: Circuit
    hidden: int
    codes: Floats
    state: Ints
    vote: Ints
    tally: Ints
    hint: Ints

    @property
    def logical(self) -> int:
        return self.hidden // 2

    def axis(self, coordinates: Ints) -> Floats:
        """Rows of shape [n, D] that select these n coordinates."""
        return np.eye(self.logical)[coordinates]

    @property
    def code(self) -> Ints:
        return 1 + np.arange(self.codes.shape[1])

    def embedding(self) -> Floats:
        """Embedding of shape [vocabulary, hidden]."""
        rows = np.zeros((self.circuit.vocabulary, self.logical))
        rows[:, ONE] = LEVEL
        rows[:, self.code] = self.codes
        rows[:, self.state] = SIGN * self.circuit.first_state
        rows[:, self.vote] = SIGN * self.circuit.first_vote
        rows[:, self.hint] = SIGN * self.circuit.hints[0]
        return write(rows.T).T

    def norm_weight(self, epsilon: float) -> float:
        """Weight with which a norm is the identity, apart from the tallies' influence."""
        square = LEVEL**2 + len(self.code) + 3 * self.circuit.chains * SIGN**2
        return math.sqrt(square / self.logical + epsilon)

    def head(self) -> Floats:
        """Output head of shape [vocabulary, hidden]. The chosen token's logit leads by at least 2,
        since its sums are odd.
        """
        rows = np.zeros((self.circuit.vocabulary, self.logical))
        rows[:, ONE] = SILENCE / LEVEL
        spoken = np.frombuffer(ALPHABET, dtype=np.uint8)
        rows[spoken, ONE] = 0
        signs = np.concatenate([self.state, self.vote, self.hint])
        rows[np.ix_(spoken, signs)] = SPELLING @ self.circuit.spelling / SIGN
        return read(rows)


def lay_out(circuit: Circuit, hidden: int, rng: np.random.Generator) -> CodeStream:
    """Assign a coordinate to every sign. Raises ValueError if `hidden` is too small for the chains
    and for codes of all tokens.
    """
    chains, length = circuit.chains, hidden // 2 - 1 - 4 * circuit.chains
    codes = _draw_codes(rng, circuit.vocabulary, length)
    state, vote, tally, hint = (1 + length + i * chains + np.arange(chains) for i in range(4))
    return CodeStream(circuit, hidden, codes, state, vote, tally, hint)


def _draw_codes(rng: np.random.Generator, count: int, length: int) -> Floats:
    """Random codes, one a row, of shape [count, length]; each number is 1 or -1. The inner product
    of any two rows is at most `MISS` * `length`. Raises ValueError if `20 * count` random rows have
    too few such codes, because `length` is too small.
    """
    rows = np.zeros((0, max(length, 0)))
    for _ in range(20 * count):
        row = 2.0 * rng.integers(0, 2, (1, max(length, 0))) - 1
        if (rows @ row[0] <= MISS * length).all():
            rows = np.concatenate([rows, row])
        if len(rows) == count:
            return rows
    raise ValueError(
        f"{length} coordinates cannot tell {count} tokens apart: make the hidden size larger"
    )
