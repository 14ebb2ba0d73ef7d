"""Synthetic traces: drawn as their file asks, alike for a seed, one at a time, with an end."""

from __future__ import annotations

import re
import tracemalloc
from collections import defaultdict
from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest
import yaml

import configs
from mirage.workload.formats.registry import of
from mirage.workload.formats.source import Source
from mirage.workload.lengths import lengths
from mirage.workload.trace import MAX_TOKENS, Reading, TraceError, TraceRequest, read, select

pytestmark = pytest.mark.pure


@pytest.fixture
def write(tmp_path):
    def written(**asked):
        path = tmp_path / "invented.yaml"
        whole = {"kind": "synthetic", "rate": 10.0, "requests": 2000} | asked
        kept = {key: value for key, value in whole.items() if value is not None}
        path.write_text(yaml.safe_dump(kept, sort_keys=False))
        return path

    return written


def gaps(requests: list[TraceRequest]) -> list[float]:
    return [after.arrival_s - before.arrival_s for before, after in pairwise(requests)]


def variation(values: list[float]) -> float:
    return pstdev(values) / fmean(values)


def test_a_file_is_known_by_its_first_line(write):
    with Source(write()) as source:
        assert of(source).name == "synthetic"


def test_a_file_with_a_comment_is_read_where_its_format_is_named(write):
    path = write(requests=3)
    path.write_text("# Mine\n\n" + path.read_text())
    with pytest.raises(TraceError, match="as no known format begins"):
        list(read(path))
    assert len(list(read(path, Reading("synthetic")))) == 3


@pytest.mark.parametrize("sessions", [None, {"turns": 3, "think_s": 5}])
def test_arrivals_begin_at_0_never_go_back_and_have_the_rate(write, sessions):
    found = list(read(write(sessions=sessions, requests=6000)))
    assert len(found) == 6000
    assert found[0].arrival_s == 0.0
    assert all(gap >= 0 for gap in gaps(found))
    late = found[1000:]
    rate = (len(late) - 1) / (late[-1].arrival_s - late[0].arrival_s)
    assert rate == pytest.approx(10.0, rel=0.15)


@pytest.mark.parametrize("cv", [0.3, 1.0, 4.0])
def test_gamma_gaps_vary_as_much_as_asked(write, cv):
    found = list(read(write(arrivals="gamma", cv=cv, requests=20_000)))
    assert variation(gaps(found)) == pytest.approx(cv, rel=0.12)
    assert fmean(gaps(found)) == pytest.approx(0.1, rel=0.1)


def test_poisson_gaps_vary_as_much_as_their_mean(write):
    assert variation(gaps(list(read(write(requests=20_000))))) == pytest.approx(1, rel=0.05)


def test_lengths_have_the_means_of_their_name(write):
    found = list(read(write(lengths="short", requests=20_000)))
    asked = lengths("short")
    assert fmean(r.context_tokens for r in found) == pytest.approx(asked.prompt_mean, rel=0.05)
    assert fmean(r.output_tokens for r in found) == pytest.approx(asked.output_mean, rel=0.05)


def test_a_mix_draws_each_kind_by_its_weight(write):
    found = list(read(write(mix={"long": 3, "short": 1}, requests=20_000)))
    mean = 0.75 * lengths("long").prompt_mean + 0.25 * lengths("short").prompt_mean
    assert fmean(r.context_tokens for r in found) == pytest.approx(mean, rel=0.05)


def test_lengths_of_ones_own_within_bounds(write):
    shape = {"prompt_mean": 500, "prompt_sigma": 1, "output_mean": 9, "output_sigma": 0.1}
    found = list(read(write(shape=shape, bounds={"prompt": [100, 600], "output": [1, 9]})))
    prompts = {request.context_tokens for request in found}
    assert min(prompts) == 100 and max(prompts) == 600 and len(prompts) > 100
    assert {request.output_tokens for request in found} <= set(range(6, 10))


def test_a_seed_of_the_command_or_of_the_file(write):
    one, again, other = (list(read(write(), Reading(seed=seed))) for seed in (1, 1, 2))
    assert one == again != other
    fixed = [list(read(write(seed=1), Reading(seed=seed))) for seed in (5, 6)]
    assert fixed[0] == fixed[1] == one


def test_other_lengths_leave_arrivals_as_they_are(write):
    plain = [request.arrival_s for request in read(write())]
    prefixed = write(lengths="alpaca", prefixes={"count": 3, "tokens": 7})
    assert [request.arrival_s for request in read(prefixed)] == plain


def test_a_duration_ends_it_and_so_does_a_number(write):
    by_time = list(read(write(requests=None, duration_s=30.0)))
    assert 200 < len(by_time) < 400 and by_time[-1].arrival_s < 30
    assert list(read(write(duration_s=30.0, requests=100))) == by_time[:100]


def test_one_without_end_needs_a_window_or_a_limit(write):
    path = write(requests=None)
    with pytest.raises(TraceError, match="has no end: write requests or duration_s"):
        select(path)
    assert len(select(path, limit=70)) == 70
    part = select(path, window=(5.0, 10.0))
    assert 20 < len(part) < 90 and max(request.arrival_s for request in part) < 5.0


def test_an_empty_window_of_one_without_end_says_so(write):
    path = write(requests=None, rate=0.001)
    with pytest.raises(TraceError, match=r"from 0\.1 to 0\.2 s: choose another window"):
        select(path, window=(0.1, 0.2))


def test_shared_prefixes_are_counted_in_prompts(write):
    plain = list(read(write(lengths="short")))
    prefixes = {"count": 5, "tokens": 64, "share": 0.5}
    found = list(read(write(prefixes=prefixes, lengths="short")))
    shared = [request for request in found if request.prefix_hashes]
    assert {request.prefix_hashes for request in shared} == {(n,) for n in range(5)}
    assert {request.hash_tokens for request in shared} == {64}
    assert len(shared) / len(found) == pytest.approx(0.5, abs=0.05)
    for request, without in zip(found, plain, strict=True):
        added = 64 if request.prefix_hashes else 0
        assert request.context_tokens == without.context_tokens + added


def test_turns_of_a_session_hold_what_was_said(write):
    asked = {"turns": 4, "think_s": 2}
    found = list(read(write(sessions=asked, prefixes={"count": 2, "tokens": 50}, requests=5000)))
    talks = defaultdict(list)
    for request in found:
        talks[request.session].append(request)
    assert None not in talks
    for turns in talks.values():
        assert len({turn.prefix_hashes for turn in turns}) == 1
        assert turns[0].context_tokens > 50
        for before, after in pairwise(turns):
            assert after.context_tokens > before.context_tokens + before.output_tokens
    begun_early = [len(talks[str(number)]) for number in range(800)]
    assert fmean(begun_early) == pytest.approx(4, rel=0.15)


def test_a_session_without_end_ends_where_no_prompt_can_grow(write):
    shape = {"prompt_mean": 2e6, "prompt_sigma": 0.1, "output_mean": 2e6, "output_sigma": 0.1}
    path = write(shape=shape, sessions={"turns": 1000, "think_s": 0}, requests=200)
    assert max(request.context_tokens for request in read(path)) <= MAX_TOKENS


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"rate": 0}, "rate: found 0, write a number above 0"),
        ({"rate": None}, "rate: it is missing"),
        ({"rates": 3}, "unknown key 'rates'"),
        ({"arrivals": "gamma"}, "cv and arrivals: gamma need each other"),
        ({"cv": 2.0}, "cv and arrivals: gamma need each other"),
        ({"lengths": "medium"}, "no lengths are named 'medium'"),
        ({"lengths": "long", "mix": {"short": 1}}, "lengths and mix: all of them give lengths"),
        ({"mix": {}}, "mix is empty"),
        ({"mix": {"long": 0}}, "mix.long"),
        ({"bounds": {"prompt": [9, 3]}}, "prompt [9, 3]: write [FEWEST, MOST]"),
        ({"requests": 2.5}, "requests"),
        ({"sessions": {"turns": 0.5, "think_s": 1}}, "sessions.turns"),
        (
            {"shape": dict.fromkeys(("prompt_mean", "output_mean"), 5.0)
             | dict.fromkeys(("prompt_sigma", "output_sigma"), 500.0)},
            "shape.prompt_sigma 500: use at most 10",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_one_line(write, asked, says):
    path = write(**asked)
    with pytest.raises(TraceError) as caught:
        list(read(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and says in message and "\n" not in message


@pytest.mark.parametrize("text", ["kind: synthetic\n  rate: [", "kind: synthetic\n\xff", "- a\n"])
def test_what_is_no_yaml_is_one_line(tmp_path, text):
    path = tmp_path / "broken.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError) as caught:
        list(read(path, Reading("synthetic")))
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_a_rate_is_the_files(write):
    with pytest.raises(TraceError, match="has arrivals of its own"):
        list(read(write(), Reading(rate=3.0)))


@pytest.mark.parametrize("sessions", [None, {"turns": 3, "think_s": 2}])
def test_millions_are_drawn_one_at_a_time(write, sessions):
    path = write(requests=10_000_000, sessions=sessions)
    requests = read(path)
    for _ in islice(requests, 2000):  # what is there once, and the sessions that go on
        pass
    tracemalloc.start()
    for _ in islice(requests, 20_000):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e5


@pytest.mark.parametrize(
    "path", sorted((configs.HERE / "traces").glob("*.yaml")), ids=lambda path: path.name
)
def test_what_is_shipped_is_read(path):
    """Each shipped file of a synthetic trace gives as many requests as its key `requests` says; the
    test reads at most 500.
    """
    said = re.search(r"^requests: (\d+)$", path.read_text(), re.MULTILINE)
    count = min(500, int(said[1])) if said else 500
    assert len(select(path, limit=500)) == count
