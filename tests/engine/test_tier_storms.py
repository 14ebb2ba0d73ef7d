"""Families in a storm above a pool of the tests' say what plain vLLM says; `make long` has all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import storms

from tests.zoo import FAMILIES, driving, make_all
from tests.zoo.judging import other_texts

pytestmark = pytest.mark.engine

QUICK = "gemma3"  # windows and full attention: four KV groups
SLOW = ["opt", "qwen3-moe", "mixtral", "gpt-oss", "cohere2", "mistral-window"]
MOVED = ("hits", "stored", "evicted", "preemptions", "aborted", "slept")

Runs = dict[str, dict[str, dict[str, Any]]]


def blown(families: list[str], folder: Path) -> Runs:
    models = make_all([FAMILIES[name] for name in families], folder)
    return driving.in_modes(storms.MODES, families, models)


def judge(runs: Runs, family: str) -> None:
    plain = runs[storms.PLAIN][family]
    for mode in (storms.STORM, storms.TIERS):
        ours = runs[mode][family]
        assert other_texts(plain, ours) == []
        assert min(ours[what] for what in MOVED) > 0 and len(ours["alphas"]) > 2
    assert min(runs[storms.TIERS][family][what] for what in ("risen", "revocations")) > 0
    assert len({token for tokens, _ in plain["texts"] for token in tokens}) > 50


def test_texts_are_plain_vllms_while_all_moves_at_once(tmp_path: Path) -> None:
    runs = blown([QUICK], tmp_path)
    judge(runs, QUICK)
    assert other_texts(runs[storms.PLAIN][QUICK], runs[storms.SPOILED][QUICK]) != []


@pytest.mark.slow
def test_texts_of_families_that_differ_most(tmp_path: Path) -> None:
    runs = blown(SLOW, tmp_path)
    for family in SLOW:
        judge(runs, family)
        assert other_texts(runs[storms.PLAIN][family], runs[storms.SPOILED][family]) != []
