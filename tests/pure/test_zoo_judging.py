"""Judgement of two runs of one model family: whether they prove that it is computed alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.zoo import FAMILIES
from tests.zoo.judging import differences, first_difference, hidden, variety

pytestmark = pytest.mark.pure

PLAIN: dict[str, Any] = {"rounds": [[[[5, 6], [-1.0]], [[7, 8], [-2.0]]]] * 3, "hits": 32}
OURS = {
    **PLAIN,
    "remapped_counts": [0, 2, 3, 6],
    "slot_counts": [1, 2],
    "bytes_streamed": 10,
    "grown": 3,
    "shrunk": 3,
    "layers": 8,
    "kv": True,
}


def other(**fields: Any) -> list[str]:
    return differences(PLAIN, OURS | fields)


def test_equal_runs_in_which_enough_moved_prove() -> None:
    assert other() == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rounds": [[[[5, 6], [-1.0]], [[7, 9], [-2.0]]]] * 3}, "round 1: 1 of 2"),
        ({"rounds": [[[[5, 6], [-1.0]], [[7, 8], [-2.5]]]] * 3}, "the first is 2"),
        ({"rounds": [[[[5, 6], [float("nan")]]]] * 3}, "mirage: NaN in its outputs"),
        ({"rounds": PLAIN["rounds"][:2]}, "2 rounds, not 3"),
        ({"hits": 0}, "0 tokens came from the prefix cache, not 32"),
        ({"remapped_counts": [0]}, "layers remapped: [0]"),
        ({"bytes_streamed": 0}, "hardly any layer moved"),
        ({"slot_counts": [1]}, "slots: [1]"),
        ({"grown": 0}, "grew 0 times"),
        ({"failed": "it fell"}, "mirage: it fell"),
    ],
)
def test_anything_else_does_not(fields: dict[str, Any], says: str) -> None:
    assert says in other(**fields)[0]


def test_nan_proves_nothing_though_it_is_on_both_sides() -> None:
    rounds = json.loads("[[[[5, 6], [NaN]], [[7, 8], [-2.0]]]]") * 3
    assert first_difference(rounds, rounds) is None, "one NaN is another"
    found = differences(PLAIN | {"rounds": rounds}, OURS | {"rounds": rounds})
    assert found == ["plain vLLM: NaN in its outputs, which equals anything here"]


def test_layers_that_stay_and_no_kv_cache_need_not_move() -> None:
    assert other(layers=0, remapped_counts=[0], slot_counts=[0], bytes_streamed=0) == []
    assert other(kv=False, grown=0, shrunk=0) == []


def test_the_control_must_differ() -> None:
    once = {"rounds": PLAIN["rounds"][:1]}
    assert hidden(PLAIN, once) == "without waits the outputs are the same"
    assert hidden(PLAIN, {"rounds": [[[[5, 5], [-1.0]], [[7, 8], [-2.0]]]]}) is None
    assert "fell" in (hidden(PLAIN, {"failed": "it fell"}) or "")


def test_rounds_of_other_lengths_differ() -> None:
    assert first_difference([[1]], [[1, 2]]) is not None


def test_variety_counts_tokens_of_texts_only() -> None:
    assert variety(PLAIN) == 4
    assert variety({"rounds": [[[0.5, 0.25]]]}) == 0


def test_every_family_has_its_own_name() -> None:
    assert len(FAMILIES) > 80
