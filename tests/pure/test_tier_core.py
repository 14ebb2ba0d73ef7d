"""The host pool's state against a simple model of what engines were told."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirage.tiers.blocks import Name, PeerCopy, Punch, Rise, Sink, Tell, Unlock
from mirage.tiers.contract import Key, Lookup, Member
from mirage.tiers.core import Core, MemberRefused
from mirage.tiers.counts import PoolState
from mirage.tiers.ledger import Due, PriorityClass
from mirage.tiers.peer_backing import PeerPlan
from mirage.tiers.policies import POLICIES
from tests.examples import examples

pytestmark = pytest.mark.pure

KIB4 = 4096
BUDGET = 16 * KIB4


def key(number: int) -> Key:
    return Key(b"%d" % number)


def keys(*numbers: int) -> list[Key]:
    return [key(number) for number in numbers]


def join(
    core: Core,
    tenant: str,
    blocks: int = 1,
    weights: str = "",
    priority: int = 0,
    share: float = 100.0,
) -> int:
    fingerprint = (weights or tenant).encode()
    return core.join(Member(tenant, fingerprint, blocks * KIB4, Due(priority, share)))


def store(core: Core, number: int, *numbers: int) -> dict[Key, int]:
    given = core.reserve(number, keys(*numbers))
    core.commit(number, given)
    return given


def told(core: Core) -> dict[Key, Lookup]:
    return {act.key: act.found for act in core.actions() if isinstance(act, Tell)}


def found(core: Core, number: int, *numbers: int, request: str = "r") -> list[Lookup]:
    core.actions()
    core.seek(number, request, keys(*numbers))
    answers = told(core)
    return [answers[key(n)] for n in numbers]


READY, ABSENT, COMING = Lookup.READY, Lookup.ABSENT, Lookup.COMING


def test_what_one_commits_another_of_the_same_weights_finds() -> None:
    core = Core(BUDGET)
    a, b, c = join(core, "a", weights="w"), join(core, "b", weights="w"), join(core, "c")
    core.reserve(a, keys(1, 2))
    assert found(core, b, 1) == [COMING]
    core.commit(a, keys(1))
    assert told(core) == {key(1): READY}
    assert found(core, b, 1, 2) == [READY, COMING]
    assert found(core, c, 1) == [ABSENT]
    core.abandon(a, keys(2))
    assert told(core) == {key(2): ABSENT}


def test_nobody_else_commits_what_one_reserved() -> None:
    core = Core(BUDGET)
    a, b = join(core, "a", weights="w"), join(core, "b", weights="w")
    core.reserve(a, keys(1))
    assert core.reserve(b, keys(1)) == {}
    core.commit(b, keys(1))
    core.abandon(b, keys(1))
    assert found(core, b, 1) == [COMING]


def test_a_lost_writer_leaves_its_places_alone_until_it_has_ended() -> None:
    core = Core(4 * KIB4)
    a, b = join(core, "a", weights="w"), join(core, "b", weights="w")
    lost = set(core.reserve(a, keys(1, 2, 3)).values())
    core.gone(a)
    given = store(core, b, 1, 2, 3, 4)
    assert len(given) == 1
    assert not lost & set(given.values())
    core.dead("a")
    assert len(store(core, b, 2, 3, 4)) == 3
    assert core.state().tenants["a"].held_bytes == 0


def test_the_same_history_gives_the_same_places() -> None:
    histories = set()
    for _ in range(20):
        core = Core(BUDGET)
        a, b = join(core, "a", weights="w"), join(core, "b", weights="w")
        core.reserve(a, keys(*range(12)))
        core.dead("a")
        histories.add(tuple(core.reserve(b, keys(*range(12))).values()))
    assert len(histories) == 1


def test_pins_of_a_lost_member_hold_until_it_has_ended() -> None:
    core = Core(KIB4)
    a, b = join(core, "a", weights="w"), join(core, "b", weights="w")
    store(core, a, 1)
    assert found(core, a, 1) == [READY]
    core.gone(a)
    assert core.reserve(b, keys(2)) == {}
    core.dead("a")
    assert len(core.reserve(b, keys(2))) == 1


def test_a_pinned_block_stays_and_the_oldest_idle_one_goes() -> None:
    core = Core(3 * KIB4)
    a = join(core, "a")
    store(core, a, 1, 2, 3)
    assert found(core, a, 1) == [READY]
    assert found(core, a, 2, request="once") == [READY]
    core.leave(a, "once")
    assert store(core, a, 4)
    assert found(core, a, 1, 2, 3, 4, request="s") == [READY, READY, ABSENT, READY]
    assert core.reserve(a, keys(5)) == {}
    core.leave(a, "r", loaded=1)
    assert core.reserve(a, keys(5)) == {}
    core.leave(a, "s")
    assert core.reserve(a, keys(5))
    counts = core.state().tenants["a"].counts
    assert (counts.hits, counts.misses, counts.evictions, counts.refused) == (5, 1, 2, 2)
    assert (counts.stored_bytes, counts.loaded_bytes) == (4 * KIB4, KIB4)


def test_asking_again_counts_once() -> None:
    core = Core(BUDGET)
    a = join(core, "a")
    store(core, a, 1)
    assert found(core, a, 1) == found(core, a, 1) == [READY]
    assert core.state().tenants["a"].counts.hits == 1


def test_who_is_under_its_share_takes_back_what_was_borrowed() -> None:
    core = Core(12 * KIB4)
    a, b = join(core, "a", share=50), join(core, "b", share=100)
    assert len(store(core, a, *range(12))) == 12
    assert core.ledger.share("b") == 8 * KIB4
    assert len(store(core, b, *range(8))) == 8
    before = core.state().tenants
    assert (before["a"].held_bytes, before["b"].held_bytes) == (4 * KIB4, 8 * KIB4)
    assert store(core, b, 9)
    after = core.state().tenants
    assert (after["a"].held_bytes, after["b"].held_bytes) == (4 * KIB4, 8 * KIB4)


def test_lower_classes_go_first_and_an_evictable_tenant_has_no_share() -> None:
    core = Core(12 * KIB4)
    a, b, c = join(core, "a"), join(core, "b"), join(core, "c")
    store(core, a, *range(6))
    store(core, b, *range(6))
    core.stand("a", PriorityClass.RECENT)
    core.stand("b", PriorityClass.IDLE)
    store(core, c, 0, 1)
    assert {n: t.held_bytes // KIB4 for n, t in core.state().tenants.items()} == {
        "a": 6,
        "b": 4,
        "c": 2,
    }
    core.stand("b", PriorityClass.EVICTABLE)
    store(core, c, *range(2, 6))
    assert core.state().tenants["b"].held_bytes == 0
    assert core.state().tenants["b"].share_bytes == 0


def test_blocks_of_another_size_leave_slab_by_slab() -> None:
    core = Core(12 * KIB4)
    a, b = join(core, "a"), join(core, "b", blocks=5)
    store(core, a, *range(12))
    core.stand("a", PriorityClass.EVICTABLE)
    core.actions()
    assert len(store(core, b, 1, 2, 3)) == 2
    assert core.state().used_bytes <= 12 * KIB4
    punched = sum(act.range.nbytes for act in core.actions() if isinstance(act, Punch))
    assert punched == core.state().tenants["a"].counts.evictions * KIB4 >= 10 * KIB4


def test_nobody_leaves_for_a_block_that_never_fits() -> None:
    core = Core(BUDGET)
    a, b = join(core, "a"), join(core, "b", blocks=20)
    store(core, a, *range(16))
    assert store(core, b, 1) == {}
    assert found(core, a, *range(16)) == [READY] * 16


def test_nobody_leaves_for_a_block_that_fits_on_no_single_peer() -> None:
    core = Core(BUDGET, peers=PeerPlan({"gpu1": 4 * KIB4, "gpu2": 4 * KIB4}))
    a, b = join(core, "a"), join(core, "b", blocks=6)
    on_peers = {n: at for n, at in store(core, a, *range(8)).items() if at >= core.span}
    assert len(on_peers) == 8
    for name in on_peers:  # they could go: copies lie in host memory
        core.moved(Name(b"a", name), whole=True)
    core.actions()
    store(core, b, 1)
    state = core.state().peers
    assert state is not None and state.held.blocks == 8


def test_a_slab_with_somebody_elses_due_in_it_stays() -> None:
    core = Core(12 * 128 * KIB4)
    a, b, c = join(core, "a"), join(core, "b"), join(core, "c", blocks=13)
    for number in range(6 * 128):  # side by side in every slab
        store(core, a, number)
        store(core, b, number)
    core.stand("a", PriorityClass.EVICTABLE)
    assert store(core, c, 1) == {}
    core.stand("b", PriorityClass.EVICTABLE)
    assert len(store(core, c, 1)) == 1


def test_evictable_ones_go_before_borrowed_ones() -> None:
    core = Core(12 * KIB4)
    a, b, c = join(core, "a"), join(core, "b"), join(core, "c")
    store(core, a, *range(10))
    store(core, b, 1, 2)
    core.stand("a", PriorityClass.IDLE)
    core.stand("b", PriorityClass.EVICTABLE)
    store(core, c, 1, 2)
    tenants = core.state().tenants
    assert (tenants["a"].held_bytes, tenants["b"].held_bytes) == (10 * KIB4, 0)


def test_nobody_takes_what_is_anothers_due() -> None:
    core = Core(12 * KIB4)
    a, b = join(core, "a"), join(core, "b")
    store(core, a, *range(6))
    store(core, b, *range(6))
    assert set(found(core, b, *range(6))) == {READY}
    assert core.reserve(b, keys(10)) == {}
    assert core.state().tenants["a"].held_bytes == 6 * KIB4


def test_a_used_block_is_the_users() -> None:
    core = Core(BUDGET)
    a, b = join(core, "a", weights="w"), join(core, "b", weights="w")
    store(core, a, 1)
    assert found(core, b, 1) == [READY]
    state = core.state().tenants
    assert state["a"].held_bytes == state["a"].pinned_bytes == 0
    assert state["b"].held_bytes == state["b"].pinned_bytes == KIB4
    assert found(core, a, 1) == [READY]  # while b still needs it
    state = core.state().tenants
    assert state["a"].held_bytes == state["a"].pinned_bytes == KIB4
    assert state["b"].held_bytes == state["b"].pinned_bytes == 0


def test_shrinking_gives_back_idle_ones_first_and_pinned_ones_when_they_are_left() -> None:
    core = Core(8 * KIB4)
    a = join(core, "a")
    store(core, a, *range(8))
    found(core, a, 5, 6)
    core.resize(KIB4)
    state = core.state()
    assert (state.used_bytes, state.owed_bytes) == (2 * KIB4, KIB4)
    punched = [act.range for act in core.actions() if isinstance(act, Punch)]
    assert sum(r.nbytes for r in punched) == 6 * KIB4
    assert core.reserve(a, keys(9)) == {}
    core.leave(a, "r")
    assert core.state().used_bytes <= KIB4
    core.resize(8 * KIB4)
    assert len(core.reserve(a, keys(*range(20, 28)))) >= 7
    with pytest.raises(ValueError, match="the pool was made for"):
        core.resize(100 * KIB4)


def test_a_fingerprint_has_one_size() -> None:
    core = Core(BUDGET)
    join(core, "a", weights="w")
    with pytest.raises(
        MemberRefused, match="blocks of 8192 bytes under a fingerprint of blocks of 4096"
    ):
        join(core, "b", blocks=2, weights="w")
    with pytest.raises(MemberRefused, match="must be positive"):
        join(core, "c", blocks=0)


class Shelf:
    """Stand-in for the tier below the host pool: it has the blocks that the test gave it."""

    def __init__(self) -> None:
        self.names: set[Name] = set()
        self.kept: list[Key] = []
        self.wiped: list[str] = []

    def wipe(self, tenant: str) -> None:
        self.wiped.append(tenant)

    def keep(self, names: Iterable[Name]) -> None:
        self.kept = [name.key for name in names]

    def has(self, name: Name, nbytes: int) -> bool:
        return name in self.names


def test_a_tenant_that_is_removed_leaves_nothing_but_what_others_need() -> None:
    shelf = Shelf()
    core = Core(BUDGET, below=shelf)
    for tenant in "abc":
        core.enrol(tenant, Due())
    a, b, c = (join(core, tenant, weights="w") for tenant in "abc")
    store(core, a, 0, 1, 2)
    assert found(core, b, 1, request="b") == [Lookup.READY], "it is b's by now"
    assert found(core, c, 2, request="c") == found(core, a, 2, request="a") == [Lookup.READY]
    core.leave(a, "a")
    core.dead("a")
    core.wipe("a")
    assert shelf.wiped == ["a"]
    assert found(core, b, 0) == [Lookup.ABSENT]
    assert found(core, b, 1) == [Lookup.READY]
    assert "a" in core.state().tenants, "c needs a block of it"
    core.leave(c, "c")
    assert core.state().tenants.keys() == {"b", "c"}
    assert found(core, b, 2) == [Lookup.ABSENT]
    core.enrol("a", Due())
    store(core, join(core, "a", weights="w"), 5)
    assert core.state().tenants["a"].held_bytes == KIB4


def eight(shelf: Shelf) -> tuple[Core, int, list[Sink]]:
    """A full pool of eight blocks of one tenant, that tenant's member number, and the orders to
    copy blocks to the shelf.
    """
    core = Core(8 * KIB4, below=shelf)
    member = join(core, "a")
    store(core, member, *range(8))
    return core, member, [act for act in core.actions() if isinstance(act, Sink)]


def test_what_would_go_next_lies_below_and_comes_back() -> None:
    shelf = Shelf()
    core, a, sinks = eight(shelf)
    assert [act.name.key for act in sinks] == keys(0, 1)  # a quarter at a time
    assert found(core, a, 0) == [READY]
    core.leave(a, "r")
    for act in sinks:
        shelf.names.add(act.name)
        core.sunk(act.name, whole=True)
    store(core, a, 10, 11, 12)
    assert found(core, a, 1, 2, 3) == [Lookup.RISING, ABSENT, ABSENT]


def test_before_the_end_what_was_used_last_goes_down_first() -> None:
    shelf = Shelf()
    core, a, below = eight(shelf)
    for act in below:
        shelf.names.add(act.name)
        core.sunk(act.name, whole=True)
    assert found(core, a, 3, 5) == [READY, READY]  # 5 is needed: it stays out of it
    core.leave(a, "r")
    core.seek(a, "s", keys(5))
    slot = 2 * KIB4  # with its header
    names = core.unsaved(4 * slot)
    assert [name.key for name in names] == keys(3, 7, 6, 4)  # 0 and 1 lie below
    assert [name.key for name in core.unsaved(3 * slot)] == keys(3, 7, 6)
    assert shelf.kept == []
    assert [name.key for name in core.unsaved(8 * slot)] == keys(3, 7, 6, 4, 2)
    assert shelf.kept == keys(0, 1)  # what lies there has a place on the disk as well
    assert found(core, a, 0) == [READY]
    core.leave(a, "r")
    assert [name.key for name in core.unsaved(3 * slot)] == keys(3, 7)
    assert shelf.kept == keys(0)
    core.actions()
    core.save(names[:2])
    assert core.sinking == 2
    assert [act.name.key for act in core.actions() if isinstance(act, Sink)] == keys(3, 7)
    for name in names[:2]:
        core.sunk(name, whole=True)
    assert core.sinking == 0


def test_what_comes_up_is_ready_when_it_is_whole() -> None:
    shelf = Shelf()
    core = Core(8 * KIB4, below=shelf)
    a = join(core, "a")
    shelf.names = {Name(b"a", key(1)), Name(b"a", key(2))}
    core.seek(a, "r", keys(1, 2))
    rises = [act for act in core.actions() if isinstance(act, Rise)]
    assert [act.name.key for act in rises] == keys(1, 2)
    assert core.reserve(a, keys(1)) == {}
    core.risen(rises[0].name, whole=True)
    core.risen(rises[1].name, whole=False)
    assert told(core) == {key(1): READY, key(2): ABSENT}
    counts = core.state().tenants["a"].counts
    assert (counts.hits, counts.misses, counts.risen) == (1, 1, 1)
    core.risen(rises[0].name, whole=False)
    assert found(core, a, 1) == [READY]


numbers_of_blocks = st.integers(0, 11)


def test_what_lies_below_is_a_miss_where_the_pool_has_room_for_no_block() -> None:
    shelf = Shelf()
    core = Core(2 * KIB4, below=shelf)
    a = join(core, "a")
    shelf.names |= {Name(b"a", key(1))}
    core.resize(0)
    assert found(core, a, 1) == [ABSENT]
    core.resize(KIB4)
    assert found(core, a, 1, request="s") == [Lookup.RISING]


def test_what_lies_below_comes_up_when_that_is_asked_for_and_there_is_room() -> None:
    shelf = Shelf()
    core = Core(2 * KIB4, below=shelf)
    a = join(core, "a")
    shelf.names |= {Name(b"a", key(n)) for n in range(3)}
    core.seek(a, "r", keys(0, 1, 2, 3), rise=False)
    acts = core.actions()
    assert not any(isinstance(act, Rise) for act in acts)
    assert {act.key: act.found for act in acts if isinstance(act, Tell)} == {
        **dict.fromkeys(keys(0, 1, 2), Lookup.BELOW),
        key(3): ABSENT,
    }
    assert found(core, a, 0, 1, 2) == [Lookup.RISING, Lookup.RISING, Lookup.BELOW]
    for n in (0, 1):
        core.risen(Name(b"a", key(n)), whole=True)
    assert told(core) == dict.fromkeys(keys(0, 1), READY)
    assert found(core, a, 2) == [Lookup.BELOW]  # what its own request needs stays
    core.leave(a, "r")
    assert found(core, a, 2, request="s") == [Lookup.RISING]


NOTHING = Name(b"", Key(b""))
"""Content of a page that has memory and holds zeros."""


class Engines(RuleBasedStateMachine):
    """Random requests of three tenants, two with the same weights and one with larger blocks, on a
    pool with a tier below.

    `memory` is what engines wrote at each page. A request that was told that a block is there must
    read exactly that block.
    """

    numbers = numbers_of_blocks
    tenants = st.sampled_from(["a", "b", "c"])
    requests = st.sampled_from(["q", "r"])
    plan = PeerPlan()

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.members: dict[int, str] = {}
        self.lost: set[int] = set()
        self.writing: dict[int, dict[Key, int]] = {}
        self.reading: dict[tuple[int, str], dict[Key, int]] = {}
        self.coming: set[tuple[int, str, Key]] = set()
        self.rising: dict[Name, int] = {}
        self.sinking: dict[Name, int] = {}
        self.moving: dict[Name, tuple[int, int]] = {}
        """Offsets from and to which each block is being copied."""
        self.memory: dict[int, Name] = {}
        """Block that was written to each page last, by the page's offset."""
        self.locked: dict[int, set[int]] = {}
        """Pages of each locked slab, by the slab's offset: devices use them even if they are
        punched.
        """
        self.unlocking: set[int] = set()
        """Offsets of the slabs that engines were told to unlock."""
        self.removed: set[str] = set()
        self.top = BUDGET
        self.core = Core(BUDGET, below=self.shelf)

    @initialize(kind=st.sampled_from(sorted(POLICIES)))
    def begin(self, kind: str) -> None:
        self.core = Core(BUDGET, POLICIES[kind], self.shelf, self.plan)

    def blocks(self, name: Name) -> int:
        return 3 if name.fingerprint == b"big" else 1

    def name(self, number: int, wanted: Key) -> Name:
        return Name(b"big" if self.members[number] == "c" else b"w", wanted)

    def pages(self, name: Name, offset: int) -> list[int]:
        return [offset + page * KIB4 for page in range(self.blocks(name))]

    def write(self, name: Name, offset: int) -> None:
        for page in self.pages(name, offset):
            self.memory[page] = name

    def holds(self, name: Name, offset: int) -> bool:
        return all(self.memory.get(page) == name for page in self.pages(name, offset))

    def act(self) -> None:
        for act in self.core.actions():
            if isinstance(act, Punch):
                for page in range(act.range.offset, act.range.offset + act.range.nbytes, KIB4):
                    assert not any(page in pages for pages in self.locked.values())
                    self.memory.pop(page, None)
            elif isinstance(act, Unlock):
                assert act.start in self.locked and act.start not in self.unlocking
                self.unlocking.add(act.start)
            elif isinstance(act, Rise):
                self.rising[act.name] = act.place.offset
            elif isinstance(act, PeerCopy):
                assert self.holds(act.name, act.source.offset)
                assert act.source.offset >= self.core.span > act.target.offset
                self.moving[act.name] = (act.source.offset, act.target.offset)
            elif isinstance(act, Sink):
                assert self.holds(act.name, act.place.offset)
                self.sinking[act.name] = act.place.offset
            elif act.seeker.member not in self.lost or act.found is READY:
                self.hear(act)  # what it would read stays, whether it heard of it or not

    def hear(self, act: Tell) -> None:
        number, request = act.seeker
        self.coming.discard((number, request, act.key))
        if act.found in (COMING, Lookup.RISING):
            self.coming.add((number, request, act.key))
        if act.found is READY:
            assert self.holds(self.name(number, act.key), act.offset)
            self.reading.setdefault((number, request), {})[act.key] = act.offset

    @rule(tenant=tenants, priority=st.integers(0, 1))
    def join(self, tenant: str, priority: int) -> None:
        if tenant in self.removed:
            self.removed.remove(tenant)
            self.core.enrol(tenant, Due(priority))
        weights = "big" if tenant == "c" else "w"
        blocks = 3 if tenant == "c" else 1
        self.members[join(self.core, tenant, blocks, weights, priority)] = tenant

    def member(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(set(self.members) - self.lost)))

    @precondition(lambda self: set(self.members) - self.lost)
    @rule(data=st.data(), wanted=st.lists(numbers, max_size=6))
    def reserve(self, data: st.DataObject, wanted: list[int]) -> None:
        number = self.member(data)
        given = self.core.reserve(number, keys(*wanted))
        self.act()
        for wanted_key, offset in given.items():
            taken = set(self.pages(self.name(number, wanted_key), offset))
            assert not taken & (self.in_use() | self.locked_for_nobody())
            self.writing.setdefault(number, {})[wanted_key] = offset
            for page in taken:  # half of it
                self.memory.pop(page, None)

    def in_use(self) -> set[int]:
        """Pages that an engine reads or writes, or that are being copied, at this moment."""
        used: set[int] = set()
        for number, mine in self.writing.items():
            for wanted, offset in mine.items():
                used.update(self.pages(self.name(number, wanted), offset))
        for (number, _), mine in self.reading.items():
            for wanted, offset in mine.items():
                used.update(self.pages(self.name(number, wanted), offset))
        for name, offset in [*self.rising.items(), *self.sinking.items()]:
            used.update(self.pages(name, offset))
        for name, places in self.moving.items():
            used.update(page for offset in places for page in self.pages(name, offset))
        return used

    @precondition(lambda self: set(self.members) - self.lost)
    @rule(data=st.data(), wanted=st.sets(numbers, max_size=6), whole=st.booleans())
    def end_write(self, data: st.DataObject, wanted: set[int], whole: bool) -> None:
        number = self.member(data)
        mine = self.writing.get(number, {})
        for wanted_key in keys(*wanted):
            if wanted_key in mine and whole:
                self.write(self.name(number, wanted_key), mine[wanted_key])
        (self.core.commit if whole else self.core.abandon)(number, keys(*wanted))
        for wanted_key in keys(*wanted):
            mine.pop(wanted_key, None)
        self.act()

    @precondition(lambda self: set(self.members) - self.lost)
    @rule(
        data=st.data(),
        request=requests,
        wanted=st.lists(numbers, max_size=6),
        rise=st.booleans(),
    )
    def seek(self, data: st.DataObject, request: str, wanted: list[int], rise: bool) -> None:
        rising = set(self.rising)
        self.core.seek(self.member(data), request, keys(*wanted), rise=rise)
        self.act()
        assert rise or set(self.rising) == rising

    @precondition(lambda self: set(self.members) - self.lost)
    @rule(data=st.data(), request=requests)
    def leave(self, data: st.DataObject, request: str) -> None:
        number = self.member(data)
        self.reading.pop((number, request), None)
        self.coming = {c for c in self.coming if c[:2] != (number, request)}
        self.core.leave(number, request)
        self.act()

    @precondition(lambda self: set(self.members) - self.lost)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """End the connection of an engine, which goes on reading and writing for a while."""
        number = self.member(data)
        self.lost.add(number)
        self.coming = {c for c in self.coming if c[0] != number}
        self.core.gone(number)
        self.act()

    @rule(tenant=tenants, removed=st.booleans())
    def die(self, tenant: str, removed: bool) -> None:
        ended = {number for number, name in self.members.items() if name == tenant}
        for number in ended:
            for wanted, offset in self.writing.pop(number, {}).items():
                for page in self.pages(self.name(number, wanted), offset):
                    self.memory.pop(page, None)  # to its last moment
        self.reading = {k: v for k, v in self.reading.items() if k[0] not in ended}
        self.coming = {c for c in self.coming if c[0] not in ended}
        self.core.dead(tenant)
        if removed:
            self.core.wipe(tenant)
            self.removed.add(tenant)
        self.act()
        self.lost -= ended
        for number in ended:
            del self.members[number]

    @precondition(lambda self: self.rising)
    @rule(data=st.data(), whole=st.booleans())
    def rise(self, data: st.DataObject, whole: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.rising)))
        if whole:
            self.write(name, self.rising[name])
        del self.rising[name]
        self.core.risen(name, whole=whole)
        self.act()

    @precondition(lambda self: self.sinking)
    @rule(data=st.data(), whole=st.booleans())
    def sink(self, data: st.DataObject, whole: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.sinking)))
        del self.sinking[name]
        self.shelf.names |= {name} if whole else set()
        self.core.sunk(name, whole=whole)
        self.act()

    @precondition(lambda self: self.moving)
    @rule(data=st.data(), whole=st.booleans())
    def move(self, data: st.DataObject, whole: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.moving)))
        source, target = self.moving.pop(name)
        assert self.holds(name, source)
        if whole:
            self.write(name, target)
        self.core.moved(name, whole=whole)
        self.act()

    @precondition(lambda self: self.plan.devices)
    @rule(data=st.data(), pages=st.integers(0, 8))
    def resize_peer(self, data: st.DataObject, pages: int) -> None:
        device = data.draw(st.sampled_from(sorted(self.plan.devices)))
        self.core.resize_peer(device, min(pages * KIB4, self.plan.devices[device]))
        self.act()

    def locked_for_nobody(self) -> set[int]:
        """Pages of slabs that engines were told to unlock; they are punched after that."""
        return {page for start in self.unlocking for page in self.locked[start]}

    @precondition(lambda self: self.writing or self.reading)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        """Let an engine lock a slab that it copies from or to. Locking makes memory for the whole
        slab.
        """
        pages = sorted(page for page in self.in_use() if page < self.core.span)
        slab = self.core.lock(data.draw(st.sampled_from(pages))) if pages else None
        if slab is not None:
            assert slab.offset not in self.unlocking
            locked = set(range(slab.offset, slab.offset + slab.nbytes, KIB4))
            assert self.locked.setdefault(slab.offset, locked) == locked
            for page in locked:
                self.memory.setdefault(page, NOTHING)

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(self.locked)))
        del self.locked[start]
        self.unlocking.discard(start)
        self.core.unlocked(start)
        self.act()

    @rule(pages=st.integers(0, 16))
    def resize(self, pages: int) -> None:
        self.top = pages * KIB4
        self.core.resize(self.top)
        self.act()

    @rule(tenant=tenants, standing=st.sampled_from(PriorityClass))
    def stand(self, tenant: str, standing: PriorityClass) -> None:
        self.core.stand(tenant, standing)

    @invariant()
    def what_is_read_is_what_was_written(self) -> None:
        for (number, _), mine in self.reading.items():
            for wanted, offset in mine.items():
                assert self.holds(self.name(number, wanted), offset)

    @invariant()
    def never_over_budget_but_for_what_is_in_use(self) -> None:
        in_use = self.in_use()
        for state, span in self.states():
            used = len(in_use & set(span)) * KIB4
            assert len(self.memory.keys() & set(span)) * KIB4 <= state.used_bytes
            # one peer may be within its budget while another one waits for its own
            most = state.budget_bytes + used if span.start else max(self.top, used)
            most += 0 if span.start else len(self.locked_for_nobody()) * KIB4
            assert state.used_bytes <= most
            assert sum(t.share_bytes for t in state.tenants.values()) <= state.budget_bytes
        assert self.core.state().budget_bytes == self.top

    def states(self) -> list[tuple[PoolState, range]]:
        """State of host memory with its range of offsets, and that of peers' memory, if there is
        any, with its own.
        """
        state, span = self.core.state(), self.core.span
        found = [(state, range(0, span, KIB4))]
        if state.peers is not None:
            found += [(state.peers.held, range(span, span + self.core.peer_span, KIB4))]
        return found

    @invariant()
    def peers_owe_only_what_is_in_use(self) -> None:
        state, start, in_use = self.core.state(), self.core.span, self.in_use()
        for name, device in state.peers.devices.items() if state.peers else ():
            end = start + self.plan.devices[name]
            used = len(in_use & set(range(start, end, KIB4))) * KIB4
            assert device.owed_bytes <= used
            start = end

    @invariant()
    def the_books_are_right(self) -> None:
        books = []
        for state, _ in self.states():
            held = sum(t.held_bytes for t in state.tenants.values())
            assert held == state.used_bytes - state.unused_bytes
            books += state.tenants.values()
        for own in books:
            assert 0 <= own.pinned_bytes <= own.held_bytes - own.reserved_bytes
        pinned = {
            page
            for (number, _), mine in self.reading.items()
            for wanted, offset in mine.items()
            for page in self.pages(self.name(number, wanted), offset)
        }
        assert sum(t.pinned_bytes for t in books) == len(pinned) * KIB4
        writing = sum(
            len(self.pages(self.name(n, k), o))
            for n, m in self.writing.items()
            for k, o in m.items()
        )
        rising = sum(len(self.pages(name, o)) for name, o in self.rising.items())
        moving = sum(len(self.pages(name, at)) for name, (_, at) in self.moving.items())
        reserved = sum(t.reserved_bytes for t in books)
        assert reserved == (writing + rising + moving) * KIB4

    @invariant()
    def who_was_told_to_wait_waits_for_somebody(self) -> None:
        for number, _, wanted in self.coming:
            name = self.name(number, wanted)
            writers = [
                other
                for other, mine in self.writing.items()
                if other not in self.lost and self.name(other, wanted) == name and wanted in mine
            ]
            assert writers or name in self.rising or name in self.moving


class Busy(Engines):
    """Engines that store many blocks, so that the pool is always short of room."""

    @initialize(kind=st.sampled_from(sorted(POLICIES)))
    def begin(self, kind: str) -> None:
        self.core = Core(BUDGET, POLICIES[kind], self.shelf, self.plan)
        for tenant in "abc":
            self.join(tenant=tenant, priority=0)

    @precondition(lambda self: set(self.members) - self.lost)
    @rule(data=st.data(), first=numbers_of_blocks, count=st.integers(4, 12))
    def store(self, data: st.DataObject, first: int, count: int) -> None:
        """Store a row of `count` blocks, as many of them as the pool has room for."""
        number = self.member(data)
        mine = self.writing.setdefault(number, {})
        wanted = [k for k in keys(*range(first, first + count)) if k not in mine]
        given = self.core.reserve(number, wanted)
        self.act()
        for wanted_key, offset in given.items():
            taken = set(self.pages(self.name(number, wanted_key), offset))
            assert not taken & (self.in_use() | self.locked_for_nobody())
            self.write(self.name(number, wanted_key), offset)
        self.core.commit(number, given)
        self.act()

    @rule(tenant=Engines.tenants)
    def join_again(self, tenant: str) -> None:
        if tenant not in {self.members[number] for number in set(self.members) - self.lost}:
            self.join(tenant=tenant, priority=0)


class BackedPeers(Busy):
    """Random requests to a pool with peers' memory above host memory; the peers' owners want their
    memory back at any moment.
    """

    plan = PeerPlan({"p": 6 * KIB4, "q": 5 * KIB4}, backed=True)


class LossyPeers(Busy):
    plan = PeerPlan({"p": 6 * KIB4, "q": 5 * KIB4}, backed=False)


TestEngines = Engines.TestCase
TestEngines.settings = examples(120, stateful_step_count=50)
TestBusy = Busy.TestCase
TestBusy.settings = examples(60, stateful_step_count=50)
TestBackedPeers = BackedPeers.TestCase
TestBackedPeers.settings = examples(120, stateful_step_count=50)
TestLossyPeers = LossyPeers.TestCase
TestLossyPeers.settings = examples(60, stateful_step_count=50)
