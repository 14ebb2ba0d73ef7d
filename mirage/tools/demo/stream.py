"""The residual stream of a demo model: what stands where, and how it is read and written.

A stream is `[y, -y]`: its mean is zero, so LayerNorm and RMSNorm do the same to it. The
logical vector y of D = hidden / 2 coordinates holds a constant, the token's code (signs), and
for every chain of the circuit its state, vote and hint (signs of size SIGN) and its tally (a
poll before its sign is taken). Only tallies vary in size, and they are small: so a norm
divides by one known number, which its weight undoes. The constant is large and no layer
writes it: it rules the norm, so a small error elsewhere cannot grow from layer to layer.
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
"""Two tokens' codes have an inner product of at most this share of their length."""
SILENCE = -100.0
"""Logit of a token that the circuit cannot say; the chosen one's is at least 6."""


def read(matrix: Floats) -> Floats:
    """[..., D] over logical coordinates -> [..., hidden] over the stream."""
    return np.concatenate([matrix / 2, -matrix / 2], axis=-1)


def write(matrix: Floats) -> Floats:
    """[D, ...] into logical coordinates -> [hidden, ...] into the stream."""
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
        """[n] -> [n, D]: rows that pick these coordinates."""
        return np.eye(self.logical)[coordinates]

    @property
    def code(self) -> Ints:
        return 1 + np.arange(self.codes.shape[1])

    def embedding(self) -> Floats:
        """[vocabulary, hidden]"""
        rows = np.zeros((self.circuit.vocabulary, self.logical))
        rows[:, ONE] = LEVEL
        rows[:, self.code] = self.codes
        rows[:, self.state] = SIGN * self.circuit.first_state
        rows[:, self.vote] = SIGN * self.circuit.first_vote
        rows[:, self.hint] = SIGN * self.circuit.hints[0]
        return write(rows.T).T

    def norm_weight(self, epsilon: float) -> float:
        """The norm's weight that makes it the identity, tallies aside."""
        square = LEVEL**2 + len(self.code) + 3 * self.circuit.chains * SIGN**2
        return math.sqrt(square / self.logical + epsilon)

    def head(self) -> Floats:
        """[vocabulary, hidden]: the chosen token leads by at least 2, as its sums are odd."""
        rows = np.zeros((self.circuit.vocabulary, self.logical))
        rows[:, ONE] = SILENCE / LEVEL
        spoken = np.frombuffer(ALPHABET, dtype=np.uint8)
        rows[spoken, ONE] = 0
        signs = np.concatenate([self.state, self.vote, self.hint])
        rows[np.ix_(spoken, signs)] = SPELLING @ self.circuit.spelling / SIGN
        return read(rows)


def lay_out(circuit: Circuit, hidden: int, rng: np.random.Generator) -> CodeStream:
    """Give every sign its coordinate. ValueError when `hidden` is too small for the chains."""
    chains, length = circuit.chains, hidden // 2 - 1 - 4 * circuit.chains
    codes = _draw_codes(rng, circuit.vocabulary, length)
    state, vote, tally, hint = (1 + length + i * chains + np.arange(chains) for i in range(4))
    return CodeStream(circuit, hidden, codes, state, vote, tally, hint)


def _draw_codes(rng: np.random.Generator, count: int, length: int) -> Floats:
    """[count, length] of signs, every two rows told apart as MISS says."""
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
