"""Slabs that engines have locked: they are not punched before that ends, and they count as used."""

from __future__ import annotations

import pytest

from mirage.tiers import space
from mirage.tiers.blocks import Punch, Unlock
from mirage.tiers.contract import Key, Member
from mirage.tiers.core import Core
from mirage.tiers.ledger import PriorityClass
from mirage.tiers.space import PAGE

pytestmark = pytest.mark.pure
BUDGET = 12 * PAGE


def join(core: Core, tenant: str, blocks: int = 1) -> int:
    return core.join(Member(tenant, tenant.encode(), blocks * PAGE))


def store(core: Core, number: int, *numbers: int) -> list[int]:
    given = core.reserve(number, [Key(b"%d" % each) for each in numbers])
    core.commit(number, given)
    return list(given.values())


def lock_all(core: Core, offsets: list[int]) -> set[int]:
    """Lock the slabs at these offsets; return the first offset of each slab."""
    found = [core.lock(offset) for offset in offsets]
    return {slab.offset for slab in found if slab is not None}


def done(core: Core) -> tuple[set[int], int]:
    """First offsets of the slabs that engines are to unlock, and the bytes punched, since the last
    call.
    """
    actions = core.actions()
    punched = sum(act.range.nbytes for act in actions if isinstance(act, Punch))
    return {act.start for act in actions if isinstance(act, Unlock)}, punched


def test_a_slab_is_locked_whole() -> None:
    core = Core(512 * PAGE)  # slabs of four pages
    a = join(core, "a")
    slabs = [core.lock(offset) for offset in store(core, a, *range(8))]
    assert len(set(slabs)) == 2
    assert all(slab is not None and slab.nbytes == 4 * PAGE for slab in slabs)
    assert core.lock(100 * PAGE) is None


def test_no_page_of_the_system_is_in_two_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With system pages of 64 KiB, as on a GH200, slabs begin and end at whole pages. A page in two
    slabs could be neither locked twice nor punched for one of them.
    """
    large = 1 << 16
    monkeypatch.setattr(space, "PAGE", large)
    core = Core(64 * large)
    for tenant, nbytes in (("a", 5000), ("b", 3 * large + 1), ("c", large)):
        member = core.join(Member(tenant, tenant.encode(), nbytes))
        for offset in store(core, member, *range(4)):
            slab = core.lock(offset)
            assert slab is not None and slab.offset % large == slab.nbytes % large == 0


def test_what_is_locked_is_punched_once_it_is_let_go_of() -> None:
    core = Core(BUDGET)
    a = join(core, "a")
    locked = lock_all(core, store(core, a, *range(12)))
    core.actions()
    core.resize(4 * PAGE)
    told, punched = done(core)
    assert len(told) == 8 and told < locked and punched == 0
    state = core.state()
    assert (state.used_bytes, state.owed_bytes, state.unused_bytes) == (BUDGET, 8 * PAGE, 8 * PAGE)
    for start in told:
        core.unlocked(start)
        core.unlocked(start)
    assert done(core) == (set(), 8 * PAGE)
    assert core.state().used_bytes == 4 * PAGE


def test_a_slab_of_another_size_opens_once_the_memory_is_there() -> None:
    """A slab for larger blocks needs memory of slabs that engines have locked. It is refused until
    these are unlocked; no further block is evicted meanwhile.
    """
    core = Core(BUDGET)
    a, b = join(core, "a"), join(core, "b", blocks=5)
    locked = lock_all(core, store(core, a, *range(12)))
    core.stand("a", PriorityClass.EVICTABLE)
    core.actions()
    assert store(core, b, 1) == store(core, b, 1) == []
    told, punched = done(core)
    assert told <= locked and punched == 0
    evicted = core.state().tenants["a"].counts.evictions
    assert evicted == len(told) == 5 and core.state().used_bytes == BUDGET
    for start in told:
        core.unlocked(start)
    offsets = store(core, b, 1)
    assert len(offsets) == 1 and core.state().tenants["a"].counts.evictions == evicted
    assert core.state().used_bytes <= BUDGET
    assert core.lock(offsets[0]) is not None


def test_a_block_of_its_own_size_still_gives_way_meanwhile() -> None:
    core = Core(BUDGET)
    a, b = join(core, "a"), join(core, "b", blocks=5)
    store(core, b, 1)
    lock_all(core, store(core, a, *range(7)))
    core.stand("a", PriorityClass.EVICTABLE)
    assert len(store(core, b, 2)) <= 1
    assert len(store(core, b, 3)) == 1


def test_offsets_of_a_closed_slab_are_nobodys_while_it_is_locked() -> None:
    core = Core(BUDGET)
    a = join(core, "a")
    offsets = store(core, a, *range(12))
    lock_all(core, offsets)
    core.resize(0)
    core.resize(BUDGET)
    assert store(core, a, 20) == [] and core.state().used_bytes == BUDGET
    core.unlocked(offsets[3])
    assert store(core, a, 21, 22) == [offsets[3]]


def test_a_slab_that_retires_is_not_locked_anew() -> None:
    core = Core(512 * PAGE)
    a = join(core, "a")
    offsets = store(core, a, *range(4))
    core.seek(a, "r", [Key(b"0")])
    locked = lock_all(core, offsets)
    core.actions()
    core.resize(0)
    assert done(core) == (locked, 0)
    assert core.lock(offsets[0]) is None
    core.unlocked(*locked)
    assert done(core) == (set(), 3 * PAGE)
    assert core.lock(offsets[0]) is None
    core.leave(a, "r")
    assert done(core) == (set(), PAGE) and core.state().used_bytes == 0


def test_what_nobody_has_locked_is_punched_at_once() -> None:
    core = Core(BUDGET)
    a = join(core, "a")
    for start in lock_all(core, store(core, a, *range(12))):
        core.unlocked(start)
    core.actions()
    core.resize(0)
    assert done(core) == (set(), BUDGET)
