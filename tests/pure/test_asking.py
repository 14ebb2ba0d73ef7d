"""Optional fields of a replayed request, left out for a server that refuses them; outputs compared
by their trails.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.tools.replay.asking import FULL, Manner, consequence
from mirage.tools.replay.trail import NOTHING, parting, trail

pytestmark = pytest.mark.pure

EXTRAS = {"ignore_eos", "return_token_ids", "stream_options"}


def test_everything_is_asked_of_a_server_that_takes_it():
    body = FULL.body("a", "text", 7)
    assert body.keys() >= EXTRAS
    assert (body["model"], body["prompt"], body["max_tokens"]) == ("a", "text", 7)
    assert FULL.without() == []


@pytest.mark.parametrize(
    ("refusal", "without"),
    [
        ("Unrecognized request argument supplied: ignore_eos", ["ignore_eos"]),
        ("extra fields: return_token_ids, ignore_eos", ["ignore_eos", "return_token_ids"]),
        ("body.stream_options: not permitted", ["stream_options"]),
        ("Bad Request", ["ignore_eos", "return_token_ids"]),
    ],
)
def test_what_a_refusal_names_is_left_out(refusal, without):
    simpler = FULL.simpler(refusal)
    assert simpler is not None and simpler.without() == without
    assert simpler.body("a", "b", 1).keys().isdisjoint(without)


@pytest.mark.parametrize("refusal", ["no", "ignore_eos", "stream_options", "max_tokens is missing"])
def test_there_is_an_end_to_trying(refusal):
    manner, tried = FULL, 0
    while (next_one := manner.simpler(refusal)) is not None:
        assert set(next_one.fields) < set(manner.fields)
        manner, tried = next_one, tried + 1
    assert manner == Manner(()) and tried <= len(EXTRAS)
    assert manner.body("a", "b", 1).keys() == {
        "model",
        "prompt",
        "max_tokens",
        "temperature",
        "stream",
    }


def test_what_it_means_is_said():
    line = consequence(["ignore_eos", "stream_options"])
    assert line.startswith("the server refuses ignore_eos, stream_options: outputs may end before")
    assert "chunks are counted" in line and "texts are compared" not in line


ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=30)


@given(ids, ids)
def test_outputs_part_where_their_tokens_do(one, other):
    found = parting(trail("x", one), trail("y", other))
    same = [a == b for a, b in zip(one, other, strict=False)]
    expected = same.index(False) if False in same else len(same)
    assert found == (None if one == other else expected)


def test_without_tokens_characters_count():
    assert parting(trail("text 4"), trail("text X")) == 5
    assert parting(trail("text"), trail("text")) is None
    assert parting(trail("äöü"), trail("äöü!")) == 3
    assert parting(NOTHING, trail("a")) == 0
    assert trail("A").digest != trail("", [65]).digest, "a text is no list of tokens"


def test_a_trail_is_two_bytes_a_token():
    assert len(trail("", range(1000)).checks) == 2000
