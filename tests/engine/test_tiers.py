"""KV blocks below the device: real vLLM above a pool of the test, with known texts.

The child processes compare every text with what the model says by itself.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from children import must, spawn

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    said = must(spawn("tier_scenes.py", tmp_path_factory.mktemp("tiers")))
    return dict(json.loads(said.splitlines()[-1]))


def test_a_prompt_that_left_the_device_is_loaded(scenes: dict[str, Any]) -> None:
    reused = scenes["reused"]
    assert reused["first"] == reused["asked"]
    assert reused["again"] == reused["asked"] - reused["overlap"]


def test_nothing_is_stored_while_all_fits(scenes: dict[str, Any]) -> None:
    assert scenes["reused"]["stored_while_all_fits"] == 0


def test_what_the_device_has_is_sought_too(scenes: dict[str, Any]) -> None:
    """Blocks that the device has are looked up in the pool too, so that the pool's copies count as
    used as often as the device's.
    """
    assert scenes["reused"]["sought_of_the_device"] >= scenes["reused"]["blocks"] > 0


def test_the_next_turn_finds_what_was_decoded(scenes: dict[str, Any]) -> None:
    # 70 + 64 + 3 tokens are four blocks and 9 tokens; the last token decoded has no KV yet.
    assert scenes["turns"]["asked"] - scenes["turns"]["again"] == 4 * 32


def test_what_is_evicted_is_loaded_again(scenes: dict[str, Any]) -> None:
    evicted = scenes["evicted"]
    assert evicted["first"] == evicted["asked"]
    # Prompts of 140, 145 and 150 tokens have four whole blocks.
    assert evicted["asked"] - evicted["again"] == 15 * 4 * 32


def test_a_preempted_request_computes_only_what_was_not_stored(scenes: dict[str, Any]) -> None:
    stored, anew = scenes["preempted"], scenes["computed_anew"]
    assert stored["preemptions"] == anew["preemptions"] > 0
    # Of each, less than the block that was not full.
    assert stored["again"] <= stored["preemptions"] * 32 < anew["again"]


@pytest.mark.parametrize("what", ["silent", "loses", "late", "unmapped", "dead"])
def test_a_pool_that_fails_costs_the_hit_alone(scenes: dict[str, Any], what: str) -> None:
    facts = scenes["misbehaving"]
    assert facts[what] == facts["asked"]


def test_the_pool_is_used_again_afterwards(scenes: dict[str, Any]) -> None:
    facts = scenes["misbehaving"]
    assert facts["after"] < facts["asked"]
    # Three requests each: lost and unmapped; silent and late.
    assert facts["failed_loads"] == 6
    assert facts["late_loads"] >= 6


def test_nobody_waits_for_long_for_what_another_one_loads(scenes: dict[str, Any]) -> None:
    assert scenes["convoy"]["order"] == ["second", "first"]


def test_a_failed_store_is_given_up(scenes: dict[str, Any]) -> None:
    facts = scenes["refused_stores"]
    assert facts["failed"] > 0
    assert facts["stored"] == facts["held"] == 0


def test_counts_agree(scenes: dict[str, Any]) -> None:
    assert scenes["tokens_saved"] == scenes["hits"] * 32
    assert 0 < scenes["saved_s"] < scenes["tokens_saved"]  # less than a second for each
    assert scenes["bytes_up"] == scenes["hits"] * scenes["block_bytes"]


def test_extents_that_are_copied_stay_until_then(scenes: dict[str, Any]) -> None:
    assert scenes["guarded"]["waited"] > 0


@pytest.mark.slow
def test_without_the_guard_a_copy_faults(tmp_path: Path) -> None:
    result = spawn("tier_guard.py", tmp_path)
    assert result.returncode == -signal.SIGSEGV, result.stderr[-2000:]


@pytest.mark.drawn("steps_in_flight")
@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_what_is_scheduled_and_not_computed_is_not_copied(
    tmp_path: Path, steps_in_flight: int
) -> None:
    said = must(spawn("tier_between.py", tmp_path, steps_in_flight))
    facts = json.loads(said.splitlines()[-1])
    assert facts["again"] < facts["first"]


@pytest.mark.slow
def test_what_a_preempted_request_was_to_compute_is_not_believed(tmp_path: Path) -> None:
    facts = json.loads(must(spawn("tier_priority.py", tmp_path)).splitlines()[-1])
    assert facts["preemptions"] > 0 and facts["patient"] and facts["urgent"]


@pytest.mark.rare
def test_what_lies_on_a_disk_comes_up_in_the_order_of_the_scheduler(tmp_path: Path) -> None:
    facts = json.loads(must(spawn("tier_prefetch.py", tmp_path)).splitlines()[-1])
    assert facts["order"] == [5, 4, 3, 2, 1, 0]  # by priority, against the order of arrival
    assert facts["risen"] == facts["blocks"] and facts["computed"] < facts["asked"]
    assert facts["most_under_way"] < facts["blocks"]
    assert facts["risen_of_the_device"] == 0


@pytest.mark.slow
def test_all_at_random_with_two_steps_in_flight(tmp_path: Path) -> None:
    facts = json.loads(must(spawn("tier_random.py", tmp_path, "llama", 1, 60)).splitlines()[-1])
    assert facts["right"] + facts["aborted"] == 60
    assert min(facts[name] for name in ("hits", "stored", "preemptions", "pool_evicted")) > 0


@pytest.mark.slow
@pytest.mark.drawn("case")
@pytest.mark.parametrize("case", [(f, s) for f in ("opt", "llama", "qwen3") for s in range(2, 5)])
def test_families_at_random(tmp_path: Path, case: tuple[str, int]) -> None:
    family, seed = case
    facts = json.loads(must(spawn("tier_random.py", tmp_path, family, seed, 200)).splitlines()[-1])
    assert facts["right"] + facts["aborted"] == 200 and facts["hits"] > 0


@pytest.mark.slow
def test_peers_are_revoked_at_random(tmp_path: Path) -> None:
    facts = json.loads(must(spawn("tier_peers.py", tmp_path, "llama", 1, 60)).splitlines()[-1])
    assert (facts["right"], facts["failed_loads"]) == (60, 0)
    assert min(facts[name] for name in ("from_peers", "rescued", "revocations")) > 0


@pytest.mark.rare
@pytest.mark.parametrize("case", [(f, s) for f in ("opt", "llama", "qwen3") for s in range(2, 4)])
def test_peers_of_families_are_revoked_at_random(tmp_path: Path, case: tuple[str, int]) -> None:
    family, seed = case
    facts = json.loads(must(spawn("tier_peers.py", tmp_path, family, seed, 300)).splitlines()[-1])
    assert (facts["right"], facts["failed_loads"]) == (300, 0)
    assert min(facts[name] for name in ("from_peers", "rescued", "revocations")) > 0


def test_full_and_sliding_attention(tmp_path: Path) -> None:
    facts = json.loads(must(spawn("tier_windows.py", tmp_path)).splitlines()[-1])
    assert facts["groups"] > 1 and facts["failed_loads"] == 0
    assert facts["same"]
    assert facts["again"] < facts["asked"] / 4
