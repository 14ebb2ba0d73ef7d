"""Tokens that a prefix cache without limit would find, against prompts written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.workload import overlap
from mirage.workload.dealing import TenantRequest
from mirage.workload.overlap import repeated_tokens
from mirage.workload.prompts import prompt_of

pytestmark = pytest.mark.pure


def turn(index: int, tokens: int, session: str = "s", tenant: str = "a") -> TenantRequest:
    return TenantRequest(index, 0.0, tenant, tokens, 4, clipped=False, session=session)


def test_turns_repeat_whole_blocks_of_the_turn_before() -> None:
    calls = [turn(0, 100), turn(1, 250), turn(2, 251)]
    assert repeated_tokens(calls, 0, 32) == 3 * 32 + 7 * 32


def test_at_least_one_token_is_computed() -> None:
    assert repeated_tokens([turn(0, 64), turn(1, 64)], 0, 32) == 32
    assert repeated_tokens([turn(0, 65), turn(1, 65)], 0, 32) == 64


def test_others_repeat_nothing() -> None:
    assert repeated_tokens([turn(0, 100), turn(1, 100, "t")], 0, 32) == 0
    assert repeated_tokens([turn(0, 100), turn(1, 100, tenant="b")], 0, 32) == 0


def test_hashes_are_shared_by_sessions() -> None:
    calls = [replace(turn(n, 100, str(n)), prefix_hashes=(7,), hash_tokens=70.0) for n in range(3)]
    assert repeated_tokens(calls, 0, 32) == 2 * 64


def test_where_nothing_is_shared_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repeated_tokens([TenantRequest(0, 0.0, "a", 9, 4, clipped=False)], 0, 4) is None
    monkeypatch.setattr(overlap, "MOST_CALLS", 1)
    assert repeated_tokens([turn(0, 100), turn(1, 100)], 0, 32) is None


calls_of_sessions = st.lists(
    st.tuples(st.integers(1, 80), st.sampled_from("st"), st.sampled_from("ab")), max_size=12
)


@given(calls_of_sessions, st.integers(1, 9))
def test_it_is_what_comparing_all_prompts_finds(
    asked: list[tuple[int, str, str]], block: int
) -> None:
    calls = [turn(i, *each) for i, each in enumerate(asked)]
    texts = [(call.tenant, prompt_of(call, 0)) for call in calls]
    found = 0
    for number, (tenant, text) in enumerate(texts):
        shared = (
            next(
                (n for n, pair in enumerate(zip(text, t, strict=False)) if len(set(pair)) > 1),
                min(len(text), len(t)),
            )
            for who, t in texts[:number]
            if who == tenant
        )
        found += min(max(shared, default=0) // block, (len(text) - 1) // block) * block
    assert (repeated_tokens(calls, 0, block) or 0) == found
