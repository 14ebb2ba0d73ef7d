"""Differences between two files of several devices: tenants that come, go and move, in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.placement.steps import MoveVerb
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.said import NO_STATE, NOTHING
from mirage.serve.machine.applied import AboveChange, machine_told
from mirage.serve.machine.change import MachineChange, machine_change, places_in
from mirage.serve.machine.first import TenantPlaced

pytestmark = pytest.mark.pure

DEVICES = ("x", "y", "z")
places = st.dictionaries(
    st.sampled_from("abcde"), st.sets(st.sampled_from(DEVICES), min_size=1).map(sorted)
)


def on_devices(wanted: dict[str, list[str]]) -> dict[str, frozenset[str]]:
    return {
        device: frozenset(name for name, at in wanted.items() if device in at) for device in DEVICES
    }


@given(places, places)
def test_the_way_leads_to_what_is_wanted_and_nobody_is_away_on_it(
    before: dict[str, list[str]], after: dict[str, list[str]]
) -> None:
    change = machine_change(on_devices(before), after)
    now = {device: set(names) for device, names in change.tenants.items()}
    assert set(change.added) == after.keys() - before.keys()
    assert set(change.removed) == before.keys() - after.keys()
    for step in change.steps:
        if step.verb is MoveVerb.START:
            now[step.device].add(step.model)
        elif step.verb is MoveVerb.STOP:
            now[step.device].remove(step.model)
        assert {name for names in now.values() for name in names} == after.keys()
    assert now == on_devices(after)
    assert machine_change(now, after).steps == ()
    assert {m: set(d) for m, d in change.after.devices.items()} == {
        m: {*d} for m, d in after.items()
    }


def test_tenants_that_stay_are_in_no_step() -> None:
    change = machine_change({"x": {"a"}, "y": {"a"}}, {"a": ("x", "y"), "b": ("x",)})
    assert (change.steps, change.added) == ((), ("b",))
    assert places_in(change.tenants) == {"a": ("x", "y"), "b": ("x",)}


def test_stand_ins_stay_while_their_tenants_do() -> None:
    present = {"x": {"a", "b"}, "y": {"a", "b", "c"}, "z": ()}
    stand_ins = {("a", "y"), ("b", "y")}
    change = machine_change(present, {"a": ("x",), "c": ("y",)}, stand_ins)
    assert (change.removed, change.steps) == (("b",), ())
    assert change.tenants == {"x": {"a"}, "y": {"a", "c"}, "z": set()}
    change = machine_change(present, {"a": ("y",), "b": ("z",), "c": ("y",)}, stand_ins)
    moves = [(step.verb, step.model, step.device) for step in change.steps]
    assert [m for m in moves if m[1] == "a"] == [
        (MoveVerb.DRAIN, "a", "x"),
        (MoveVerb.STOP, "a", "x"),
    ], "it is on y already, which is its own from now on"
    assert (MoveVerb.STOP, "b", "y") not in moves, "it serves until z does"


def told(*lines: str, **awaited: str) -> ApplyTold:
    return ApplyTold(
        applied=True,
        revision=7,
        added=(),
        changed=(),
        removed=(),
        roster=(),
        fitting=(),
        awaited=awaited,
        lines=lines,
    )


def whole(change: MachineChange, parts: dict[str, ApplyTold | None], *http: str) -> ApplyTold:
    decided = {name: TenantPlaced(("x",), "placed") for name in change.added}
    return machine_told(change, AboveChange(http), decided, parts, 3, dry_run=False)


def test_the_answer_has_the_lines_of_all_devices_and_who_is_awaited_where() -> None:
    change = machine_change({"x": {"a"}, "y": ()}, {"a": ("y",), "b": ("x",)})
    answer = whole(change, {"x": told("b: added", NO_STATE, b="ready"), "y": None})
    assert answer.lines == (
        "b: on x, placed",
        "x: b: added",
        "y: its server is away, and begins with that when it is back",
        "a: goes from x to y, and is there before it leaves",
    )
    assert answer.revision == 3 and answer.applied
    awaited = {name: (one.revision, one.awaited) for name, one in answer.devices.items()}
    assert awaited == {"x": (7, {"b": "ready", "a": "absent"}), "y": (0, {"a": "ready"})}


def test_who_moves_from_or_to_a_device_that_is_away_is_not_awaited() -> None:
    change = machine_change({"x": {"a", "b"}, "y": ()}, {"a": ("y",), "b": ("x",)})
    answer = machine_told(
        change,
        AboveChange((), ("placement.off",)),
        {},
        {"x": told("b: changed", b="ready"), "y": None},
        3,
        dry_run=True,
        away={"y"},
        label=lambda name: f"{name} on m",
    )
    assert answer.lines == (
        "x on m: b: changed",
        "y on m: its server is away, and begins with that when it is back",
        "a: would go from x to y, and is there before it leaves",
        "placement.off: would be changed, at once",
    )
    assert {name: one.awaited for name, one in answer.devices.items()} == {"x": {"b": "ready"}}
    assert answer.placement == ("placement.off",)


def test_nothing_is_said_in_one_line() -> None:
    answer = whole(machine_change({"x": {"a"}}, {"a": ("x",)}), {})
    assert (answer.applied, answer.lines, answer.devices) == (False, (NOTHING,), {})


def test_limits_of_clients_are_of_no_device() -> None:
    parts: dict[str, ApplyTold | None] = {"x": told("http.head_s, http.cors: changed, at once")}
    change = machine_change({"x": {"a"}}, {"a": ("x",)})
    answer = whole(change, parts, "http.head_s", "http.cors")
    assert answer.lines == ("http.head_s, http.cors: changed, at once",)
    assert (answer.applied, answer.http) == (True, ("http.head_s", "http.cors"))
