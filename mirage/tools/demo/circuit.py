"""The integer machine that a demo model computes, exactly.

A demo model's greedy text must not depend on how its requests were batched, so its weights are not
drawn at random: they wire up this machine, in which every quantity is a sign or a count.
Floating-point sums then only have to distinguish an integer from its neighbours.

Every token carries three kinds of signs through the layers. A *chain* is one index of these signs,
from 0 to `chains` - 1:

- *hint*: a random table of (layer, token); the layer's MLP looks it up.
- *vote*: the influence of the context. For each chain, attention sums the *state* of one chain,
  drawn at random, over all tokens so far: the *poll*. A token weighs 2 if its key equals the query
  of the present token, else 1; key and query are each one state of their token. The vote is the
  poll's sign.
- *state*: the product of the chain's state and hint and of another chain's vote, as they come into
  the layer: one sign that depends on every token so far, through every layer so far. Queries, keys
  and values are made of states alone.

The signs after the last layer spell the next token: each of the six bits of its index in `ALPHABET`
is the sign of a weighted sum of them. These sums are odd, so none is zero. Polls can be zero, and
then count as positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

ALPHABET = b" .abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
"""The tokens that a model can generate: 64 printable ones, addressed by six signs."""
ADDRESS_BITS = 6
SPELLING = np.where(np.arange(64)[:, None] >> np.arange(ADDRESS_BITS) & 1, 1, -1)
"""Shape [64, 6]: the six signs that spell each token of the alphabet."""


@dataclass(frozen=True)
class LayerWiring:
    """Wiring of one layer: for each chain and each attention head, the indices of the chains that
    are its inputs.
    """

    value: Ints
    """[chains]: chain whose state this chain polls."""
    key: Ints
    """[heads]: chain whose state is the head's key."""
    query: Ints
    """[heads]: chain whose state is the head's query."""
    partner: Ints
    """[chains]: chain whose vote enters this chain's state."""


class Circuit:
    """A random circuit, the machine that one demo model computes; equal arguments make equal
    circuits. Raises ValueError if there are fewer than two `heads`, or `chains` is no multiple of
    `heads`.

    `hints` has shape [layers + 1, vocabulary, chains]: row 0 comes with the embedding, row
    l + 1 is written by layer l. Heads share the chains evenly, in order.
    """

    def __init__(self, layers: int, heads: int, chains: int, vocabulary: int, seed: int) -> None:
        if heads < 2 or chains % heads or 3 * chains < ADDRESS_BITS:
            raise ValueError(
                f"{chains} chains over {heads} heads: use a multiple of the heads, and two heads"
            )
        self.layers, self.heads, self.chains = layers, heads, chains
        self.vocabulary = vocabulary
        rng = np.random.default_rng(seed)
        self.first_state = _signs(rng, vocabulary, chains)
        self.first_vote = _signs(rng, vocabulary, chains)
        self.hints = _signs(rng, layers + 1, vocabulary, chains)
        self.wiring = [self._draw_wiring(rng) for _ in range(layers)]
        self.spelling = _draw_spelling(rng, chains)

    def _draw_wiring(self, rng: np.random.Generator) -> LayerWiring:
        value = rng.permutation(self.chains)
        per_head = self.chains // self.heads
        return LayerWiring(
            value=value,
            # A head never polls its own key: weight and value would agree, not cancel.
            key=np.roll(value, -per_head)[::per_head],
            query=rng.permutation(self.chains)[: self.heads],
            partner=rng.permutation(self.chains),
        )

    def start(self) -> Reader:
        """A reader of one sequence that has read no token yet."""
        return Reader(self)

    def generate(self, prompt: Sequence[int], length: int) -> list[int]:
        """The `length` tokens that the model generates after `prompt`, which has at least one
        token.
        """
        reader = self.start()
        for token in prompt:
            following = reader.read(token)
        text: list[int] = []
        for _ in range(length):
            text.append(following)
            following = reader.read(following)
        return text


class Reader:
    """State of one sequence in a circuit: the polls so far, per layer."""

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = circuit
        shape = circuit.layers, 2, circuit.chains
        self._sums = np.zeros(shape, dtype=np.int64)
        """Sums of the polled values, separately for the two signs of the key."""
        self._counts = np.zeros(shape, dtype=np.int64)
        self.polls = np.zeros((circuit.layers, circuit.chains), dtype=np.int64)
        """[layers, chains]: the last token's polls, each a weighted sum of signs."""
        self.weights = np.zeros((circuit.layers, circuit.chains), dtype=np.int64)
        """[layers, chains]: the sums of the weights of those polls."""

    def read(self, token: int) -> int:
        """Read the next token of the sequence; return the token that the model generates after all
        tokens read so far."""
        circuit = self.circuit
        state, vote = circuit.first_state[token], circuit.first_vote[token]
        for layer, wires in enumerate(circuit.wiring):
            hint = circuit.hints[layer, token]
            heard = self._poll(layer, state)
            state = state * vote[wires.partner] * hint
            vote = heard
        return self._spell(state, vote, circuit.hints[-1, token])

    def _poll(self, layer: int, state: Ints) -> Ints:
        wires, chains = self.circuit.wiring[layer], np.arange(self.circuit.chains)
        head = chains * self.circuit.heads // self.circuit.chains
        key = (state[wires.key] > 0).astype(int)[head]
        query = (state[wires.query] > 0).astype(int)[head]
        sums, counts = self._sums[layer], self._counts[layer]
        sums[key, chains] += state[wires.value]
        counts[key, chains] += 1
        self.polls[layer] = sums.sum(0) + sums[query, chains]
        self.weights[layer] = counts.sum(0) + counts[query, chains]
        return np.where(self.polls[layer] >= 0, 1, -1)

    def _spell(self, state: Ints, vote: Ints, hint: Ints) -> int:
        sums = self.circuit.spelling @ np.concatenate([state, vote, hint])
        return ALPHABET[int(np.argmax(SPELLING @ sums))]


def _signs(rng: np.random.Generator, *shape: int) -> Ints:
    return 2 * rng.integers(0, 2, shape) - 1


def _draw_spelling(rng: np.random.Generator, chains: int) -> Ints:
    """Shape [6, 3 * chains]: for each bit, weights of the final signs, disjoint and with an odd
    sum.
    """
    spelling = np.zeros((ADDRESS_BITS, 3 * chains), dtype=np.int64)
    for index, source in enumerate(rng.permutation(3 * chains)):
        spelling[index % ADDRESS_BITS, source] = 1
    for row in spelling:
        if row.sum() % 2 == 0:
            row[np.flatnonzero(row)[0]] = 2
    return spelling
