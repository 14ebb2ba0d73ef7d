"""Blocks in peers' memory: memory is asked for first, given back last, and may be lost at once."""

from __future__ import annotations

import random

import pytest

from mirage.tiers.blocks import LendOrder, PeerCopy, Punch, ReturnOrder, Tell
from mirage.tiers.contract import Key, Lookup, Member
from mirage.tiers.core import Core
from mirage.tiers.peer_backing import PeerPlan

pytestmark = pytest.mark.pure

BLOCK = 4096
GRANULE = 4 * BLOCK
PEER = 8 * GRANULE


class World:
    """A pool with one member, and a peer that lends memory. `made` has the lent memory that exists:
    bytes by first offset.
    """

    def __init__(self, *, backed: bool = True, block: int = BLOCK) -> None:
        plan = PeerPlan({"gpu1": PEER}, backed=backed, granule=GRANULE)
        self.core = Core(64 * BLOCK, peers=plan)
        self.me = self.core.join(Member("a", b"w", block))
        self.made: dict[int, int] = {}
        self.returning: list[int] = []
        self.moves: list[PeerCopy] = []
        self.found: dict[Key, tuple[Lookup, int]] = {}
        self.reserved: set[Key] = set()
        self.lost = False

    def act(self) -> None:
        while actions := self.core.actions():
            for action in actions:
                self._do(action)

    def _do(self, action: object) -> None:
        match action:
            case LendOrder(device, memory):
                assert device == "gpu1" and not self.lost
                assert memory.nbytes % GRANULE == 0
                assert all(
                    memory.offset >= start + nbytes or start >= memory.offset + memory.nbytes
                    for start, nbytes in self.made.items()
                )
                self.made[memory.offset] = memory.nbytes
                assert sum(self.made.values()) <= PEER, "never beyond the budget"
            case ReturnOrder(_, memory):
                assert self.made[memory.offset] == memory.nbytes
                if self.lost:
                    self.take_back(memory.offset)
                else:
                    self.returning.append(memory.offset)
            case PeerCopy():
                self.moves.append(action)
            case Tell(_, key, found, offset):
                self.found[key] = found, offset
            case Punch(memory):
                assert memory.offset < self.core.span, "holes are of host memory alone"

    def take_back(self, offset: int) -> None:
        del self.made[offset]
        self.returning = [other for other in self.returning if other != offset]
        self.core.returned(offset)

    def reserve(self, *numbers: int) -> dict[Key, int]:
        given = self.core.reserve(self.me, [Key(b"%d" % number) for number in numbers])
        self.act()
        for offset in given.values():
            self.check_there(offset)
        return given

    def check_there(self, offset: int) -> None:
        """Check that an offset on a peer lies in lent memory that exists and is not about to go
        back.
        """
        if offset >= self.core.span:
            (start,) = [s for s, n in self.made.items() if s <= offset < s + n]
            assert start not in self.returning

    def store(self, *numbers: int) -> list[bool]:
        """Store these blocks; return for each one True if it lies on a peer."""
        given = self.reserve(*numbers)
        self.core.commit(self.me, given)
        self.act()
        return [offset >= self.core.span for offset in given.values()]

    def seek(self, number: int, request: str) -> Lookup:
        key = Key(b"%d" % number)
        self.core.seek(self.me, request, [key])
        self.act()
        found, offset = self.found[key]
        if found is Lookup.READY:
            self.check_there(offset)
        return found

    def end_moves(self, *, whole: bool = True) -> None:
        moves, self.moves = self.moves, []
        for move in moves:
            self.core.moved(move.name, whole=whole)
        self.act()

    def held(self) -> int:
        peers = self.core.state().peers
        assert peers is not None
        return peers.devices["gpu1"].held_bytes

    def check(self) -> None:
        assert self.held() == sum(self.made.values()), "lent is what was made and is not gone"


def test_memory_is_asked_for_in_whole_granules_and_filled() -> None:
    world = World()
    assert world.store(*range(4)) == [True] * 4
    assert list(world.made.values()) == [GRANULE]
    world.store(4)
    assert list(world.made.values()) == [GRANULE] * 2


def test_blocks_that_are_no_part_of_a_granule_waste_less_than_one() -> None:
    world = World(block=3 * BLOCK)
    world.store(1, 2)
    assert list(world.made.values()) == [GRANULE, GRANULE]


def test_a_lease_counts_until_its_memory_is_gone() -> None:
    world = World(backed=False)
    world.store(1)
    world.core.resize_peer("gpu1", 0)
    world.act()
    (offset,) = world.returning
    assert world.held() == GRANULE and world.seek(1, "r") is Lookup.ABSENT
    assert world.core.state().peers.revocations == 0  # type: ignore[union-attr]
    world.core.resize_peer("gpu1", PEER)
    world.core.resize_peer("gpu1", 0)  # again, while it is on its way
    world.take_back(offset)
    world.act()
    assert world.held() == 0
    assert world.core.state().peers.revocations == 1  # type: ignore[union-attr]


def test_what_requests_need_is_given_back_when_they_leave() -> None:
    world = World()
    world.store(1)
    assert world.seek(1, "r") is Lookup.READY
    world.core.resize_peer("gpu1", 0)
    world.act()
    assert not world.returning
    world.core.leave(world.me, "r")
    world.act()
    assert not world.returning, "it is copied to host memory first"
    world.end_moves()
    assert len(world.returning) == 1
    assert world.seek(1, "s") is Lookup.READY


def test_of_a_lost_holder_nothing_is_found_and_nothing_is_moved() -> None:
    world = World()
    world.store(1, 2)
    world.reserve(3)
    assert world.seek(1, "r") is Lookup.READY
    world.lost = True
    world.core.lost("gpu1")
    world.act()
    assert not world.moves
    assert world.seek(2, "s") is Lookup.ABSENT
    assert world.store(4) == [False]
    world.core.leave(world.me, "r")
    world.core.abandon(world.me, [Key(b"3")])
    world.act()
    assert not world.made and world.held() == 0
    with pytest.raises(ValueError, match="'gpu1': its holder has ended, start the server again"):
        world.core.resize_peer("gpu1", PEER)


def test_without_memory_a_peer_lends_what_it_has_lent() -> None:
    world = World()
    world.store(0)
    given = world.reserve(1, 2, 3, 4)
    failed = max(world.made)
    world.core.lent_in_vain(failed)
    world.act()
    world.core.abandon(world.me, [key for key, at in given.items() if at >= failed])
    world.act()
    assert world.returning == [failed]
    world.take_back(failed)
    world.act()
    peers = world.core.state().peers
    assert peers is not None and peers.devices["gpu1"].budget_bytes == GRANULE == world.held()
    assert world.store(9) == [False]
    world.core.resize_peer("gpu1", PEER)
    assert world.store(10) == [True]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_lent_is_what_is_made(seed: int) -> None:
    rng = random.Random(seed)
    world = World(backed=rng.random() < 0.5, block=rng.choice((BLOCK, 3 * BLOCK, 2 * GRANULE)))
    reserved: list[Key] = []
    for step in range(300):
        choice = rng.randrange(10)
        if choice < 4:
            world.store(*(rng.randrange(80) for _ in range(3)))
        elif choice == 4:
            reserved += world.reserve(rng.randrange(80))
        elif choice == 5 and reserved:
            key = reserved.pop(rng.randrange(len(reserved)))
            (world.core.commit if rng.random() < 0.5 else world.core.abandon)(world.me, [key])
        elif choice == 6:
            world.seek(rng.randrange(80), f"r{rng.randrange(4)}")
        elif choice == 7:
            world.core.leave(world.me, f"r{rng.randrange(4)}")
        elif choice == 8 and not world.lost:
            world.core.resize_peer("gpu1", rng.choice((0, PEER // 2, PEER)))
        elif world.returning and not world.lost:
            world.take_back(rng.choice(world.returning))
        world.act()
        if rng.random() < 0.3:
            world.end_moves(whole=rng.random() < 0.8)
        if step == 250 and seed % 3 == 0:
            world.lost = True
            world.core.lost("gpu1")
            world.act()
            world.end_moves(whole=False)
            while world.returning:
                world.take_back(world.returning[0])
        world.check()


def test_memory_on_its_way_back_can_be_wanted_back_as_well() -> None:
    world = World(backed=False)
    world.core.abandon(world.me, world.reserve(1))  # a slab without a block
    other = world.core.join(Member("a", b"x", 2 * GRANULE))
    keys = [Key(b"%d" % number) for number in range(4)]
    world.core.commit(other, world.core.reserve(other, keys))
    world.act()
    (offset,) = world.returning
    world.core.resize_peer("gpu1", 0)
    world.act()
    assert len(world.returning) == len(world.made) > 1
    for each in list(world.returning):
        world.take_back(each)
    assert offset not in world.made and world.held() == 0
