"""Cached KV blocks of a simulated engine against a model that knows every block by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage import profiles
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.prefix import Prefix
from mirage.simulate.reuse import PrefixCache
from mirage.simulate.roofline import Roofline
from mirage.simulate.savings import Savings
from mirage.simulate.tally import Tally
from mirage.tiers.blocks import Name

pytestmark = pytest.mark.pure

BLOCK = 4
ROOFLINE = Roofline(profiles.model("opt-13b"), profiles.hardware("gh200"))
HASHES = st.lists(st.integers(0, 2), max_size=5)


def cache(tally: Tally | None = None) -> PrefixCache:
    return PrefixCache(BLOCK, Savings(tally or Tally(), ROOFLINE))


def hashed(number: int, prompt: int, hashes: list[int], hash_tokens: int = 8) -> SimulatedRequest:
    kept = tuple(hashes[: -(-prompt // hash_tokens)])
    return SimulatedRequest(
        number, 0, prompt, 4, prefix=Prefix(b"m", str(number), prompt, None, kept, 8)
    )


# -- names ------------------------------------------------------------------------------


def common(one: list[Name], other: list[Name]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@given(one=HASHES, other=HASHES, lengths=st.tuples(st.integers(1, 60), st.integers(1, 60)))
def test_names_agree_as_far_as_hashes_do(one, other, lengths) -> None:
    first, second = (hashed(n, p, h) for n, p, h in zip((0, 1), lengths, (one, other), strict=True))
    assert first.prefix and second.prefix
    alike = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 99)
    known = [min(8 * len(h[: -(-p // 8)]), p) for p, h in zip(lengths, (one, other), strict=True)]
    tokens = min(8 * alike, *known)
    assert common(first.prefix.names(15, BLOCK), second.prefix.names(15, BLOCK)) == tokens // BLOCK


@given(blocks=st.integers(0, 30), again=st.integers(0, 30))
def test_a_name_is_that_of_its_place_whenever_it_is_asked(blocks, again) -> None:
    prefix = Prefix(b"m", "own", 64, None, (7, 8, 9), 16)
    fresh = Prefix(b"m", "own", 64, None, (7, 8, 9), 16)
    prefix.names(again, BLOCK)
    assert prefix.names(blocks, BLOCK) == fresh.names(blocks, BLOCK)
    assert len(set(fresh.names(30, BLOCK))) == 30


def test_a_session_is_one_text_with_its_answers_and_others_have_their_own() -> None:
    turns = [Prefix(b"m", str(number), 16 * number, "chat") for number in (1, 2)]
    others = [
        Prefix(b"m", "1", 16),
        Prefix(b"m", "1", 16, "talk"),
        Prefix(b"other", "1", 16, "chat"),
    ]
    assert turns[0].names(9, BLOCK) == turns[1].names(9, BLOCK)
    assert all(common(turns[0].names(9, BLOCK), other.names(9, BLOCK)) == 0 for other in others)
    assert turns[0].shared and not others[0].shared


# -- what is found ----------------------------------------------------------------------


def finished(kept: PrefixCache, request: SimulatedRequest) -> None:
    found = kept.find(request)
    kept.take(request, found)
    request.computed = request.known
    kept.prefilled(request)
    kept.released(request)


def test_a_later_turn_finds_all_full_blocks_before_it_but_computes_a_token() -> None:
    tally = Tally()
    kept = cache(tally)
    finished(kept, SimulatedRequest(0, 0, 16, 4, prefix=Prefix(b"m", "0", 16, "chat")))
    same = SimulatedRequest(1, 0, 16, 4, prefix=Prefix(b"m", "1", 16, "chat"))
    later = SimulatedRequest(2, 0, 40, 4, prefix=Prefix(b"m", "2", 40, "chat"))
    assert kept.find(same).blocks == 3, "its last token is computed"
    assert kept.find(later).blocks == 4
    kept.take(later, kept.find(later))
    assert later.computed == 16 and tally.counters.found == {"device": 16}
    assert tally.counters.saved_ps > 0


def test_who_runs_at_once_shares_blocks_that_count_once() -> None:
    kept = cache()
    first, second = (hashed(number, 16, [1, 2]) for number in range(2))
    first.computed = 16
    kept.prefilled(first)
    found = kept.find(second)
    assert found == (3, 3)
    kept.take(second, found)
    assert kept.shared == 3
    kept.released(first)
    assert kept.shared == 0 and kept.cached == 1, "the last block is the first one's alone"


def test_the_first_blocks_of_the_least_recently_used_go_last_of_it() -> None:
    kept = cache()
    old, new = hashed(0, 32, [1, 1, 1, 1]), hashed(1, 32, [2, 2, 2, 2])
    finished(kept, old)
    finished(kept, new)
    kept.trim(12, 0)
    assert kept.find(hashed(2, 33, [1, 1, 1, 1])).blocks == 4, "its last four went"
    assert kept.find(hashed(3, 33, [2, 2, 2, 2])).blocks == 8


def test_a_copy_that_has_not_ended_is_waited_for_when_its_block_was_used_meanwhile() -> None:
    savings = Savings(Tally(), ROOFLINE)
    kept = PrefixCache(BLOCK, savings, Slow(), window=6)
    finished(kept, hashed(0, 8, [1]))
    assert kept.trim(2, 0) == 0, "both fit, and their copies begin"
    finished(kept, hashed(1, 9, [1]))
    assert kept.trim(0, 1) == 5


# -- against a model --------------------------------------------------------------------


class Slow:
    """Tier to which a copy of a block takes five units of time; it keeps the end of each copy."""

    def __init__(self) -> None:
        self.ends: dict[Name, int] = {}

    def store(self, names: list[Name], now: int) -> dict[Name, int]:
        self.ends |= {name: now + 5 for name in names if name not in self.ends}
        return {name: self.ends[name] for name in names if self.ends[name] > now}


class Cached(RuleBasedStateMachine):
    """Random requests that come and go in a memory of few blocks, compared with a model of every
    block.
    """

    FREE = 40

    def __init__(self) -> None:
        super().__init__()
        self.below = Slow()
        savings = Savings(Tally(), ROOFLINE)
        self.kept = PrefixCache(BLOCK, savings, self.below, window=6)
        self.running: list[SimulatedRequest] = []
        self.now = self.number = 0

    @property
    def used(self) -> int:
        """Number of blocks of running requests; a shared block counts once."""
        return sum(-(-r.known // BLOCK) for r in self.running) - self.kept.shared

    @rule(prompt=st.integers(1, 40), hashes=HASHES)
    def admit(self, prompt, hashes) -> None:
        request = hashed(self.number, prompt, hashes)
        found = self.kept.find(request)
        if -(-prompt // BLOCK) - found.shared > self.FREE - self.used:
            return
        self.number += 1
        self.kept.take(request, found)
        assert request.computed < prompt and request.named == found.blocks
        self.running.append(request)
        self.look()

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def prefill(self, which) -> None:
        request = self.running[which % len(self.running)]
        request.computed = request.known
        self.kept.prefilled(request)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def finish(self, which) -> None:
        request = self.running.pop(which % len(self.running))
        self.kept.released(request)
        assert request.named == 0
        self.look()

    @rule(time=st.integers(1, 20))
    def wait(self, time) -> None:
        self.now += time
        self.look()

    def look(self) -> None:
        free, before = self.FREE - self.used, set(self.kept._names)
        ready = self.kept.trim(free, self.now)
        gone = before - self.kept._names
        assert all(name in self.below.ends for name in gone), "copied before it goes"
        assert ready == max([self.now, *(self.below.ends[name] for name in gone)])

    @invariant()
    def what_is_cached_is_free(self) -> None:
        assert 0 <= self.kept.cached <= self.FREE - self.used
        assert self.used <= self.FREE

    @invariant()
    def what_grows_unseen_takes_no_block_that_is_not_copied(self) -> None:
        free = self.FREE - self.used
        unseen = self.kept.growth(free)
        assert 0 <= unseen <= free
        taken = self.kept._first(max(0, unseen - (free - self.kept.cached)))
        assert all(self.below.ends[name] <= self.now for name in taken)

    @invariant()
    def names_in_use_are_held_as_often_as_they_are_named(self) -> None:
        held = sum(request.named for request in self.running)
        assert held == self.kept._used.total()
        assert self.kept.shared == held - len(self.kept._used)
        assert not self.kept._names & self.kept._used.keys()


TestCached = Cached.TestCase
