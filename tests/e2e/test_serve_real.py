"""Pretrained models behind `mirage serve`: chats and other requests answered as by plain vLLM.

All tests use one server, in float32; `make real` has longer chats and bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from real_questions import KINDS, QUESTIONS, alike
from real_serving import ask, ask_both, histories, most, plain_both, served_both
from supervised import Served

from tests.real.chats import TOPICS
from tests.real.judging import Said, faults
from tests.real.models import NAMES

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

DTYPE = "float32"
CONTEXT = 512
TOKENS, LATER = 32, 8
"""Tokens generated in the first turn, and in the second."""
CHATS = len(TOPICS)


class Expected(NamedTuple):
    """Plain vLLM's answers: to each turn of the chats, and by model and kind of question."""

    turns: list[dict[str, list[Said]]]
    answers: dict[tuple[str, str], Any]


@pytest.fixture(scope="module")
def expected() -> Expected:
    with plain_both(DTYPE, CONTEXT) as servers:
        first = ask_both(servers, TOPICS, histories([], CHATS), TOKENS)
        second = ask_both(servers, TOPICS, histories([first], CHATS), LATER)
        answers = {(m, kind): QUESTIONS[m][kind](servers[m], m) for m, kind in KINDS}
    return Expected([first, second], answers)


@pytest.fixture(scope="module")
def served(expected: Expected, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_both(tmp_path_factory.mktemp("real"), DTYPE, CONTEXT) as served:
        yield served


@pytest.mark.parametrize(("model", "kind"), KINDS)
def test_answers_are_plain_vllms(served: Served, expected: Expected, model: str, kind: str) -> None:
    answer = QUESTIONS[model][kind](served, model)
    assert alike(answer, expected.answers[model, kind]), answer


def test_chats_are_plain_vllms_while_layers_are_away(served: Served, expected: Expected) -> None:
    first, second = expected.turns
    before = histories([], CHATS)
    for name in NAMES:  # each has the memory of both
        assert faults(first[name], ask(served, name, TOPICS, before[name], TOKENS), DTYPE) == []
    said = ask_both(dict.fromkeys(NAMES, served), TOPICS, histories([first], CHATS), LATER)
    print({key: most(served, key) for key in ("layers_remapped", "kv_blocks", "tokens_loaded")})
    for name in NAMES:
        assert faults(second[name], said[name], DTYPE) == []
    assert max(most(served, "layers_remapped").values()) > 0, "no layer moved"
    # Of one of both at least: the shorter chats may all stay on the device.
    assert max(most(served, "tokens_loaded").values()) > 0, "nothing came back from host memory"
