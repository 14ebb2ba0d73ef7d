"""Blocks to fetch from below ahead of time: in the scheduler's order, and few at a time."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.tiers.contract import Key, Lookup
from mirage.tiers.prefetch import LEAST, STEPS, Prefetch, ahead, fitting, window

pytestmark = pytest.mark.pure


def keys(*numbers: int) -> list[Key]:
    return [Key(b"%d" % number) for number in numbers]


class Disk:
    """Stand-in for the pool: a block is BELOW until it was ordered, then COMING until the test lets
    it come.
    """

    def __init__(self) -> None:
        self.states: dict[tuple[str, Key], Lookup] = {}
        self.prefetch = Prefetch(lambda r, k: self.states.get((r, k), Lookup.ABSENT))
        self.asked: list[Key] = []

    def enter(self, request: str, *numbers: int, state: Lookup = Lookup.BELOW) -> None:
        self.states |= {(request, key): state for key in keys(*numbers)}
        self.prefetch.sought(request, keys(*numbers))

    def step(self, *queue: str, carried: float = inf, device: list[Key] | None = None) -> list[Key]:
        chosen = self.prefetch.next(queue, lambda key: key in (device or []), carried)
        self.asked = [key for some in chosen.values() for key in some]
        for request, some in chosen.items():
            for key in some:
                self.states[request, key] = Lookup.COMING
        return self.asked

    def come(self, state: Lookup = Lookup.READY) -> None:
        """Let all copies that are under way end, with the state `state`."""
        for pair, found in self.states.items():
            if found is Lookup.COMING:
                self.states[pair] = state


def test_who_is_reached_first_comes_first() -> None:
    disk = Disk()
    disk.enter("a", *range(6))
    disk.enter("b", *range(10, 16))
    assert disk.step("b", "a") == keys(*range(10, 16), 0, 1)
    assert disk.step("b", "a") == []
    disk.come()
    assert disk.step("a", "b") == keys(2, 3, 4, 5)


def test_the_window_follows_what_came_in_the_last_step() -> None:
    disk = Disk()
    disk.enter("a", *range(200))
    sizes = []
    for _ in range(5):
        sizes.append(len(disk.step("a")))
        disk.come()
    assert sizes == [LEAST, 2 * LEAST, 4 * LEAST, 8 * LEAST, 200 - 15 * LEAST]


def test_a_link_without_room_bounds_it() -> None:
    disk = Disk()
    disk.enter("a", *range(200))
    for _ in range(3):
        assert len(disk.step("a", carried=0.0)) == LEAST
        disk.come()


@given(st.floats(0, 1e9), st.floats(0, inf))
def test_eq_1(came: float, carried: float) -> None:
    blocks = window(came, carried)
    assert blocks >= LEAST
    assert blocks <= max(LEAST, STEPS * min(came, carried))


def test_what_the_device_has_stays_below_until_it_is_needed() -> None:
    disk = Disk()
    disk.enter("a", *range(2000))
    assert disk.step("a", device=keys(*range(1999))) == []  # so many keys are not looked at
    assert disk.step("a", device=keys(*range(1999))) == keys(1999)
    assert disk.step("a") == []
    disk.prefetch.needed("a", keys(7)[0])
    disk.prefetch.needed("a", keys(7)[0])
    assert disk.step("a") == keys(7)


def test_a_block_that_two_lack_comes_once() -> None:
    disk = Disk()
    disk.enter("a", 1, 2)
    disk.enter("b", 1, 2, 3)
    assert disk.step("a", "b") == keys(1, 2, 3)
    disk.come()
    assert disk.step("a", "b") == keys(1, 2)  # b has not heard of them yet
    disk.come()
    assert disk.step("a", "b") == [] and not disk.prefetch.waits


def test_who_was_not_answered_keeps_its_place() -> None:
    disk = Disk()
    disk.enter("a", 1, state=Lookup.UNKNOWN)
    disk.enter("b", 2)
    assert disk.step("a", "b") == []
    disk.states["a", keys(1)[0]] = Lookup.ABSENT
    assert disk.step("a", "b") == keys(2)


def test_without_room_it_is_asked_again_and_not_waited_for() -> None:
    disk = Disk()
    disk.enter("a", 1)
    assert disk.step("a") == keys(1)
    disk.come(Lookup.BELOW)
    assert disk.prefetch.next([]) == {} and disk.prefetch.refused("a", keys(1)[0])
    assert disk.step("a") == keys(1) and not disk.prefetch.refused("a", keys(1)[0])


def test_who_left_is_forgotten() -> None:
    disk = Disk()
    disk.enter("a", *range(100))
    disk.step("a")
    disk.prefetch.left("a")
    disk.states.clear()
    disk.enter("b", 200)
    assert disk.step("b") == keys(200)
    disk.come()
    disk.step("b")
    assert not disk.prefetch.waits


@given(st.data())
def test_all_that_is_sought_comes_up_once_in_order(data: st.DataObject) -> None:
    disk = Disk()
    names = ["a", "b", "c"]
    for place, name in enumerate(names):
        count = data.draw(st.integers(0, 40))
        disk.enter(name, *range(100 * place, 100 * place + count))
    risen: list[Key] = []
    sought = {key for _, key in disk.states}
    for _ in range(60):
        risen += disk.step(*names)
        assert len(disk.prefetch._coming) <= max(LEAST, STEPS * len(risen))
        for pair in [p for p, f in disk.states.items() if f is Lookup.COMING]:
            if data.draw(st.booleans()):
                disk.states[pair] = Lookup.READY
    disk.come()
    while some := disk.step(*names):
        risen += some
        disk.come()
    assert len(risen) == len(set(risen)) and set(risen) == sought
    assert risen == sorted(risen, key=int)


RATES = st.just(0.0) | st.floats(1e-300, 1e12)
"""Bytes a second: 0, or enough for the reciprocal to be finite."""


@given(st.floats(0, 1e3), RATES, st.integers(1, 1 << 30), st.floats(0, 1e3))
def test_what_fits_a_window_is_carried_in_it(
    window_s: float, bytes_s: float, block: int, latency_s: float
) -> None:
    """The number of blocks that `fitting` allows takes, all together with one latency, no longer
    than the window.
    """
    blocks = fitting(window_s, bytes_s, block, latency_s)
    assert blocks >= 0
    if blocks:
        assert latency_s + blocks * block / bytes_s <= window_s * (1 + 1e-9)


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=6),
    st.integers(-2, 20),
    st.sets(st.integers(0, 99)),
)
def test_blocks_come_in_the_order_in_which_requests_are_reached(
    lacks: list[list[int]], room: int, left_out: set[int]
) -> None:
    queue = range(len(lacks))
    asked: list[int] = []

    def lacking(request: int) -> list[int]:
        asked.append(request)
        return lacks[request]

    found = list(ahead(queue, lacking, room, lambda block: block not in left_out))
    whole = [(r, block) for r in queue for block in lacks[r] if block not in left_out]
    assert found == whole[: max(0, room)]
    if found and len(found) == room:
        assert asked[-1] == found[-1][0], "nobody is asked for whom there is no room"
    assert asked or room <= 0 or not lacks
