"""Dealing of a trace's requests to tenants: each becomes one call, equal seeds deal alike, and
weights are kept.
"""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import Config, Traffic
from mirage.workload.dealing import assign, build, calls, clip, prompt
from mirage.workload.trace import TraceRequest

pytestmark = pytest.mark.pure

NAMES = ["a", "b", "c"]


def config(max_model_len=1024, names=NAMES, **traffic) -> Config:
    tenants = [
        {"name": name, "model": "m", "share": 90 / len(names), "max_model_len": max_model_len}
        for name in names
    ]
    return Config.model_validate(
        {"device": {"memory": "1GiB"}, "tenants": tenants, "replay": {"traffic": traffic}}
    )


requests = st.lists(
    st.builds(TraceRequest, st.floats(0, 500), st.integers(1, 5000), st.integers(1, 2000)),
    max_size=40,
).map(lambda found: sorted(found, key=lambda request: request.arrival_s))


@given(requests=requests, seed=st.integers(), scale=st.floats(0.01, 10))
def test_every_request_becomes_one_call_in_order(requests, seed, scale):
    calls = build(config(), requests, scale, 1.0, seed)
    assert [call.index for call in calls] == list(range(len(requests)))
    assert [call.at_s for call in calls] == [request.arrival_s * scale for request in requests]
    assert {call.tenant for call in calls} <= set(NAMES)


@given(requests=requests, seed=st.integers())
def test_same_seed_same_workload_to_the_byte(requests, seed):
    once, again = (build(config(), requests, 0.1, 0.2, seed) for _ in range(2))
    assert once == again
    for call in once:
        text = prompt(seed, call.index, call.context_tokens)
        assert text == prompt(seed, call.index, call.context_tokens)


@given(requests=requests, seed=st.integers())
def test_scales_move_no_request_to_another_tenant(requests, seed):
    plain = build(config(), requests, 1.0, 1.0, seed)
    other = build(config(), requests, 0.01, 3.0, seed)
    assert [call.tenant for call in plain] == [call.tenant for call in other]


@given(requests=requests, seed=st.integers(), count=st.integers(0, 40))
def test_a_limit_keeps_the_beginning(requests, seed, count):
    whole = build(config(), requests, 1.0, 1.0, seed)
    assert build(config(), requests[:count], 1.0, 1.0, seed) == whole[:count]


def test_this_seed_gives_this_workload():
    """Seed 1 deals twelve requests to exactly these tenants, and makes this prompt. Any other
    result would make earlier reports incomparable.
    """
    arrivals = [TraceRequest(7.0 * number, 5, 5) for number in range(12)]
    calls = build(config(), arrivals, 1.0, 1.0, seed=1)
    assert "".join(call.tenant for call in calls) == "aaaaabcccaba"
    assert prompt(1, 0, 8) == "=)2|]FBL"


@given(seed=st.integers())
def test_with_hot_share_one_a_phase_has_one_tenant_and_the_next_another(seed):
    traffic = Traffic(phase_s=10, hot_share=1.0)
    hot = list(assign([10.0 * phase + 5 for phase in range(30)], NAMES, traffic, seed))
    assert all(one != other for one, other in pairwise(hot))
    assert set(hot) == set(NAMES)
    again = list(assign([10.0 * phase + 9.9 for phase in range(30)], NAMES, traffic, seed))
    assert again == hot


def test_hot_share_and_weights():
    traffic = Traffic(phase_s=1e9, hot_share=0.7, weights={"a": 3, "b": 3, "c": 3})
    counts = Counter(assign([1.0] * 10_000, NAMES, traffic, seed=3))
    (_, most), *others = counts.most_common()
    assert 0.68 < most / 10_000 < 0.72
    assert all(0.13 < count / 10_000 < 0.17 for _, count in others)


def test_the_rest_is_shared_by_weight():
    arrivals = [number / 10 for number in range(10_000)]
    hot = assign(arrivals, NAMES, Traffic(phase_s=1.0, hot_share=1.0), seed=0)
    rest = Traffic(phase_s=1.0, hot_share=0.0, weights={"b": 3, "c": 1})
    pairs = Counter(zip(hot, assign(arrivals, NAMES, rest, seed=0), strict=True))
    assert not any(pairs[name, name] for name in NAMES), "nothing is left for the hot one"
    assert 2.6 < pairs["a", "b"] / pairs["a", "c"] < 3.4
    assert 0.8 < pairs["b", "a"] / pairs["b", "c"] < 1.2, "a weight left out is 1"


def test_weights_of_nothing_leave_all_to_the_hot_tenant():
    traffic = Traffic(hot_share=0.0, weights=dict.fromkeys(NAMES, 0.0))
    assert len(list(assign([0.0, 30.0], NAMES, traffic, seed=0))) == 2


def test_one_tenant_gets_everything():
    assert set(assign([0.0, 50.0, 99.0], ["only"], Traffic(), seed=5)) == {"only"}


@given(context=st.integers(1, 10_000), output=st.integers(1, 10_000), room=st.integers(2, 4096))
def test_clip_fits_and_never_adds(context, output, room):
    found = clip(context, output, room)
    assert sum(found) <= room
    assert 1 <= found[0] <= context and 1 <= found[1] <= output
    if context + output <= room:
        assert found == (context, output)
    else:
        assert sum(found) == room, "what was cut away was in the way"
        assert found[0] >= min(context, room // 2) and found[1] >= min(output, room // 2)


def test_sessions_of_two_tenants_with_one_name_count_their_own_turns():
    rows = [TraceRequest(float(n), 5, 5, session="s") for n in range(6)]
    made = calls(config(), zip("abaabb", rows, strict=True), 1.0, 1.0)
    assert [call.turn for call in made] == [0, 0, 1, 2, 1, 2]


def test_clipped_calls_say_so():
    calls = build(
        config(max_model_len=100), [TraceRequest(0, 60, 40), TraceRequest(1, 61, 40)], 1, 1, 0
    )
    assert [call.clipped for call in calls] == [False, True]
    assert calls[1].context_tokens + calls[1].output_tokens == 100


@given(seed=st.integers(), index=st.integers(0, 10**6), length=st.integers(1, 3000))
def test_prompts_are_printable_ascii_of_the_length(seed, index, length):
    text = prompt(seed, index, length)
    assert len(text) == len(text.encode()) == length
    assert set(text.encode()) <= set(range(32, 127))


def test_prompts_of_different_requests_differ():
    assert len({prompt(seed, index, 64) for seed in range(5) for index in range(20)}) == 100
