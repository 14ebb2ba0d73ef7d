"""Arbiter that decides turns and memory together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from world import SHAPE

from mirage.config import (
    Config,
    DeviceSection,
    HostTier,
    Policy,
    SharingSection,
    TenantSection,
    TiersSection,
)
from mirage.control.arbiter import Arbiter
from mirage.geometry import footprint
from mirage.protocol import (
    PROTOCOL_VERSION,
    Allotment,
    EngineHoldings,
    Hello,
    Refusal,
    Report,
    Turn,
)

pytestmark = pytest.mark.pure


def alone(mode: str, drain: bool | str = "auto", below: int = 0) -> Arbiter:
    """An arbiter of the tenants a and b, to which no engine has connected."""
    tenants = [TenantSection(name=n, model=Path(n), share=50) for n in "ab"]
    config = Config(
        device=DeviceSection(memory=3400),
        tenants=tenants,
        sharing=SharingSection(mode=mode, turn_s=1.0, drain=drain),
        policy=Policy.MIRAGE,
        tiers=TiersSection(host=HostTier(bytes=below) if below else None),
    )
    return Arbiter.of(config)


def arbiter(mode: str, drain: bool | str = "auto", below: int = 0) -> Arbiter:
    made = alone(mode, drain, below)
    for name in "ab":
        made.joined(Hello(PROTOCOL_VERSION, name, 1, SHAPE, 0), 0.0)
    assert [type(m) for _, m in made.decide(0.0)] == [Allotment, Allotment]
    return made


def report(holds: bool, running: int = 0, growth: int = 0) -> Report:
    return Report(
        revision=1,
        holds_turn=holds,
        held_bytes=1700,
        layers_remapped=0,
        stream_slots=1,
        kv_extents=10,
        kv_used_extents=10 if running else 0,
        kv_usable_extents=10,
        kv_blocks=9,
        growth_extents=(10 if running else 0) + growth,
        running=running,
        layer_load_s=0.01,
        layer_compute_s=0.001,
    )


def test_spatial_sharing_sends_no_turns() -> None:
    made = arbiter("spatial")
    made.reported("a", report(True, running=1), 0.1)
    assert made.decide(0.1) == []


def test_one_that_comes_without_memory_for_its_layers_gets_the_least_at_once() -> None:
    """Engine `b` connects while `a` has borrowed its memory. It is first allotted the least that an
    engine needs, and more layers as `a` gives memory back.
    """
    tenants = [TenantSection(name=n, model=Path(n), share=50) for n in "ab"]
    made = Arbiter.of(Config(device=DeviceSection(memory=3400), tenants=tenants))
    made.controller.given_up("b")
    made.joined(Hello(PROTOCOL_VERSION, "a", 1, SHAPE, 0), 0.0)
    made.decide(0.0)
    made.reported("a", report(True, running=1, growth=10), 0.1)
    ((_, more),) = made.decide(0.1)
    assert isinstance(more, Allotment) and more.grant_bytes > 1700
    borrows = structs.replace(
        report(True, running=2), revision=2, held_bytes=more.grant_bytes, kv_extents=20
    )
    made.reported("a", structs.replace(borrows, kv_used_extents=20, growth_extents=20), 0.2)
    made.controller.awaited("b")
    least = footprint(SHAPE, 9, SHAPE.min_extents)
    made.joined(Hello(PROTOCOL_VERSION, "b", 2, SHAPE, least), 0.3)
    first, *later = [message for name, message in made.decide(0.3) if name == "b"]
    assert isinstance(first, Allotment)
    assert (first.layers_remapped, first.stream_slots, first.kv_extents) == (
        9,
        2,
        SHAPE.min_extents,
    )
    assert first.grant_bytes == least
    assert all(isinstance(one, Allotment) and one.layers_remapped < 9 for one in later)


def test_a_turn_is_given_confirmed_revoked_and_passed_on() -> None:
    made = arbiter("temporal")
    made.reported("a", report(False, running=1), 0.0)
    made.reported("b", report(False, running=1), 0.0)
    assert made.decide(0.0) == [("a", Turn(True))]
    made.reported("a", report(True, running=1), 0.1)
    assert made.decide(0.1) == []
    assert made.next_deadline(0.1) == 1.0
    assert made.decide(1.0) == [("a", Turn(False))]
    made.reported("a", report(True, running=1), 1.1)
    assert made.decide(1.1) == []
    made.reported("a", report(False, running=1), 1.2)
    assert made.decide(1.2) == [("b", Turn(True))]


def drained(drain: bool | str, used: int, below: int = 0) -> Arbiter:
    """An arbiter in turns of a second. Both tenants have work, `a` has the turn, and its requests
    use `used` extents.
    """
    made = arbiter("temporal", drain, below)
    for name in "ab":
        made.reported(name, report(False, running=1), 0.0)
    assert made.decide(0.0)[-1] == ("a", Turn(True))
    made.reported("a", structs.replace(report(True, running=1), kv_used_extents=used), 0.1)
    made.decide(0.1)
    return made


@pytest.mark.parametrize(
    ("drain", "used", "drains"),
    [(True, 10, True), (False, 31, False), ("auto", 10, False), ("auto", 31, True)],
)
def test_a_turn_drains_if_it_is_told_to_or_the_next_model_would_stream(
    drain: bool | str, used: int, drains: bool
) -> None:
    """The turn of `a` ends after a second. With "auto" it drains if its requests use 31 extents,
    which leave too little memory for the layers of `b`; with 10 extents it does not.
    """
    assert ("a", Turn(False, drains)) in drained(drain, used).decide(1.0)


@pytest.mark.parametrize("below", [0, 400])
def test_one_that_stops_is_told_what_its_requests_give_up(
    below: int,
) -> None:
    """Tenant `a` loses its turn without draining. The message says how many bytes of KV memory its
    suspended requests give up: all that the tier below has room for.
    """
    made = drained(False, 31, below)
    assert ("a", Turn(False, spill_bytes=below)) in made.decide(1.0)


def test_one_that_drains_is_told_so_when_it_shall_stop() -> None:
    made = drained("auto", 31, below=400)
    assert ("a", Turn(False, drain=True)) in made.decide(1.0)
    assert ("a", Turn(False, spill_bytes=400)) in made.decide(2.0)


def test_draining_by_cost_ends_once_the_change_is_cheap() -> None:
    made = drained("auto", 31)
    made.decide(1.0)
    assert made.next_deadline(1.0) == 2.0
    made.reported("a", structs.replace(report(True, running=1), kv_used_extents=31), 1.1)
    assert ("a", Turn(False)) not in made.decide(1.1)
    made.reported("a", report(True, running=1), 1.2)
    assert ("a", Turn(False)) in made.decide(1.2)
    made.reported("a", report(False, running=1), 1.3)
    assert ("b", Turn(True)) in made.decide(1.3)


def test_draining_by_cost_ends_after_another_turn() -> None:
    made = drained("auto", 31)
    made.decide(1.0)
    assert ("a", Turn(False)) not in made.decide(1.9)
    assert ("a", Turn(False)) in made.decide(2.0)
    assert ("a", Turn(False)) not in made.decide(2.1)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_death_ends_draining_by_cost(lost: str) -> None:
    """While `a` drains and `b` waits for its turn, one of both engines dies (`lost`). The turn
    passes to `b`, or `a` need not drain any more.
    """
    made = drained("auto", 31)
    made.decide(1.0)
    made.lost(lost, 1.1)
    decided = made.decide(1.1)
    assert (("b", Turn(True)) if lost == "a" else ("a", Turn(False))) in decided
    assert made.next_deadline(1.1) != 2.0


def complied(told: Allotment, used: int, *, holds: bool = False) -> Report:
    """Report of an engine that holds exactly its allotment and has one running request."""
    return structs.replace(
        report(holds, running=1),
        revision=told.revision,
        layers_remapped=told.layers_remapped,
        stream_slots=told.stream_slots,
        kv_extents=told.kv_extents,
        kv_used_extents=used,
        growth_extents=used + 2,
        held_bytes=told.grant_bytes,
    )


def returning(*, drain: bool = False) -> tuple[Arbiter, Allotment]:
    """An arbiter whose tenant `a` has lent layers to `b`. The turn of `b` has ended. Returned with
    it is the allotment that tells `b` to give memory back, which `b` has not done yet.
    """
    made = arbiter("temporal", drain=drain)
    made.reported("a", report(False), 0.0)
    made.reported("b", report(False, running=1, growth=20), 0.0)
    sent = dict(made.decide(0.0))
    lent = sent["a"]
    assert isinstance(lent, Allotment) and lent.layers_remapped == 6
    made.reported("a", complied(lent, used=2), 0.1)
    ((_, more), *_) = [m for m in made.decide(0.1) if m[0] == "b"]
    assert isinstance(more, Allotment)
    made.reported("b", complied(more, used=12, holds=True), 0.2)
    told = [message for name, message in [*made.decide(0.2), *made.decide(1.3)] if name == "b"]
    (less,) = [message for message in told if isinstance(message, Allotment)]
    made.reported("b", complied(more, used=12), 1.4)
    return made, less


def test_a_turn_begins_when_the_others_have_made_room_for_its_layers() -> None:
    made, less = returning()
    assert "a" not in dict(made.decide(1.4))
    made.reported("b", complied(less, used=12), 1.41)
    (_, back), last = [m for m in made.decide(1.41) if m[0] == "a"]
    assert isinstance(back, Allotment) and back.layers_remapped == 0
    assert last == ("a", Turn(True))


@pytest.mark.parametrize(("drain", "longer_s"), [(True, 6 * 0.01), (False, 0.0)])
def test_a_turn_that_drains_begins_requests_for_as_long_once_its_layers_are_back(
    drain: bool, longer_s: float
) -> None:
    """Six layers of 10 ms come back before the turn of `a` can step. If turns drain, the turn lasts
    that much longer.
    """
    made, less = returning(drain=drain)
    made.decide(1.4)
    made.reported("b", complied(less, used=12), 1.41)
    (_, back), _ = [m for m in made.decide(1.41) if m[0] == "a"]
    assert isinstance(back, Allotment)
    made.reported("a", complied(back, used=2, holds=True), 1.42)
    made.decide(1.42)
    assert made.sharing.next_deadline() == pytest.approx(1.4 + 1.0 + longer_s)


def test_a_turn_does_not_wait_for_who_has_done_all_that_it_was_told() -> None:
    """`b` has done what it was told, but its running requests use more memory than planned, so the
    layers of `a` find no room. The turn of `a` begins all the same.
    """
    made, told = returning()
    made.decide(1.4)
    decided: list[tuple[str, object]] = []
    for _ in range(2):  # what it was told, and what it is told because it cannot
        stuck = structs.replace(
            report(False, running=1),
            revision=told.revision,
            kv_extents=30,
            kv_used_extents=30,
            held_bytes=footprint(SHAPE, 0, 30),
        )
        made.reported("b", stuck, 1.41)
        decided = list(made.decide(1.41))
        told = next((m for n, m in decided if n == "b" and isinstance(m, Allotment)), told)
    assert decided[-1] == ("a", Turn(True))


def test_who_waits_for_its_turn_is_not_refused_what_it_will_ask_again() -> None:
    made, _ = returning()
    made.decide(1.4)
    targets = structs.replace(
        report(False, running=1, growth=200),
        revision=2,
        layers_remapped=6,
        kv_extents=2,
        kv_used_extents=2,
        held_bytes=700,
    )
    made.reported("a", targets, 1.41)
    assert not [m for _, m in made.decide(1.41) if isinstance(m, Refusal)]


def test_a_turn_begins_without_room_where_the_others_do_not_answer() -> None:
    made, _ = returning()
    made.decide(1.4)
    assert made.next_deadline(1.4) == pytest.approx(1.65)
    assert ("a", Turn(True)) not in made.decide(1.6)
    assert ("a", Turn(True)) in made.decide(1.66)
    assert ("a", Turn(True)) not in made.decide(1.67)


def test_a_turn_that_has_not_begun_passes_on_if_its_holder_dies() -> None:
    made, _ = returning()
    made.decide(1.4)
    made.lost("a", 1.5)
    assert ("b", Turn(True)) in made.decide(1.5)


def test_the_holder_gets_the_idle_kv_of_the_others() -> None:
    made = arbiter("temporal")
    made.reported("a", report(False, running=1, growth=6), 0.0)
    (name, allotment), last = made.decide(0.0)
    assert last == ("a", Turn(True))
    assert name == "b"
    assert isinstance(allotment, Allotment)
    assert (allotment.layers_remapped, allotment.kv_extents) == (0, 2)


def test_death_passes_the_turn_on_at_once() -> None:
    made = arbiter("temporal")
    for name in "ab":
        made.reported(name, report(False, running=1), 0.0)
    made.decide(0.0)
    made.lost("a", 0.5)
    assert made.decide(0.5) == [("b", Turn(True))]


def test_the_turn_of_one_that_is_killed_passes_on_and_its_memory_does_not() -> None:
    """Engine `a` is about to be killed (`ends`). Its turn passes to `b` at once; its memory becomes
    free only after `lost`. A late report of `a` changes nothing.
    """
    made = arbiter("temporal")
    for name in "ab":
        made.reported(name, report(False, running=1), 0.0)
    made.decide(0.0)
    free = made.controller.free_bytes
    made.ends("a", 0.5)
    made.reported("a", report(True, running=1), 0.5)
    assert made.decide(0.5) == [("b", Turn(True))]
    made.reported("b", report(True, running=1), 0.6)
    assert made.next_deadline(0.6) is None, "nobody waits for a turn"
    assert made.controller.free_bytes == free
    made.lost("a", 0.7)
    made.joined(Hello(PROTOCOL_VERSION, "a", 2, SHAPE, 0), 0.8)
    again = structs.replace(report(False, running=1), revision=0, held_bytes=0)
    made.reported("a", again, 0.9)
    assert made.next_deadline(0.9) == 1.5


def asleep(revision: int, *, holds: bool = False) -> Report:
    """Report of a sleeping tenant, which holds one extent and has given all its layers away."""
    told = report(holds)
    return structs.replace(told, revision=revision, held_bytes=50, layers_remapped=12, asleep=True)


@pytest.mark.parametrize("mode", ["spatial", "temporal"])
def test_one_that_sleeps_takes_no_part_and_lends_its_share(mode: str) -> None:
    made = arbiter(mode)
    told = made.sleeps("a", 1.0)
    (sleep,) = [message for _, message in told if isinstance(message, Allotment)]
    assert (
        sleep.asleep
        and sleep.grant_bytes == 50
        and (sleep.layers_remapped, sleep.stream_slots) == (12, 0)
    )
    assert made.controller.free_bytes == 0, "it has not obeyed yet"
    made.reported("a", asleep(sleep.revision), 1.1)
    assert made.controller.free_bytes == 1650
    made.reported("b", report(True, running=1, growth=30), 1.2)
    grown = [m for name, m in made.decide(1.2) if name == "b" and isinstance(m, Allotment)]
    assert grown[-1].grant_bytes > 1700
    made.controller.check(1.2)


def test_a_sleeper_gets_no_turn_and_its_own_passes_on_when_it_has_stopped() -> None:
    made = arbiter("temporal")
    for name in "ab":
        made.reported(name, report(False, running=1), 0.0)
    assert made.decide(0.0)[-1] == ("a", Turn(True))
    made.reported("a", report(True, running=1), 0.1)
    told = made.sleeps("a", 0.5)
    assert told[0] == ("a", Turn(False))
    made.reported("a", report(True, running=1), 0.6)
    assert ("b", Turn(True)) not in made.decide(0.6), "a step of it may be running"
    made.reported("a", asleep(2), 0.7)
    assert ("b", Turn(True)) in made.decide(0.7)
    assert not [m for name, m in made.decide(5.0) if name == "a"]


def test_a_turn_that_has_not_begun_is_not_told_to_one_that_sleeps() -> None:
    made, _ = returning()
    assert made.decide(1.4) == []
    made.sleeps("a", 1.5)
    later = [made.decide(1.5 + step / 10) for step in range(20)]
    assert not [m for told in later for name, m in told if name == "a"]


def test_one_that_wakes_begins_with_what_the_others_leave_it() -> None:
    made = arbiter("spatial")
    sleep = made.sleeps("a", 1.0)[-1][1]
    assert isinstance(sleep, Allotment)
    made.reported("a", asleep(sleep.revision), 1.1)
    made.reported("b", report(True, running=1, growth=30), 1.2)
    more = [m for name, m in made.decide(1.2) if name == "b"][-1]
    assert isinstance(more, Allotment)
    made.reported("b", complied(more, used=10, holds=True), 1.3)
    made.wakes("a", 2.0)
    told = made.decide(2.0)
    less = next(m for name, m in told if name == "b" and isinstance(m, Allotment))
    assert less.grant_bytes <= 1700, "the share is its own again"
    made.reported("b", complied(less, used=10, holds=True), 2.1)
    woken = [m for name, m in [*told, *made.decide(2.1)] if name == "a"]
    assert isinstance(woken[0], Allotment) and not woken[0].asleep
    assert woken[0].revision > sleep.revision and woken[0].kv_extents >= SHAPE.min_extents
    made.controller.check(2.0)


def test_one_that_wakes_does_not_wait_for_the_end_of_requests_that_borrow_its_share() -> None:
    made = arbiter("spatial")
    sleep = made.sleeps("a", 1.0)[-1][1]
    assert isinstance(sleep, Allotment)
    made.reported("a", asleep(sleep.revision), 1.1)
    held = report(True, running=1, growth=60)
    for step in range(4):  # b grows into all that there is, and its requests run on
        made.reported("b", held, 1.2 + step / 10)
        for name, more in made.decide(1.2 + step / 10):
            if name == "b" and isinstance(more, Allotment):
                grown = structs.replace(complied(more, more.kv_extents, holds=True), running=9)
                held = structs.replace(grown, growth_extents=80)
    made.reported("b", held, 1.9)
    assert held.held_bytes > 3400 - 200, "it sits on the share of a as well"
    made.wakes("a", 2.0)
    (less,) = [m for name, m in made.decide(2.0) if name == "b" and isinstance(m, Allotment)]
    assert less.recall and less.grant_bytes <= 1700
    made.reported("b", complied(less, less.kv_extents, holds=True), 2.1)
    assert [name for name, m in made.decide(2.1) if isinstance(m, Allotment)][:1] == ["a"]
    made.reported("b", complied(less, less.kv_extents, holds=True), 2.2)
    again = [m for name, m in made.decide(2.2) if name == "b" and isinstance(m, Allotment)]
    assert not any(m.recall for m in again), "nobody waits any more"


def test_a_sleeper_that_dies_holds_nothing() -> None:
    made = arbiter("temporal")
    made.sleeps("a", 1.0)
    made.lost("a", 1.1)
    assert made.controller.free_bytes == 1700
    made.joined(Hello(PROTOCOL_VERSION, "a", 1, SHAPE, 0), 2.0)
    assert [type(m) for name, m in made.decide(2.0) if name == "a"] == [Allotment]


# -- the book of loans -------------------------------------------------------------------

LENT = {("b", "a"): {"layers": 100, "KV memory": 400}}
"""Bytes that `b` has lent to `a`: a layer of `b`, and eight of its extents."""


def lent(made: Arbiter) -> dict[tuple[str, str], dict[str, int]]:
    book = made.loans.lent.items()
    return {pair: {one.kind.value: one.nbytes for one in each} for pair, each in book}


def lending() -> tuple[Arbiter, dict[str, Allotment]]:
    """An arbiter, and the allotments of both tenants after requests of `a` have grown by ten
    extents beyond its share.
    """
    made = arbiter("spatial")
    made.reported("b", report(True), 0.0)
    made.reported("a", report(True, running=1, growth=10), 1.0)
    (told,) = made.decide(1.0)
    made.reported("b", given(running=0), 2.0)
    return made, dict([told, *made.decide(2.0)])


def given(**counted: Any) -> Report:
    """Report of `b` after it has given away the memory that its allotment took."""
    held = {
        "revision": 2,
        "layers_remapped": 1,
        "held_bytes": 1200,
        "kv_extents": 2,
        "kv_usable_extents": 2,
    }
    return structs.replace(report(True), **held, **counted)


def test_what_a_plan_lends_is_in_the_book_with_what_it_costs() -> None:
    made, _ = lending()
    assert lent(made) == LENT
    made.reported("b", given(steps=10, tokens=20, stall_s=0.1), 3.0)
    sums = made.loans.totals(3.0)["b", "a"]
    assert sums.token_s == pytest.approx(0.2) and sums.lent_s == pytest.approx(2.0)


@pytest.mark.parametrize("leaves", ["a", "b"])
def test_who_is_gone_or_sleeps_lends_and_borrows_no_more(leaves: str) -> None:
    made, _ = lending()
    made.lost(leaves, 3.0)
    made.decide(3.0)
    assert lent(made) == {}
    made, _ = lending()
    made.sleeps(leaves, 3.0)
    made.decide(3.0)
    assert ("b", "a") not in lent(made)


def test_a_removed_tenant_leaves_no_sums() -> None:
    made, _ = lending()
    made.lost("b", 3.0)
    made.removed("b")
    assert not made.loans.totals(4.0)


def test_what_adopted_engines_lend_is_known_although_nobody_is_told_anything() -> None:
    before, told = lending()
    a, b = told["a"], told["b"]
    grown = {"revision": a.revision, "held_bytes": a.grant_bytes, "kv_extents": a.kv_extents}
    used = {"kv_used_extents": a.kv_extents, "kv_usable_extents": a.kv_extents}
    running = structs.replace(report(True, running=1), **grown, **used, growth_extents=20)
    made = alone("spatial")
    for name, holdings in (
        ("a", EngineHoldings(a, running)),
        ("b", EngineHoldings(b, given(running=0))),
    ):
        hello = Hello(PROTOCOL_VERSION, name, 1, SHAPE, holdings.report.held_bytes, holdings)
        made.joined(hello, 5.0)
    assert made.decide(5.0) == []
    assert lent(made) == lent(before) == LENT
    assert made.loans.totals(6.0)["b", "a"].lent_s == 1.0
