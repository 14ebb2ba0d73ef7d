"""The matrices of one decoder layer for a circuit, with a margin that can be proven.

A poll is a sum of signs weighted 1 or 2 over at most `positions` tokens, and the tally is the poll
over the sum of the weights: zero, or at least 1 / (2 * positions) in size. Compared with a
threshold of -1 / (4 * positions), it is never nearer than `margin(positions)`: hundreds of times
float32's rounding. All further steps are switches driven far into saturation by inputs that differ
by whole signs.

Attention makes the tallies. The MLP is a list of hidden units, `activation(gate . y)` times a
column of `out`, used only where ReLU and SiLU agree: far from zero, or in pairs, since f(z) - f(-z)
= z for both. So one list serves both kinds of model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mirage.tools.demo.stream import LEVEL, MISS, ONE, SIGN, TALLY, CodeStream, Floats, Ints

KNEE = 256.0
"""Half the width of a switch's ramp. It is round in binary, so that the matrices are exact."""
DRIVE = KNEE + 32
"""Smallest input of a switch or of an active unit: 32 beyond the knee, where SiLU equals ReLU."""
HIT = (1 + MISS) / 2
"""Threshold of a unit that looks up a token, as a part of a code's inner product with itself."""
SCORE = math.log(2.0) / 2
"""Attention score of an agreeing key; a disagreeing one has its negative. Their weights have the
ratio 2 to 1.
"""


def margin(positions: int) -> float:
    """Smallest distance of a tally from its threshold; a unanimous tally is 1."""
    return 1 / (4 * positions)


@dataclass(frozen=True)
class CircuitSizes:
    """Sizes of a layer's matrices that the circuit does not determine; lengths in elements."""

    head_dim: int
    kv_heads: int
    units: int
    """Width of the MLP."""
    positions: int
    rotary: bool
    normed_heads: bool
    """True if queries and keys pass an RMSNorm for each head."""
    epsilon: float
    """Epsilon of all norms."""


@dataclass(frozen=True)
class CircuitLayer:
    """Matrices of one decoder layer over D logical coordinates, with M hidden units; each field
    has its shape."""

    query: Floats
    """[heads * head_dim, D]"""
    key: Floats
    """[kv_heads * head_dim, D]"""
    value: Floats
    """[kv_heads * head_dim, D]"""
    output: Floats
    """[D, heads * head_dim]"""
    query_norm: Floats
    """[head_dim]; like `key_norm` all ones in models without norms per head"""
    key_norm: Floats
    """[head_dim]"""
    gate: Floats
    """[M, D]"""
    out: Floats
    """[D, M]"""


def build_layer(
    stream: CodeStream, index: int, sizes: CircuitSizes, rng: np.random.Generator
) -> CircuitLayer:
    """The matrices of layer `index`. Raises ValueError if `sizes` are too small for the circuit."""
    query, key = _queries_and_keys(stream, index, sizes, rng)
    value, output = _values(stream, index, sizes, rng)
    query_norm, key_norm = _head_norms(stream, sizes, rng)
    gate, out = _mlp(stream, index, sizes, rng)
    return CircuitLayer(query, key, value, output, query_norm, key_norm, gate, out)


# --- attention ---------------------------------------------------------------------------


def _score_dims(stream: CodeStream, sizes: CircuitSizes) -> list[Ints]:
    """Dimensions that make the scores, for each head of a group that shares keys."""
    dims = np.arange(sizes.head_dim)
    if sizes.rotary:  # the slow half of the pairs, which does not turn: see ROPE_THETA
        dims = dims[dims % (sizes.head_dim // 2) >= sizes.head_dim // 4]
    group = stream.circuit.heads // sizes.kv_heads
    if len(dims) < group:
        raise ValueError(f"head_dim {sizes.head_dim} is too small for {group} heads per key")
    share = len(dims) // group
    return [dims[member * share : (member + 1) * share] for member in range(group)]


def _queries_and_keys(
    stream: CodeStream, index: int, sizes: CircuitSizes, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Query and key matrices: a head's score is SCORE times the signs of its query and its key,
    which are states.
    """
    wires, shape = stream.circuit.wiring[index], (sizes.kv_heads, sizes.head_dim)
    score_dims = _score_dims(stream, sizes)
    # Keys fill the dimensions that no query reads, too: with norms per head, all count.
    sources, signs = rng.integers(0, stream.circuit.chains, shape), _signs(rng, *shape)
    query = np.zeros((stream.circuit.heads, sizes.head_dim, stream.logical))
    strength = SCORE * math.sqrt(sizes.head_dim) / len(score_dims[0])
    for head in range(stream.circuit.heads):
        kv, member = divmod(head, len(score_dims))
        dims = score_dims[member]
        sources[kv, dims] = wires.key[head]
        asked = stream.axis(stream.state[wires.query[head], None]) / SIGN
        query[head, dims] = strength * signs[kv, dims, None] * asked
    key = signs[..., None] * stream.axis(stream.state[sources]) / SIGN
    return query.reshape(-1, stream.logical), key.reshape(-1, stream.logical)


def _head_norms(
    stream: CodeStream, sizes: CircuitSizes, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Weights of the norms per head, which undo the norms and contain powers of two that cancel
    each other.
    """
    if not sizes.normed_heads:
        return np.ones(sizes.head_dim), np.ones(sizes.head_dim)
    share = len(_score_dims(stream, sizes)[0])
    strength = SCORE * math.sqrt(sizes.head_dim) / share
    query_size = math.sqrt(strength**2 * share / sizes.head_dim + sizes.epsilon)
    balance: Floats = np.exp2(rng.integers(-1, 2, sizes.head_dim))
    return query_size * balance, math.sqrt(1 + sizes.epsilon) / balance


def _values(
    stream: CodeStream, index: int, sizes: CircuitSizes, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Value and output matrices: each chain has its own dimensions of its head, with random gains
    that cancel.
    """
    circuit, wires = stream.circuit, stream.circuit.wiring[index]
    group, per_head = circuit.heads // sizes.kv_heads, circuit.chains // circuit.heads
    if sizes.head_dim % (group * per_head):
        raise ValueError(f"head_dim {sizes.head_dim} is no multiple of {group * per_head} chains")
    value = np.zeros((sizes.kv_heads, sizes.head_dim, stream.logical))
    output = np.zeros((stream.logical, circuit.heads, sizes.head_dim))
    for chain in range(circuit.chains):
        head = chain // per_head
        kv, lane = head // group, chain % (group * per_head)
        dims = np.arange(lane, sizes.head_dim, group * per_head)
        gain = _signs(rng, len(dims)) * (0.5 + rng.random(len(dims)))
        source = stream.state[wires.value[chain]]
        value[kv, dims, source] = gain / SIGN
        output[stream.tally[chain], head, dims] = TALLY / (gain * len(dims))
    return value.reshape(-1, stream.logical), output.reshape(stream.logical, -1)


# --- MLP ---------------------------------------------------------------------------------


class Units:
    """Hidden units in the order of addition: rows of `gate`, columns of `out`."""

    def __init__(self, logical: int) -> None:
        self.one = np.eye(logical)[ONE] / LEVEL
        self.gates: list[Floats] = []
        self.outs: list[Floats] = []
        self.constant = np.zeros(logical)

    def __len__(self) -> int:
        return sum(len(gate) for gate in self.gates)

    def add(self, gate: Floats, out: Floats) -> None:
        """Add units with rows of shape [n, D] each: y += out[i] * activation(gate[i] . y)."""
        self.gates.append(gate)
        self.outs.append(out)

    def copy(self, source: Floats, target: Floats) -> None:
        """Add units for y += target[i] * (source[i] . y), two for each row."""
        self.add(KNEE * source, target / KNEE)
        self.add(-KNEE * source, -target / KNEE)

    def switch(self, source: Floats, shift: float, apart: float, target: Floats) -> None:
        """Add units for y += target[i] * sign(source[i] . y + shift), where the argument is at
        least `apart` in size.
        """
        drive = DRIVE / apart * (source + shift * self.one)
        self.add(drive + KNEE * self.one, target / KNEE)
        self.add(drive - KNEE * self.one, -target / KNEE)
        self.constant -= target.sum(0)

    def finish(self) -> tuple[Floats, Floats]:
        """`gate` of shape [M, D] and `out` of shape [D, M], with one more unit for the
        constants.
        """
        self.add(KNEE * self.one[None], self.constant[None] / KNEE)
        return np.concatenate(self.gates), np.concatenate(self.outs).T


def units_needed(chains: int, vocabulary: int) -> int:
    """Number of hidden units that a circuit needs: switches and copies for each chain, a constant,
    the lookup of tokens.
    """
    return 14 * chains + 1 + vocabulary


def _mlp(
    stream: CodeStream, index: int, sizes: CircuitSizes, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    units = Units(stream.logical)
    _switch_chains(units, stream, index, margin(sizes.positions))
    _look_up_tokens(units, stream, index, sizes.units - len(units) - 1, rng)
    gate, out = units.finish()
    order = rng.permutation(sizes.units)
    return gate[order], out[:, order]


def _switch_chains(units: Units, stream: CodeStream, index: int, apart: float) -> None:
    """Add the units for vote <- sign of the tally; state <- state * vote * hint; tally <- 0."""
    state, vote, tally, hint = map(
        stream.axis, (stream.state, stream.vote, stream.tally, stream.hint)
    )
    units.switch(tally / TALLY, shift=apart, apart=apart, target=SIGN * vote)
    # The product of three signs, from their sum: 3 and -1 make 1, 1 and -3 make -1.
    three = (state + vote[stream.circuit.wiring[index].partner] + hint) / SIGN
    units.switch(three, shift=2, apart=1, target=SIGN * state)
    units.switch(three, shift=0, apart=1, target=-SIGN * state)
    units.switch(three, shift=-2, apart=1, target=SIGN * state)
    for old, size in (vote, SIGN), (state, SIGN), (tally, TALLY):
        units.copy(old / size, -size * old)


def _look_up_tokens(
    units: Units, stream: CodeStream, index: int, count: int, rng: np.random.Generator
) -> None:
    """Add `count` units that replace the token's hints by those of the next layer. Raises
    ValueError if `count` is below the vocabulary's size.
    """
    vocabulary, hints = stream.circuit.vocabulary, stream.circuit.hints
    if count < vocabulary:
        raise ValueError(
            f"an MLP {vocabulary - count} units too narrow: make the layer larger in bytes"
        )
    token = np.arange(count) % vocabulary
    strength = DRIVE * (1 + rng.random((count, 1)))
    gate = np.zeros((count, stream.logical))
    gate[:, stream.code] = stream.codes[token] / len(stream.code)
    gate[:, ONE] = -HIT / LEVEL
    change = SIGN * (hints[index + 1] - hints[index]) @ stream.axis(stream.hint)
    copies = np.bincount(token)[token, None]
    units.add(strength / (1 - HIT) * gate, change[token] / strength / copies)


def _signs(rng: np.random.Generator, *shape: int) -> Floats:
    return np.where(rng.integers(0, 2, shape) == 1, 1.0, -1.0)
