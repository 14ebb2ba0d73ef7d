"""Families in storms above pools: answers are plain vLLM's; `make long` has all families."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.zoo import FAMILIES, driving, make_all
from tests.zoo.judging import other_texts

pytestmark = pytest.mark.engine

PLAIN, STORM, TIERS, SPOILED = "storm-plain", "storm", "storm-tiers", "storm-spoiled"
"""Names of the modes in `tier_storms.py`."""
QUICK = "gemma3"  # windows and full attention: four KV groups
SLOW = [QUICK, "opt", "qwen3-moe", "mixtral", "gpt-oss", "cohere2", "mistral-window"]
ALWAYS = ("hits", "stored", "aborted", "slept")
"""Counters that must be positive for each family in modes `STORM` and `TIERS`."""
MOSTLY = ("evicted", "preemptions", "risen", "revocations")
"""Counters whose sum over several families must be positive in mode `TIERS`."""

Runs = dict[str, dict[str, dict[str, Any]]]


def blown(families: Sequence[str], modes: Sequence[str], folder: Path) -> Runs:
    models = make_all([FAMILIES[name] for name in families], folder)
    return driving.in_modes(modes, families, models)


def judge(runs: Runs, family: str) -> None:
    plain = runs[PLAIN][family]
    for mode in runs.keys() & {STORM, TIERS}:
        ours = runs[mode][family]
        assert other_texts(plain, ours) == []
        assert min(ours[what] for what in ALWAYS) > 0 and len(ours["remapped_counts"]) > 2
    assert len({token for tokens, _ in plain["texts"] for token in tokens}) > 10


@pytest.mark.slow
def test_texts_are_plain_vllms_while_all_moves_at_once(tmp_path: Path) -> None:
    judge(blown([QUICK], (PLAIN, TIERS), tmp_path), QUICK)


@pytest.mark.rare
def test_texts_of_families_that_differ_most(tmp_path: Path) -> None:
    runs = blown(SLOW, (PLAIN, STORM, TIERS, SPOILED), tmp_path)
    for family in SLOW:
        judge(runs, family)
        assert other_texts(runs[PLAIN][family], runs[SPOILED][family]) != []
    for what in MOSTLY:
        assert sum(runs[TIERS][family][what] for family in SLOW) > 0
