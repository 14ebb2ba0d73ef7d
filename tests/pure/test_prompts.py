"""Prompts of a replay: they share as many tokens as the trace's hashes and sessions say, by a real
tokenizer.
"""

from __future__ import annotations

import string
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import Config, Traffic
from mirage.tools.demo.tokenizer import make_tokenizer
from mirage.workload.dealing import SESSIONS_KEPT, TenantRequest, build, deal, prompt
from mirage.workload.prompts import prompt_of
from mirage.workload.trace import TraceRequest

pytestmark = pytest.mark.pure

TOKENIZER = make_tokenizer()


def tokens(call: TenantRequest, seed: int = 0) -> list[int]:
    return list(TOKENIZER.encode(prompt_of(call, seed)).ids)


def calls(*requests: TraceRequest, room: int = 100_000, scale: float = 1.0) -> list[TenantRequest]:
    tenants = [{"name": name, "model": "m", "share": 40, "max_model_len": room} for name in "ab"]
    config = Config.model_validate({"device": {"memory": "1GiB"}, "tenants": tenants})
    return build(config, requests, 1.0, scale, 0)


def shared(one: list[int], other: list[int]) -> int:
    """Number of tokens that two prompts have in common at their beginnings."""
    for count, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return count
    return min(len(one), len(other))


def test_a_prompt_without_hash_and_session_is_what_it_always_was():
    call = TenantRequest(7, 0.0, "a", 33, 5, False)
    assert prompt_of(call, 3) == prompt(3, 7, 33)


LENGTHS = st.integers(1, 3000)
SCALES = st.sampled_from([1.0, 0.5, 0.15, 0.37, 2.3])


@given(
    length=LENGTHS, hashes=st.lists(st.integers(0, 9), max_size=6), scale=SCALES, seed=st.integers()
)
def test_a_prompt_is_as_long_as_it_says(length, hashes, scale, seed):
    (call,) = calls(TraceRequest(0, length, 4, "s", tuple(hashes), 512), scale=scale)
    text = prompt_of(call, seed)
    assert len(text) == call.context_tokens == max(1, round(length * scale))
    assert set(text) <= set(string.printable) and text.isprintable()
    assert tokens(call, seed) == list(text.encode())


@given(
    common=st.integers(0, 5), scale=SCALES, lengths=st.tuples(LENGTHS, LENGTHS), seed=st.integers()
)
def test_as_many_hashes_in_common_as_many_tokens(common, scale, lengths, seed):
    """Two requests have hashes in Mooncake's form, one for each 512 tokens and the last one for the
    rest. Their prompts share as many tokens as hashes, scaled, and at most four more by chance.
    """
    begin = tuple(range(100, 100 + common))
    owners = zip((200, 300), lengths, strict=True)
    hashes = [(*begin, *range(own, own + 8))[: -(-n // 512)] for own, n in owners]
    one, other = calls(
        *(TraceRequest(0, n, 4, None, h, 512) for n, h in zip(lengths, hashes, strict=True)),
        scale=scale,
    )
    found = shared(tokens(one, seed), tokens(other, seed))
    promised = min(round(common * 512 * scale), one.context_tokens, other.context_tokens)
    assert promised <= found <= promised + 4, "and little more than that by chance"


def test_the_last_hash_of_a_prompt_may_stand_for_a_part():
    one, other = calls(
        TraceRequest(0, 700, 4, None, (1, 2), 512), TraceRequest(1, 900, 4, None, (1, 2), 512)
    )
    assert shared(tokens(one), tokens(other)) == 700


@given(
    lengths=st.lists(LENGTHS, min_size=2, max_size=5), scale=SCALES, seed=st.integers(),
    prefix=st.sampled_from([(), (3,)]), room=st.sampled_from([40, 700, 100_000]),
)  # fmt: skip
def test_a_turn_begins_with_the_turns_before_it(lengths, scale, seed, prefix, room):
    requests = [
        TraceRequest(0, n, 4, "talk", prefix, 100 if prefix else 0) for n in sorted(lengths)
    ]
    turns = [tokens(call, seed) for call in calls(*requests, scale=scale, room=room)]
    for before, after in pairwise(turns):
        assert after[: len(before)] == before


def test_what_shares_nothing_differs():
    base = TenantRequest(0, 0.0, "a", 400, 4, False)
    others = [
        base,
        replace(base, index=1),
        replace(base, session="x"),
        replace(base, session="y"),
        replace(base, prefix_hashes=(1,), hash_tokens=400),
        replace(base, prefix_hashes=(2,), hash_tokens=400),
    ]
    found = [tokens(call) for call in others] + [tokens(others[-1], seed=1)]
    assert all(shared(a, b) < 5 for i, a in enumerate(found) for b in found[:i])


def test_the_turns_of_a_session_go_to_one_tenant():
    requests = [TraceRequest(float(n), 5, 5, str(n % 7) if n % 3 else None) for n in range(600)]
    dealt = list(deal(requests, list("abc"), Traffic(phase_s=3), 1))
    assert [request for _, request in dealt] == requests
    places = {(request.session, name) for name, request in dealt if request.session}
    assert len(places) == 7
    alone = list(
        deal([replace(r, session=None) for r in requests], list("abc"), Traffic(phase_s=3), 1)
    )
    for (name, request), (without, _) in zip(dealt, alone, strict=True):
        assert request.session is not None or name == without


def test_only_so_many_sessions_are_remembered(monkeypatch):
    monkeypatch.setattr("mirage.workload.dealing.SESSIONS_KEPT", 3)
    assert SESSIONS_KEPT > 3
    many = [TraceRequest(float(n), 5, 5, str(n // 2 % 40)) for n in range(4000)]
    dealt = list(deal(many, list("abc"), Traffic(phase_s=3), 1))
    assert all(one[0] == other[0] for one, other in zip(dealt[::2], dealt[1::2], strict=True))
    assert len({name for name, request in dealt if request.session == "5"}) > 1
