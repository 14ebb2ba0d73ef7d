"""Chunks of weights from several sources: each comes once, and all arrive whatever fails."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.weights.gathering import MOST_CHUNKS, MOST_WRONG, ChunkRun, Gathering
from tests.examples import examples

pytestmark = pytest.mark.pure

ALL = {"f": set(range(160)), "g": {0, 1, 2}}
MOST = 5
"""Most chunks of a run in these tests."""


def gathering(*sources: str, seed: str | None = None) -> Gathering:
    return Gathering(ALL, sources, seed)


@pytest.mark.parametrize("seed", [None, "1", "2"])
def test_of_one_source_all_comes_in_runs(seed: str | None) -> None:
    one = gathering("a", seed=seed)
    one.heard("a", ALL)
    runs = []
    while run := one.take("a"):
        runs.append(run)
        assert len(runs) <= len(ALL["f"])
        for chunk in range(run.begin, run.end):
            one.got("a", run.file, chunk)
        one.left(run)
    assert (runs == sorted(runs)) is (seed is None)
    assert max(run.end - run.begin for run in runs) == MOST
    assert one.done


def test_two_receivers_of_one_source_rarely_take_the_same() -> None:
    first: set[ChunkRun] = set()
    for seed in map(str, range(10)):
        one = gathering("a", seed=seed)
        one.heard("a", ALL)
        run = one.take("a")
        assert run is not None
        first.add(run)
    assert len(first) > 5


def test_a_run_of_a_large_model_is_no_longer_than_another_waits_for() -> None:
    one = Gathering({"f": range(10_000)}, ["a"])
    one.heard("a", {"f": range(10_000)})
    assert one.take("a") == ChunkRun("f", 0, MOST_CHUNKS)


def test_a_run_is_nobody_elses_until_it_is_left() -> None:
    two = gathering("a", "b")
    for source in ("a", "b"):
        two.heard(source, {"g": [0, 1, 2]})
    assert two.take("a") == ChunkRun("g", 0, 3)
    assert two.take("b") is None
    two.got("a", "g", 0)
    two.left(ChunkRun("g", 0, 3))
    assert two.take("b") == ChunkRun("g", 1, 3)


def test_what_few_have_comes_first() -> None:
    two = gathering("whole", "part")
    two.heard("whole", ALL)
    two.heard("part", {"f": range(10)})
    assert two.take("whole") == ChunkRun("f", 10, 10 + MOST)
    assert two.take("part") == ChunkRun("f", 0, MOST)


def test_a_wrong_chunk_is_not_taken_from_its_sender_again() -> None:
    two = gathering("bad", "good")
    for source in ("bad", "good"):
        two.heard(source, {"g": [0]})
    run = two.take("bad")
    assert run is not None
    two.wrong("bad", "g", 0)
    two.left(run)
    assert two.take("bad") is None
    assert two.take("good") == run
    assert "bad sent 1 wrong chunks" in two.told


def test_who_sends_many_wrong_chunks_is_asked_no_more() -> None:
    one = gathering("bad")
    for chunk in range(MOST_WRONG):
        assert one.open == ["bad"]
        one.wrong("bad", "f", chunk)
    one.heard("bad", ALL)
    assert one.open == [] and one.take("bad") is None


def test_who_fails_is_asked_later_and_later_until_something_comes() -> None:
    one = gathering("a")
    one.failed("a", "no answer")
    pauses = [one.pause_s("a") for _ in range(8)]
    assert pauses == sorted(pauses) and pauses[0] < 0.5 < pauses[-1] == pauses[-2] < 10
    one.heard("a", ALL)
    one.got("a", "f", 0)
    assert one.pause_s("a") == pauses[0]
    assert one.told == "a has not all of it"
    one.failed("a", "takes no secret", closed=True)
    assert (one.open, one.told) == ([], "a takes no secret")


def test_chunks_that_were_wrong_on_the_disk_come_again() -> None:
    one = Gathering({}, ["a"])
    assert one.done
    one.again("f", {2})
    one.heard("a", ALL)
    assert not one.done and one.take("a") == ChunkRun("f", 2, 3)


@examples(100)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 60))
def test_receivers_beside_each_other_all_get_all(seed: int, receivers: int, chunks: int) -> None:
    """Several receivers fetch the same file from an origin and from each other. Each source serves
    one of them at a time, and some transfers fail half-way. All get all chunks, none twice.
    """
    chance = random.Random(seed)
    names = [f"r{n}" for n in range(receivers)]
    have: dict[str, set[int]] = {"origin": set(range(chunks)), **{name: set() for name in names}}
    each = {
        name: Gathering({"f": range(chunks)}, [o for o in have if o != name], name)
        for name in names
    }
    sent = dict.fromkeys(have, 0)
    for _ in range(40 * chunks):
        if all(one.done for one in each.values()):
            break
        taken: set[str] = set()
        for name in chance.sample(names, receivers):
            one = each[name]
            for source in have:
                if source == name or (chance.random() < 0.1 and one.failed(source, "away") is None):
                    continue
                one.heard(source, {"f": have[source]})
                if source in taken or (run := one.take(source)) is None:
                    continue
                taken.add(source)
                for chunk in range(run.begin, run.end):
                    if chance.random() < 0.05:
                        break
                    assert chunk not in have[name], "it came twice"
                    have[name].add(chunk)
                    one.got(source, "f", chunk)
                    sent[source] += 1
                one.left(run)
    assert all(one.done for one in each.values())
    assert sum(sent.values()) == chunks * receivers
