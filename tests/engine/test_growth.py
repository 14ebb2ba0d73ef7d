"""Growth before preemption: an engine asks for memory, waits, and preempts only after a refusal."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from children import must, spawn

pytestmark = pytest.mark.engine

SLOW = partial(pytest.param, marks=pytest.mark.slow)
RARE = partial(pytest.param, marks=pytest.mark.rare)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("growth")


def _burst(models: Path, mode: str) -> dict[str, Any]:
    out = models / f"{mode}.json"
    must(spawn("growth.py", models, out, mode))
    facts: dict[str, Any] = json.loads(out.read_text())
    assert facts["problems"] == []
    return facts


@pytest.mark.parametrize("mode", ["grant", SLOW("late"), SLOW("very-late")])
def test_a_granted_engine_never_preempts(models: Path, mode: str) -> None:
    facts = _burst(models, mode)
    assert facts["asked"] > 0
    assert facts["preemptions"] == 0
    assert facts["kv_blocks"] > 40


@pytest.mark.slow
def test_newcomers_leave_closed_memory_to_running_requests(models: Path) -> None:
    """Memory beyond the share is closed to new requests. Fewer requests of the burst run at a time
    than without this, and they grow without any preemption.
    """
    facts, admitted = _burst(models, "closed"), _burst(models, "grant")
    assert facts["preemptions"] == 0 and facts["kv_blocks"] > 40
    assert all(len(tokens) == 120 for tokens in facts["tokens"])
    assert 0 < facts["most_running"] < admitted["most_running"]


@pytest.mark.parametrize("mode", ["refuse", RARE("silent"), RARE("mute"), RARE("capped")])
def test_an_engine_without_an_answer_preempts_and_finishes(models: Path, mode: str) -> None:
    facts = _burst(models, mode)
    assert facts["preemptions"] > 0
    # A request that begins again computes its newest token for the first time.
    assert 0 <= facts["beyond_prompts"] - facts["recomputed"] <= facts["preemptions"]
    assert facts["recomputed"] >= 16 * facts["preemptions"]
    assert all(len(tokens) == 120 for tokens in facts["tokens"])
    assert facts["kv_blocks"] == {"capped": 39}.get(mode, 19)


@pytest.mark.parametrize("mode", [RARE("recalled"), SLOW("recalled-async")])
def test_what_is_called_back_comes_while_other_requests_run(models: Path, mode: str) -> None:
    """Memory is recalled: the newest requests are preempted until the others fit, and end later
    with the same text.
    """
    facts, granted = _burst(models, mode), _burst(models, "grant")
    assert facts["asynchronous"] == (mode == "recalled-async")
    assert facts["most_used"] >= 60 and facts["preemptions"] > 0
    assert facts["running_when_back"][0] > 0
    assert facts["tokens"] == granted["tokens"]
