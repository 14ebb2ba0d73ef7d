"""Engines fall asleep under load and wake: texts are the same, and memory is given up meanwhile.

The child process compares every text, and the memory that is held with `geometry.asleep_bytes`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from children import must, spawn
from sleeping import REQUESTS, TIMES

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("asleep")


def _slept(models: Path, scene: str) -> dict[str, Any]:
    said = must(spawn("sleeping.py", models, scene)).splitlines()[-1]
    print(said)
    return dict(json.loads(said))


@pytest.mark.slow
def test_an_engine_sleeps_in_any_order_with_turns_and_finds_its_prefixes_again(
    models: Path,
) -> None:
    facts = _slept(models, "above_a_pool")
    turns = facts["in_turns"]
    assert turns == {"drains": True, "asleep": False, "awake": False, "answered": REQUESTS}
    assert facts["in_the_middle"] == {"asleep_in_a_step": False, "times": 2}
    found = facts["found_again"]
    # What is new, and twice less than a block of what is not.
    assert found["hits"] > 0
    assert found["computed"] <= found["new"] + 2 * found["extent_tokens"] < found["asked"]
    assert facts["aborted"] == {"waiting": 2, "answered": 2}
    assert TIMES / 2 < facts["under_load"]["slept"] < TIMES


@pytest.mark.slow
def test_a_mixture_sleeps_with_its_experts(models: Path) -> None:
    facts = _slept(models, "mixture")
    assert facts["experts"] > 0
    assert facts["in_the_middle"] == {"asleep_in_a_step": False, "times": 4}
    assert TIMES / 2 < facts["under_load"]["slept"] < TIMES


def test_an_engine_whose_layers_stay_gives_its_kv_memory(models: Path) -> None:
    facts = _slept(models, "layers_that_stay")
    assert facts["movable"] == 0
    assert facts["in_the_middle"] == {"asleep_in_a_step": False, "times": 1}


@pytest.mark.slow
def test_an_engine_with_two_steps_in_flight_sleeps_after_both(models: Path) -> None:
    facts = _slept(models, "two_in_flight")
    assert max(facts["in_flight"]) > 0
    assert TIMES / 2 < facts["under_load"]["slept"] < TIMES


@pytest.mark.slow
def test_an_engine_on_the_memory_of_a_gpu_sleeps_while_pieces_stream(models: Path) -> None:
    facts = _slept(models, "beside_gpu")
    assert facts == {"pieces": True, "in_the_middle": {"asleep_in_a_step": False, "times": 2}}
