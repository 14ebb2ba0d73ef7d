"""The circuit that a demo model computes in integers: its sums, their distance from a threshold,
and its texts.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.tools.demo.circuit import ALPHABET, Circuit
from mirage.tools.demo.weights import margin
from tests.examples import examples

pytestmark = pytest.mark.pure

SLOW = pytest.mark.slow

SMALL = Circuit(layers=3, heads=2, chains=4, vocabulary=8, seed=5)
USUAL = Circuit(layers=8, heads=8, chains=16, vocabulary=320, seed=5)
token_lists = st.lists(st.integers(0, SMALL.vocabulary - 1), min_size=1, max_size=30)


def naive_polls(circuit: Circuit, tokens: list[int]) -> list[list[tuple[int, int]]]:
    """Sums that the demo model's circuit must compute: for the last token, a pair (poll, sum of
    weights) per layer and chain, computed from the definitions alone.
    """
    states = [circuit.first_state[t].tolist() for t in tokens]
    votes = [circuit.first_vote[t].tolist() for t in tokens]
    answers = []
    for layer, wires in enumerate(circuit.wiring):
        heard = []
        for asking in range(len(tokens)):
            row = []
            for chain in range(circuit.chains):
                head = chain // (circuit.chains // circuit.heads)
                query = states[asking][wires.query[head]]
                weights = [1 + (query == s[wires.key[head]]) for s in states[: asking + 1]]
                values = [s[wires.value[chain]] for s in states[: asking + 1]]
                row.append((sum(w * v for w, v in zip(weights, values, strict=True)), sum(weights)))
            heard.append(row)
        answers.append(heard[-1])
        for i, token in enumerate(tokens):
            hint = circuit.hints[layer, token]
            states[i] = [
                states[i][c] * votes[i][wires.partner[c]] * hint[c] for c in range(circuit.chains)
            ]
            votes[i] = [1 if poll >= 0 else -1 for poll, _ in heard[i]]
    return answers


@examples(40)
@given(token_lists)
def test_reading_token_by_token_is_polling_the_whole_context(tokens: list[int]) -> None:
    reader = SMALL.start()
    for token in tokens:
        reader.read(token)
    for layer, chains in enumerate(naive_polls(SMALL, tokens)):
        assert reader.polls[layer].tolist() == [poll for poll, _ in chains]
        assert reader.weights[layer].tolist() == [weight for _, weight in chains]


@settings(deadline=None)
@given(token_lists)
def test_no_tally_is_nearer_to_its_threshold_than_the_margin(tokens: list[int]) -> None:
    reader, least = SMALL.start(), margin(len(tokens))
    for token in tokens:
        reader.read(token)
        distance = np.abs(reader.polls / reader.weights + least)
        assert distance.min() >= least * (1 - 1e-12)
        assert reader.weights.max() <= 2 * len(tokens)


@given(st.lists(st.sampled_from([-1, 1]), min_size=48, max_size=48))
def test_the_sums_that_spell_a_token_cannot_tie(signs: list[int]) -> None:
    assert (USUAL.spelling @ np.array(signs) % 2 == 1).all()


def test_every_last_sign_is_spelled_once() -> None:
    assert (np.count_nonzero(USUAL.spelling, axis=0) == 1).all()


def prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(32, 127) for _ in range(length)]


@pytest.mark.parametrize("length", [1, 50, 400, 900])
def test_texts_are_printable_and_do_not_go_round(length: int) -> None:
    text = USUAL.generate(prompt(length, seed=length), 120)
    assert set(text) <= set(ALPHABET)
    assert len(set(text)) >= 15
    windows = [tuple(text[i : i + 8]) for i in range(len(text) - 7)]
    assert len(set(windows)) > len(windows) / 2


@pytest.mark.parametrize(
    ("length", "least"),
    [(50, 1.0), pytest.param(300, 0.95, marks=SLOW), pytest.param(900, 0.9, marks=SLOW)],
)
def test_one_far_token_changes_the_text(length: int, least: float) -> None:
    tokens = prompt(length, seed=1)
    text = USUAL.generate(tokens, 60)
    changed = 0
    places = range(0, length, max(1, length // 20))
    for place in places:
        other = [*tokens[:place], tokens[place] ^ 1, *tokens[place + 1 :]]
        changed += USUAL.generate(other, 60) != text
    assert changed >= least * len(places)


def test_the_order_of_the_context_matters() -> None:
    tokens = prompt(200, seed=2)
    assert USUAL.generate(tokens[::-1][1:] + tokens[-1:], 40) != USUAL.generate(tokens, 40)


def test_equal_seeds_make_equal_machines_and_others_do_not() -> None:
    again = Circuit(layers=8, heads=8, chains=16, vocabulary=320, seed=5)
    other = Circuit(layers=8, heads=8, chains=16, vocabulary=320, seed=6)
    tokens = prompt(30, seed=3)
    assert again.generate(tokens, 30) == USUAL.generate(tokens, 30)
    assert other.generate(tokens, 30) != USUAL.generate(tokens, 30)


def test_heads_must_share_the_chains_evenly() -> None:
    with pytest.raises(ValueError, match="5 chains over 2 heads"):
        Circuit(layers=1, heads=2, chains=5, vocabulary=4, seed=0)
