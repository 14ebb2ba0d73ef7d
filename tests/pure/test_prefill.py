"""Tokens of prompts that a step computes, read from vLLM's scheduler output."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirage.engine.prefill import computed, starting
from mirage.engine.tiers.counts import TierCounts
from mirage.tiers.contract import BlockPlace, Medium

pytestmark = pytest.mark.pure


def output(scheduled: dict[str, int], **more: Any) -> Any:
    cached = SimpleNamespace(req_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    fields: dict[str, Any] = {
        "num_scheduled_tokens": scheduled,
        "total_num_scheduled_tokens": sum(scheduled.values()),
        "scheduled_spec_decode_tokens": {},
        "scheduled_new_reqs": [],
        "scheduled_cached_reqs": cached,
    }
    return SimpleNamespace(**(fields | more))


def request(prompt: int, computed: int) -> Any:
    """Stand-in for vLLM's request after its step was scheduled."""
    return SimpleNamespace(num_prompt_tokens=prompt, num_computed_tokens=computed)


def test_prompts_count_and_answers_do_not() -> None:
    requests = {"p": request(100, 64), "d": request(30, 40)}
    assert computed(output({"p": 64, "d": 1}), requests) == 64
    assert computed(output({"d": 1}), requests) == 0


def test_a_prompt_of_which_one_token_is_left_counts() -> None:
    assert computed(output({"p": 1, "d": 1}), {"p": request(65, 65), "d": request(9, 10)}) == 1


def test_drafts_are_no_prompt() -> None:
    drafted = output({"d": 4}, scheduled_spec_decode_tokens={"d": [1, 2, 3]})
    assert computed(drafted, {"d": request(30, 44)}) == 0


def test_what_a_preempted_request_computes_again_counts() -> None:
    assert computed(output({"r": 50, "d": 1}), {"r": request(30, 50), "d": request(9, 12)}) == 50


def test_who_begins_and_begins_again() -> None:
    new = SimpleNamespace(req_id="n", num_computed_tokens=32)
    cached = SimpleNamespace(
        req_ids=["d", "r"], num_computed_tokens=[40, 64], resumed_req_ids={"r"}
    )
    step = output({}, scheduled_new_reqs=[new], scheduled_cached_reqs=cached)
    assert list(starting(step)) == [("n", 32), ("r", 64)]


def test_loaded_tokens_are_told_by_where_they_lay() -> None:
    counts = TierCounts()
    host, risen = BlockPlace(Medium.HOST, 0), BlockPlace(Medium.HOST, 1, risen=True)
    counts.loaded(96, [host, risen, BlockPlace(Medium.PEER, 2)])
    counts.loaded(65, [host, host, risen])
    assert counts.tokens_saved == sum(counts.tokens_from.values()) == 161
    assert counts.tokens_from[Medium.PEER] == 32
    assert counts.tokens_from[Medium.HOST] == 32 + 43
    assert counts.hits == {Medium.HOST: 3, Medium.SSD: 2, Medium.PEER: 1}
    counts.loaded(0, [])
    assert counts.tokens_saved == 161
