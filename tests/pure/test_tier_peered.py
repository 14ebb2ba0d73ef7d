"""KV blocks go to peers first, and are copied to host memory when they leave; a peer's memory is
revoked only when its blocks are copied or given up.
"""

from __future__ import annotations

import pytest

from mirage.tiers.blocks import PeerCopy, Tell
from mirage.tiers.contract import Key, Lookup, Member
from mirage.tiers.core import Core
from mirage.tiers.peer_backing import PeerPlan

pytestmark = pytest.mark.pure

PAGE = 4096


class Pool:
    """A pool with one member and peers; the test says when copies end."""

    def __init__(self, *, backed: bool = True, peer: int = 4, host: int = 8) -> None:
        self.core = Core(host * PAGE, peers=PeerPlan({"gpu1": peer * PAGE}, backed=backed))
        self.me = self.core.join(Member("a", b"w", PAGE))
        self.moves: list[PeerCopy] = []
        self.told: dict[Key, tuple[Lookup, bool]] = {}

    def act(self) -> None:
        for act in self.core.actions():
            if isinstance(act, PeerCopy):
                self.moves.append(act)
            elif isinstance(act, Tell):
                self.told[act.key] = act.found, act.offset >= self.core.span

    def store(self, *numbers: int) -> list[bool]:
        """Store these blocks; return for each one True if it lies on a peer."""
        given = self.core.reserve(self.me, [Key(b"%d" % n) for n in numbers])
        self.core.commit(self.me, given)
        self.act()
        return [offset >= self.core.span for offset in given.values()]

    def seek(self, number: int, request: str = "r") -> tuple[Lookup, bool]:
        key = Key(b"%d" % number)
        self.core.seek(self.me, request, [key])
        self.act()
        return self.told.pop(key)

    def end_moves(self, *, whole: bool = True) -> int:
        moves, self.moves = self.moves, []
        for move in moves:
            self.core.moved(move.name, whole=whole)
        self.act()
        return len(moves)

    def revoke(self, budget: int = 0) -> None:
        self.core.resize_peer("gpu1", budget * PAGE)
        self.act()

    @property
    def lent(self) -> int:
        """Number of pages that the peer "gpu1" has lent."""
        peers = self.core.state().peers
        assert peers is not None
        return peers.devices["gpu1"].held_bytes // PAGE


def test_blocks_go_to_the_peer_first_and_to_host_memory_when_it_is_full() -> None:
    pool = Pool()
    assert pool.store(1, 2, 3, 4, 5) == [True] * 4 + [False]
    assert pool.seek(1) == (Lookup.READY, True)
    assert pool.seek(5) == (Lookup.READY, False)
    assert pool.seek(6) == (Lookup.ABSENT, False)


def test_what_would_go_next_is_copied_down_and_makes_room() -> None:
    pool = Pool()
    pool.store(1, 2, 3, 4)
    assert pool.end_moves() == 1
    assert pool.store(5) == [True]
    assert pool.seek(1) == (Lookup.READY, False)
    assert pool.seek(5) == (Lookup.READY, True)
    peers = pool.core.state().peers
    assert peers is not None
    assert peers.held.tenants["a"].counts.evictions == 1


def test_backed_blocks_are_in_host_memory_before_the_peer_has_its_memory_back() -> None:
    pool = Pool()
    pool.store(1, 2)
    pool.end_moves()
    pool.revoke()
    assert (pool.lent, len(pool.moves)) == (2, 2)
    assert pool.seek(1) == (Lookup.COMING, False)
    pool.end_moves()
    assert pool.lent == 0
    assert pool.told[Key(b"1")] == (Lookup.READY, False)
    assert pool.seek(2) == (Lookup.READY, False)
    assert pool.store(3) == [False]
    pool.revoke(4)
    assert pool.store(4) == [True]


def test_lossy_blocks_are_gone_at_once() -> None:
    pool = Pool(backed=False)
    pool.store(1)
    pool.revoke()
    assert (pool.lent, pool.moves) == (0, [])
    assert pool.seek(1) == (Lookup.ABSENT, False)


@pytest.mark.parametrize("backed", [True, False])
def test_a_pinned_block_stays_until_its_request_leaves(backed: bool) -> None:
    pool = Pool(backed=backed)
    pool.store(1)
    assert pool.seek(1) == (Lookup.READY, True)
    pool.revoke()
    assert pool.lent == 1
    assert pool.seek(1) == (Lookup.READY, True)  # who had it may still read it
    assert pool.seek(1, "late")[0] is Lookup.ABSENT  # and nobody else begins to
    pool.core.leave(pool.me, "r")
    pool.act()
    assert pool.end_moves() == backed
    assert pool.lent == 0
    assert pool.seek(1, "later")[0] is (Lookup.READY if backed else Lookup.ABSENT)


def test_a_copy_that_fails_is_not_tried_for_ever() -> None:
    pool = Pool()
    pool.store(1)
    pool.revoke()
    assert pool.end_moves(whole=False) == 1
    assert (pool.lent, pool.moves) == (0, [])
    assert pool.seek(1) == (Lookup.ABSENT, False)


def test_a_writer_that_is_lost_holds_the_peer_until_its_end() -> None:
    pool = Pool()
    assert pool.core.reserve(pool.me, [Key(b"1")])
    pool.core.gone(pool.me)
    pool.revoke()
    assert pool.lent == 1
    pool.core.dead("a")
    assert pool.lent == 0


def test_loads_are_counted_where_they_come_from() -> None:
    pool = Pool()
    pool.store(1, 2, 3, 4, 5)
    pool.seek(1)
    pool.seek(5)
    pool.core.leave(pool.me, "r", loaded=2, from_peers=1)
    state = pool.core.state()
    assert state.peers is not None
    on_peers, in_host = state.peers.held.tenants["a"].counts, state.tenants["a"].counts
    assert (on_peers.hits, in_host.hits) == (1, 1)
    assert on_peers.loaded_bytes == in_host.loaded_bytes == PAGE
    assert (on_peers.stored_bytes, in_host.stored_bytes) == (4 * PAGE, PAGE)


def test_an_unknown_peer_and_more_than_it_has_are_refused() -> None:
    pool = Pool()
    with pytest.raises(ValueError, match="no peer is named 'z'"):
        pool.core.resize_peer("z", 0)
    with pytest.raises(ValueError, match="it has 16384"):
        pool.revoke(5)
