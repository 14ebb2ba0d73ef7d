"""The host pool with real memory in one process: blocks are read as they were written."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mirage.tiers.below import Above
from mirage.tiers.blocks import Name
from mirage.tiers.contract import Key, Lookup, Medium, Member
from mirage.tiers.core import Core
from mirage.tiers.holes import ByteRange
from mirage.tiers.local import LocalPool
from mirage.tiers.policies import POLICIES
from mirage.tiers.region import Region

pytestmark = pytest.mark.vmm

BLOCK = 65536
BUDGET = 16 * BLOCK


def member(tenant: str = "a", nbytes: int = BLOCK) -> Member:
    return Member(tenant, b"weights" if nbytes == BLOCK else b"others", nbytes)


def keys(*numbers: int) -> list[Key]:
    return [Key(b"%d" % number) for number in numbers]


def content(key: Key, nbytes: int = BLOCK) -> bytes:
    return (key + b"|") * (nbytes // (len(key) + 1))


def store(pool: LocalPool, *numbers: int, nbytes: int = BLOCK) -> None:
    places = pool.reserve(keys(*numbers))
    for key, place in places.items():
        text = content(key, nbytes)
        pool.memory(Medium.HOST)[place.offset : place.offset + len(text)] = text
    pool.commit(places)


def reads(pool: LocalPool, number: int, request: str = "r", nbytes: int = BLOCK) -> bool:
    """True if a block is found; its content must be right."""
    (key,) = keys(number)
    pool.seek(request, [key])
    if pool.found(request, key) is not Lookup.READY:
        return False
    (place,) = pool.places(request, [key])
    text = content(key, nbytes)
    assert bytes(pool.memory(Medium.HOST)[place.offset : place.offset + len(text)]) == text
    return True


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    made = LocalPool(Core(BUDGET, POLICIES["lru"]), member())
    yield made
    made.close()


def used(pool: LocalPool) -> int:
    return pool._shared.acting.regions.host.used_bytes()


def test_what_one_wrote_another_reads(pool: LocalPool) -> None:
    other = LocalPool.beside(pool, member("b"))
    assert used(pool) == 0
    store(pool, 1, 2)
    assert used(pool) == 2 * BLOCK
    assert reads(other, 1)
    assert reads(other, 2)
    assert not reads(other, 3)
    other.close()
    assert reads(pool, 1)


def test_memory_follows_the_budget(pool: LocalPool) -> None:
    store(pool, *range(16))
    assert reads(pool, 3)
    assert used(pool) == BUDGET
    pool.resize(4 * BLOCK)
    assert reads(pool, 3)
    assert used(pool) <= 4 * BLOCK
    store(pool, *range(20, 40))
    assert used(pool) <= 4 * BLOCK
    pool.resize(0)
    assert used(pool) == BLOCK
    pool.leave("r")
    assert used(pool) == 0
    pool.resize(BUDGET)
    store(pool, *range(50, 66))
    assert all(reads(pool, number) for number in range(50, 66))


def test_two_sizes_share_the_budget(pool: LocalPool) -> None:
    large = LocalPool.beside(pool, member("b", 3 * BLOCK + 1))
    store(pool, *range(16))
    for number in range(100, 120):
        store(large, number, nbytes=3 * BLOCK + 1)
        assert reads(large, number, f"r{number}", 3 * BLOCK + 1)
        large.leave(f"r{number}")
        assert used(pool) <= BUDGET
    assert sum(reads(pool, number) for number in range(16)) >= 7
    large.close()


def test_places_of_what_is_not_ready_are_refused(pool: LocalPool) -> None:
    store(pool, 1)
    with pytest.raises(KeyError):
        pool.places("r", keys(1))
    pool.seek("r", keys(1, 2))
    with pytest.raises(KeyError):
        pool.places("r", keys(1, 2))
    with pytest.raises(KeyError):
        pool.memory(Medium.SSD)


def test_nobody_makes_the_region_shorter(pool: LocalPool) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(pool._shared.acting.regions.host.fd, 0)


def test_a_hole_reads_as_zeros_and_holds_no_memory() -> None:
    region = Region.create(4 * BLOCK)
    region.memory[:] = b"x" * (4 * BLOCK)
    region.punch(ByteRange(BLOCK, 2 * BLOCK))
    assert region.used_bytes() == 2 * BLOCK
    assert bytes(region.memory) == b"x" * BLOCK + bytes(2 * BLOCK) + b"x" * BLOCK
    region.close()
    region.close()


class Shelf:
    """Tier below the pool, in a dictionary. The test says when its copies end."""

    def __init__(self) -> None:
        self.held: dict[Name, bytes] = {}
        self.begun: list[tuple[Name, ByteRange, bool]] = []

    def begin(self, above: Above, memory: memoryview) -> None:
        self.above, self.memory = above, memory

    def has(self, name: Name, nbytes: int) -> bool:
        return name in self.held

    def sink(self, name: Name, place: ByteRange, tenant: str) -> bool:
        self.begun.append((name, place, True))
        return True

    def rise(self, name: Name, place: ByteRange) -> bool:
        self.begun.append((name, place, False))
        return True

    def work(self) -> None:
        for name, (start, nbytes), down in self.begun:
            if down:
                self.held[name] = bytes(self.memory[start : start + nbytes])
                self.above.sunk(name, whole=True)
            else:
                self.memory[start : start + nbytes] = self.held[name]
                self.above.risen(name, whole=True)
        self.begun = []

    def end(self) -> None:
        self.memory = memoryview(b"")


def test_what_was_evicted_comes_back_from_below() -> None:
    shelf = Shelf()
    pool = LocalPool(Core(4 * BLOCK, below=shelf), member())
    for number in range(20):
        store(pool, number)
        shelf.work()
    lying = [int(name.key) for name in shelf.held]
    assert len(lying) >= 8
    risen = 0
    for number in lying:
        if not reads(pool, number, f"r{number}"):
            assert pool.found(f"r{number}", *keys(number)) is Lookup.RISING
            risen += 1
            shelf.work()
            assert reads(pool, number, f"r{number}")
            (place,) = pool.places(f"r{number}", keys(number))
            assert (place.medium, place.source) == (Medium.HOST, Medium.SSD)
            pool.seek("again", keys(number))
            assert pool.places("again", keys(number))[0].source is Medium.HOST, "it is there now"
            pool.leave("again")
        pool.leave(f"r{number}")
    assert risen >= 6
    pool.close()
