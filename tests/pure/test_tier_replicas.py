"""Replicas of experts in peers' memory: up to a tenant's share, recalled before the memory goes."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mirage.tiers.blocks import Block, BlockState, PeerCopy, Punch, Tell
from mirage.tiers.contract import Key, Lookup, Member
from mirage.tiers.core import Core, MemberRefused
from mirage.tiers.ledger import Due, PriorityClass
from mirage.tiers.peer_backing import PeerPlan
from tests.examples import examples

pytestmark = pytest.mark.pure

PAGE = 4096
REPLICA = 2 * PAGE
PEER = 16


class Pool:
    """A pool with two members for each of two tenants, one for KV blocks and one for replicas;
    copies end at once.
    """

    def __init__(self, peer: int = PEER) -> None:
        self.core = Core(64 * PAGE, peers=PeerPlan({"gpu1": peer * PAGE}))
        for tenant in "ab":
            self.core.enrol(tenant, Due())
        join = self.core.join
        self.kv = {t: join(Member(t, f"{t} kv".encode(), PAGE)) for t in "ab"}
        self.replicas = {t: join(Member(t, b"experts", REPLICA, replicas=True)) for t in "ab"}
        self.told: dict[tuple[int, str | int, Key], Lookup] = {}
        self.recalled: set[tuple[int, str | int]] = set()
        self.punched: list[tuple[int, int]] = []

    def act(self) -> None:
        while actions := self.core.actions():
            for act in actions:
                if isinstance(act, Tell) and act.found is Lookup.RECALLED:
                    self.recalled.add(act.seeker)
                elif isinstance(act, Tell):
                    self.told[(*act.seeker, act.key)] = act.found
                elif isinstance(act, PeerCopy):
                    self.core.moved(act.name, whole=True)
                elif isinstance(act, Punch):
                    self.punched.append((act.range.offset, act.range.nbytes))

    def keep(self, tenant: str, number: int) -> Lookup:
        """Look for a replica, and write it if it is absent, as an engine does; return its state."""
        me, name = self.replicas[tenant], str(number)
        key = Key(name.encode())
        self.core.seek(me, name, [key])
        self.act()
        if self.told[me, name, key] is Lookup.ABSENT and self.core.reserve(me, [key]):
            self.core.seek(me, name, [key])
            self.core.commit(me, [key])
            self.act()
        found = self.told[me, name, key]
        if found is not Lookup.READY:
            self.leave(tenant, number)
        return found

    def leave(self, tenant: str, number: int) -> None:
        self.core.leave(self.replicas[tenant], str(number), loaded=1, from_peers=1)
        self.recalled.discard((self.replicas[tenant], str(number)))
        self.act()

    def store(self, tenant: str, *numbers: int) -> list[bool]:
        """Store these KV blocks; return for each one True if it lies on a peer."""
        given = self.core.reserve(self.kv[tenant], [Key(b"%d" % n) for n in numbers])
        self.core.commit(self.kv[tenant], given)
        self.act()
        return [offset >= self.core.span for offset in given.values()]

    def lend(self, pages: int) -> None:
        self.core.resize_peer("gpu1", pages * PAGE)
        self.act()

    @property
    def lent(self) -> int:
        """Number of pages that the peer "gpu1" has lent."""
        peers = self.core.state().peers
        assert peers is not None
        return peers.devices["gpu1"].held_bytes // PAGE


def test_a_tenant_has_no_more_of_them_than_its_share() -> None:
    pool = Pool()
    found = [pool.keep("a", n) for n in range(5)]
    assert found == [Lookup.READY] * 4 + [Lookup.ABSENT]  # half of 16 pages, 2 each
    pool.leave("a", 0)
    assert pool.keep("a", 9) is Lookup.READY


def test_engines_of_the_same_weights_share_them() -> None:
    pool = Pool()
    pool.keep("a", 1)
    before = pool.core.state().peers
    assert pool.keep("b", 1) is Lookup.READY
    assert pool.core.state().peers.held.blocks == before.held.blocks == 1  # type: ignore[union-attr]


def test_one_that_another_needs_costs_nothing() -> None:
    pool = Pool()
    assert pool.keep("b", 9) is Lookup.READY
    assert [pool.keep("a", n) for n in range(4)] == [Lookup.READY] * 4  # all of its share
    assert pool.keep("a", 9) is Lookup.READY
    pool.core.stand("b", PriorityClass.IDLE)
    assert not pool.recalled
    pool.leave("b", 9)
    pool.lend(0)
    assert (pool.replicas["a"], "9") in pool.recalled  # it still needs it


def test_one_that_is_wanted_back_is_not_shared() -> None:
    pool = Pool()
    pool.keep("b", 9)
    pool.core.stand("b", PriorityClass.EVICTABLE)
    pool.act()
    assert pool.recalled == {(pool.replicas["b"], "9")}
    assert pool.keep("a", 9) is Lookup.BELOW  # not for want of room
    assert pool.keep("a", 8) is Lookup.READY
    pool.leave("b", 9)
    assert pool.keep("a", 9) is Lookup.READY


def test_who_needs_one_no_more_does_not_pay_for_it() -> None:
    pool = Pool()
    for n in range(4):
        assert pool.keep("a", n) is Lookup.READY
        assert pool.keep("b", n) is Lookup.READY
    for n in range(4):
        pool.leave("a", n)
    assert not pool.recalled
    assert pool.keep("b", 8) is Lookup.ABSENT  # its share is full
    assert [pool.keep("a", n) for n in range(4, 8)] == [Lookup.READY] * 4
    pool.core.stand("a", PriorityClass.EVICTABLE)
    pool.act()
    assert pool.recalled == {(pool.replicas["a"], str(n)) for n in range(4, 8)}


def test_one_that_is_handed_on_may_be_one_too_many() -> None:
    pool = Pool()
    assert pool.keep("a", 9) is Lookup.READY
    assert [pool.keep("b", n) for n in (0, 1, 2, 3, 9)] == [Lookup.READY] * 5
    assert not pool.recalled
    pool.core.dead("a")
    pool.act()
    assert {member for member, _ in pool.recalled} == {pool.replicas["b"]}
    assert len(pool.recalled) == 1


def test_blocks_that_have_a_copy_make_room_and_those_that_are_needed_do_not() -> None:
    pool = Pool()
    assert all(pool.store("a", *range(PEER)))
    pool.store("a", 99)
    assert pool.keep("a", 1) is Lookup.READY
    pool = Pool(peer=4)
    pool.store("a", 0, 1, 2, 3)
    pool.core.seek(pool.kv["a"], "r", [Key(b"%d" % n) for n in range(4)])
    assert pool.keep("a", 1) is Lookup.ABSENT


@pytest.mark.parametrize("again", [False, True])
def test_one_that_is_needed_hides_no_block_behind_it(again: bool) -> None:
    """200 replicas are needed and stay. Any number of KV blocks still finds room on the peer,
    because replicas are no candidates for eviction.

    `again`: the replicas were left for a while and are needed again.
    """
    pool = Pool(peer=1024)
    for n in range(200):
        assert pool.keep("a", n) is Lookup.READY
    for n in range(200 if again else 0):
        pool.leave("a", n)
        assert pool.keep("a", n) is Lookup.READY
    assert all(pool.store("a", *range(1000, 1000 + 1024 - 400)))
    assert pool.store("a", 5000) == [True]


def test_who_has_one_hears_before_its_memory_goes() -> None:
    pool = Pool()
    pool.keep("a", 1)
    pool.keep("b", 1)
    pool.lend(0)
    assert pool.recalled == {(pool.replicas[t], "1") for t in "ab"}
    assert pool.lent == 2
    pool.leave("a", 1)
    assert pool.lent == 2
    pool.leave("b", 1)
    assert pool.lent == 0
    assert not pool.core.state().blocks  # nothing of it was copied to host memory


@pytest.mark.parametrize("sought", [True, False])
def test_memory_that_is_wanted_back_while_one_is_written(sought: bool) -> None:
    pool = Pool()
    me, key = pool.replicas["a"], Key(b"1")
    assert pool.core.reserve(me, [key])
    if sought:
        pool.core.seek(me, "1", [key])
    pool.lend(0)
    assert pool.recalled == ({(me, "1")} if sought else set())
    assert pool.lent == 2
    pool.core.commit(me, [key])
    pool.act()
    assert pool.lent == (2 if sought else 0)
    pool.leave("a", 1)
    assert pool.lent == 0


def test_one_that_nobody_needs_goes_for_a_block() -> None:
    pool = Pool(peer=4)
    pool.keep("a", 1)
    pool.leave("a", 1)
    assert all(pool.store("a", 0, 1, 2, 3))
    assert pool.core.state().peers.held.blocks == 4  # type: ignore[union-attr]


def test_a_share_that_falls_calls_back_what_is_beyond_it() -> None:
    pool = Pool()
    for n in range(4):
        pool.keep("a", n)
    pool.core.stand("b", PriorityClass.EVICTABLE)
    pool.act()
    assert not pool.recalled
    pool.core.stand("b", PriorityClass.IDLE)
    pool.core.enrol("c", Due())
    pool.core.join(Member("c", b"c", PAGE))
    pool.act()
    assert len(pool.recalled) == 2  # 8 pages were its share, 5 are


def test_an_engine_that_ends_needs_none_any_more() -> None:
    pool = Pool()
    pool.keep("a", 1)
    pool.core.gone(pool.replicas["a"])
    pool.lend(0)
    assert pool.lent == 2
    pool.core.dead("a")
    assert pool.lent == 0


def test_nothing_of_them_counts_as_a_kv_block() -> None:
    pool = Pool()
    pool.keep("a", 1)
    pool.leave("a", 1)
    pool.keep("a", 77)
    state = pool.core.state()
    assert state.peers is not None
    for held in (state, state.peers.held):
        counts = held.tenants["a"].counts
        assert not any(vars(counts).values()), counts


def test_a_fingerprint_is_of_blocks_or_of_replicas() -> None:
    pool = Pool()
    with pytest.raises(MemberRefused, match="blocks of 8192 bytes under a fingerprint of replicas"):
        pool.core.join(Member("a", b"experts", REPLICA))


class Machine(RuleBasedStateMachine):
    """All operations in any order; the pool's books are compared with the blocks that exist."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()
        self.kept: set[tuple[str, int]] = set()

    tenants = st.sampled_from("ab")
    numbers = st.integers(0, 11)

    @rule(tenant=tenants, number=numbers)
    def keep(self, tenant: str, number: int) -> None:
        if (tenant, number) not in self.kept and self.pool.keep(tenant, number) is Lookup.READY:
            self.kept.add((tenant, number))

    @rule(tenant=tenants, number=numbers)
    def leave(self, tenant: str, number: int) -> None:
        if (tenant, number) in self.kept:
            self.kept.remove((tenant, number))
            self.pool.leave(tenant, number)

    @rule(tenant=tenants, number=numbers)
    def store(self, tenant: str, number: int) -> None:
        self.pool.store(tenant, number)

    @rule(tenant=tenants, number=numbers)
    def read(self, tenant: str, number: int) -> None:
        me, key = self.pool.kv[tenant], Key(b"%d" % number)
        self.pool.core.seek(me, "read", [key])
        self.pool.core.leave(me, "read")
        self.pool.act()

    @rule(pages=st.sampled_from((0, 3, 8, PEER)))
    def lend(self, pages: int) -> None:
        self.pool.lend(pages)

    @rule(tenant=tenants, standing=st.sampled_from(list(PriorityClass)))
    def stand(self, tenant: str, standing: PriorityClass) -> None:
        self.pool.core.stand(tenant, standing)
        self.pool.act()

    @rule()
    def obey(self) -> None:
        """Leave all replicas that were recalled; then peers' memory is within its limits."""
        for member, name in list(self.pool.recalled):
            tenant = next(t for t, n in self.pool.replicas.items() if n == member)
            self.leave(tenant, int(name))
        peers = self.pool.core.state().peers
        assert peers is not None
        device = peers.devices["gpu1"]
        assert device.held_bytes <= device.budget_bytes
        assert not device.owed_bytes
        ledger = self.pool.core._peered.arena.ledger
        assert all(ledger.account(t).replicas <= ledger.share(t) for t in "ab")

    @invariant()
    def books_are_true(self) -> None:
        peered = self.pool.core._peered.arena
        blocks: list[Block] = list(peered._blocks.values())
        for tenant in "ab":
            own, mine = peered.ledger.account(tenant), [b for b in blocks if b.tenant == tenant]
            assert own.held == sum(b.stride for b in mine)
            assert own.pinned == sum(b.stride for b in mine if b.pins)
            needed = [b for b in mine if b.replica and (b.pins or b.state is not BlockState.READY)]
            assert own.replicas == sum(b.stride for b in needed)
        for block in blocks:
            seekers = {t for t, n in self.kept if Key(b"%d" % n) == block.name.key}
            assert not (block.replica and seekers) or block.tenant in seekers
        there = {b.name.key for b in blocks if b.replica}
        assert {Key(b"%d" % number) for _, number in self.kept} <= there


Machine.TestCase.settings = examples(60, stateful_step_count=40)
TestMachine = Machine.TestCase
