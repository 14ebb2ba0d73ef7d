"""Tokens that an engine counts, of outputs as vLLM's scheduler makes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirage.control.answers import Answered
from mirage.control.engine.fence import Fence
from mirage.engine.step_counts import StepCounts

pytestmark = pytest.mark.pure


def output(scheduled: dict[str, int], drafts: dict[str, list[int]] | None = None) -> Any:
    cached = SimpleNamespace(req_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens=drafts or {},
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        finished_req_ids=set(),
    )


def resumed(name: str, tokens: int, found: int) -> Any:
    """An output in which a preempted request begins again with `found` tokens."""
    step = output({name: tokens})
    step.scheduled_cached_reqs = SimpleNamespace(
        req_ids=[name], num_computed_tokens=[found], resumed_req_ids={name}
    )
    return step


def of(name: str, computed: int) -> Any:
    return SimpleNamespace(request_id=name, num_computed_tokens=computed)


def sampled(**tokens: list[int]) -> Any:
    rows = {name: row for row, name in enumerate(tokens)}
    return SimpleNamespace(req_id_to_index=rows, sampled_token_ids=list(tokens.values()))


def goes_on() -> Any:
    return SimpleNamespace(num_prompt_tokens=30, num_computed_tokens=50)


def count(counts: StepCounts, step: Any, computed: Any) -> None:
    names = step.num_scheduled_tokens
    counts.scheduled(step, {name: goes_on() for name in names}, lambda name: 0)
    counts.computed(step, computed)


def test_drafts_are_tokens_of_answers_once_they_are_accepted() -> None:
    counts = StepCounts(Fence())
    step = output({"a": 4, "b": 4, "c": 1}, {"a": [7, 8, 9], "b": [7, 8, 9]})
    count(counts, step, sampled(a=[7, 8, 1], b=[2], c=[3]))
    assert (counts.tokens, counts.prefill_tokens) == (3 + 1 + 1, 0)
    assert counts.answered(3) == Answered(5, 0)


def test_drafts_of_requests_that_are_gone_count_nothing() -> None:
    counts = StepCounts(Fence())
    count(counts, output({"a": 4, "b": 4}, {"a": [7, 8, 9], "b": [7, 8, 9]}), sampled(b=[]))
    assert counts.tokens == 2
    count(
        counts,
        output({"a": 4}, {"a": [7, 8, 9]}),
        SimpleNamespace(req_id_to_index={"a": 0}, sampled_token_ids=[]),
    )
    assert counts.tokens == 3


def test_a_preempted_request_computes_again_what_it_does_not_find() -> None:
    counts = StepCounts(Fence())
    for name, computed in (("a", 50), ("b", 20), ("c", 30)):
        counts.preempted(of(name, computed))
    assert (counts.preemptions, counts.recomputed_tokens) == (3, 0)
    count(counts, resumed("a", 19, 32), sampled(a=[1]))
    assert counts.recomputed_tokens == 50 - 32
    count(counts, resumed("b", 1, 40), sampled(b=[1]))  # it finds what others have computed
    assert counts.recomputed_tokens == 18
    aborted = output({})
    aborted.finished_req_ids = {"c"}
    count(counts, aborted, sampled())
    count(counts, resumed("c", 30, 0), sampled(c=[1]))  # another request of that name
    count(counts, resumed("a", 19, 32), sampled(a=[1]))
    assert counts.recomputed_tokens == 18


def test_the_engines_own_request_counts_nothing() -> None:
    counts = StepCounts(Fence())
    counts.paused = True
    count(counts, output({"a": 4}, {"a": [7, 8, 9]}), sampled(a=[7, 8, 9, 1]))
    assert counts.tokens == 0
