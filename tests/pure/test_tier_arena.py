"""Arena of blocks on one medium: the block that is evicted for a new one, and blocks that the
medium keeps.
"""

from __future__ import annotations

from itertools import count

import pytest

from mirage.tiers.arena import Arena
from mirage.tiers.blocks import Block, BlockState, Name, Seeker
from mirage.tiers.contract import Key
from mirage.tiers.holes import ByteRange, Holes
from mirage.tiers.policies import LRU
from mirage.tiers.space import PAGE, span_of

pytestmark = pytest.mark.pure

BLOCKS = 8
BUDGET = BLOCKS * PAGE


class Medium:
    """Stand-in for a medium. The test says which blocks it keeps (`stays`), and which it has
    rescued (`rescued`).
    """

    granule = 1
    most_looks: int | None = None
    waiting = 0

    def __init__(self) -> None:
        self.offsets = Holes(span_of(BUDGET))
        self.stays, self.rescued = set[Block](), set[Block]()
        self.punched: list[ByteRange] = []

    def largest(self, budget: int) -> int:
        return budget // 2

    def may_go(self, block: Block) -> bool:
        return block.idle and block not in self.stays

    def rescue(self, block: Block) -> bool:
        return block in self.rescued

    def punch(self, memory: ByteRange) -> None:
        self.punched.append(memory)


class Scene:
    def __init__(self) -> None:
        self.medium = Medium()
        self.arena = Arena(BUDGET, LRU, self.medium)
        self.names = (Name(b"", Key(b"%d" % number)) for number in count())

    def place(self, pages: int = 1, tenant: str = "a") -> Block | None:
        block = self.arena.place(next(self.names), tenant, pages * PAGE, BlockState.WRITTEN)
        if block is not None:
            self.arena.ready(block)
        return block

    def fill(self) -> list[Block]:
        blocks = [self.place() for _ in range(BLOCKS)]
        return [block for block in blocks if block is not None]

    def holds(self, block: Block) -> bool:
        return self.arena.get(block.name) is block


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_who_would_go_is_said_and_nobody_goes(scene: Scene) -> None:
    blocks = scene.fill()
    assert scene.arena.space.who_goes("a", PAGE) == [blocks[0]]
    assert scene.arena.space.take(PAGE) is None
    assert all(map(scene.holds, blocks))


def test_one_goes_for_another_one_and_is_counted(scene: Scene) -> None:
    blocks = scene.fill()
    assert scene.place() is not None
    assert [scene.holds(block) for block in blocks] == [False] + [True] * (BLOCKS - 1)
    assert scene.arena.count("a").evictions == 1
    assert scene.arena.ledger.account("a").held == BUDGET


def test_nobody_goes_for_what_there_could_be_no_room_for(scene: Scene) -> None:
    blocks = scene.fill()
    assert scene.place(pages=BLOCKS // 2 + 1) is None
    assert all(map(scene.holds, blocks))


def test_what_the_medium_keeps_stays_and_the_next_one_goes(scene: Scene) -> None:
    blocks = scene.fill()
    scene.medium.stays = {blocks[0], blocks[1]}
    assert scene.place() is not None
    assert [scene.holds(block) for block in blocks[:3]] == [True, True, False]
    scene.medium.stays = set(blocks)
    newer = scene.place()
    assert newer is not None, "the one that was placed last"
    scene.medium.stays.add(newer)
    assert scene.place() is None


def test_what_is_rescued_stays_in_memory_that_is_wanted_back_until_it_settles(scene: Scene) -> None:
    blocks = scene.fill()
    scene.medium.rescued, needed = {blocks[0]}, Seeker(1, "r")
    scene.arena.pin(blocks[1], needed)
    scene.arena.resize(0)
    assert [scene.holds(block) for block in blocks] == [True, True] + [False] * (BLOCKS - 2)
    assert scene.arena.space.owed == 2 * PAGE
    scene.medium.rescued = set()
    scene.arena.settle(blocks[0])
    scene.arena.unpin(blocks[1], needed)
    assert len(scene.arena) == scene.arena.space.owed == 0
    assert sum(memory.nbytes for memory in scene.medium.punched) == BUDGET
    assert scene.medium.offsets.sizes == [span_of(BUDGET)]
