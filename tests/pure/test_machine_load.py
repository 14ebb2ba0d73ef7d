"""Load of models in windows, first places of tenants, and stand-ins for a lost device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_facts import make_facts

from mirage.config import Config, DeviceSection
from mirage.control.placement.facts import SOME_LOAD, LoadWindow, ModelLoad, PlacementFacts
from mirage.control.placement.placed import DevicePlacement, Stand
from mirage.control.placement.rules import DEFAULTS
from mirage.control.placement.steps import MoveStep, MoveVerb
from mirage.serve.admin.explained import explanation
from mirage.serve.admin.forms import WhyTold
from mirage.serve.machine.first import LEFT, FirstPlacement, Stays, first_placement, squeezed
from mirage.serve.machine.load import LoadHistory, SeenRequest
from mirage.serve.machine.model_facts import machine_facts, place_models
from mirage.serve.machine.move_book import DONE, FAILED, MoveBook, OneMove
from mirage.serve.machine.section import PlacementSection
from mirage.serve.machine.stand_ins import StandIns
from mirage.simulate.roofline import PS
from mirage.units import GIB, MIB

pytestmark = pytest.mark.pure


# -- load -----------------------------------------------------------------------------------------


def test_windows_end_now_and_the_newest_is_first() -> None:
    history = LoadHistory(100.0, 2, began=0.0)
    history.add(SeenRequest(t, "a", 10, 20) for t in (50.0, 60.0, 150.0, 160.0, 170.0))
    newest, older = (one.load for one in history.windows(200.0, {}))
    assert newest.of("a") == ModelLoad(0.03, 10.0, 20.0) and newest.seconds == 100
    assert older.of("a") == ModelLoad(0.02, 10.0, 20.0)
    assert history.windows(290.0, {})[1].load.requests("a") == pytest.approx(3), (
        "50 and 60 are over"
    )


def test_what_was_not_seen_as_a_whole_is_no_window_of_its_own() -> None:
    history = LoadHistory(100.0, 3, began=40.0)
    history.add([SeenRequest(90.0, "a", 10, 20)])
    (only,) = history.windows(100.0, {})
    assert only.seconds == 60 and only.load.requests("a") == pytest.approx(1)
    assert only.rows == {"a": [(50 * PS, 10, 20)]}, "since the window began"
    assert len(history.windows(239.0, {})) == 1 and len(history.windows(240.0, {})) == 2


def test_windows_of_another_length_begin_with_what_is_known() -> None:
    history = LoadHistory(50.0, 2, began=0.0)
    history.add(SeenRequest(t, "a", 10, 20) for t in (10.0, 150.0, 190.0))
    history.windows(200.0, {})
    history.ruled(100.0, 3, 200.0)
    (only,) = history.windows(250.0, {})
    assert only.seconds == 100 and only.load.requests("a") == pytest.approx(2), "10 was forgotten"
    assert len(history.windows(299.0, {})) == 1 and len(history.windows(300.0, {})) == 2
    history.ruled(20.0, 1, 300.0)
    (only,) = history.windows(300.0, {})
    assert only.seconds == 20 and only.rows == {}


def test_requests_that_run_count_as_long_as_their_models_others() -> None:
    history = LoadHistory(100.0, 1, began=0.0)
    history.add([SeenRequest(50.0, "a", 10, 20), SeenRequest(51.0, "a", 30, 40)])
    (window,) = history.windows(100.0, {"a": 2, "b": 0, "new": 1}, {"a", "gone"})
    assert window.load.of("a") == ModelLoad(0.04, 20.0, 30.0)
    assert window.load.requests("new") == 1 and window.load.of("new").tokens > 0
    assert window.load.of("gone") == SOME_LOAD, "nobody has seen who asks for it"
    assert [at // PS for at, _, _ in window.rows["a"]] == [25, 50, 51, 75], "evenly"
    assert "b" not in window.rows


# -- the first placement --------------------------------------------------------------------------


def placed_first(
    shares: dict[str, float | str], left: dict[str, tuple[str, ...]], **pins: str
) -> FirstPlacement:
    return first_placement(world(shares, **pins), Stays(left, LEFT), DEFAULTS)


def world(shares: dict[str, float | str], **pins: str) -> PlacementFacts:
    """Facts of two devices of 100 MiB and models of 9 MiB. `shares` has each tenant's share, `pins`
    the device to which a tenant is bound.
    """
    tenants = [
        {"name": n, "model": "/m", "share": s, "max_model_len": 100} for n, s in shares.items()
    ]
    config = Config.model_validate({"device": {"memory": "100MiB"}, "tenants": tenants})
    devices = {name: DeviceSection(memory=100 * MIB) for name in ("x", "y")}
    named = {name: (pins[name],) if name in pins else () for name in shares}
    told = dict.fromkeys(shares, make_facts())
    models = place_models(config, told, devices, PlacementSection(), named)
    return machine_facts(devices, GIB, models)


def test_models_are_apart_where_they_do_not_fit_together_and_named_ones_stay() -> None:
    found = placed_first({"a": 60, "b": 60, "c": 30}, {}, a="y").places
    assert found["a"].devices == ("y",) and found["a"].why == "named in the file"
    assert found["b"].devices == ("x",) and found["c"].devices in (("x",), ("y",))


def test_engines_that_were_left_are_where_they_are() -> None:
    shares: dict[str, float | str] = {"a": 30, "b": 30}
    for device in ("x", "y"):
        found = placed_first(shares, {"a": (device,), "b": (device,)}).places
        assert found["a"].devices == found["b"].devices == (device,)
        assert "has left its engine there" in found["a"].why


def test_what_fits_nowhere_comes_and_goes_where_most_is_free() -> None:
    found = placed_first({"a": 70, "b": 60, "c": 50}, {}).places
    assert {len(one.devices) for one in found.values()} == {1}
    (why,) = [one.why for one in found.values() if one.why != "placed"]
    assert why == "it fits nowhere beside the others: tenants come and go there"


def test_a_model_is_known_by_its_share_and_by_what_vllm_says() -> None:
    one = world({"a": 50, "b": "auto"}).model
    assert one["a"].least == 50 * MIB and one["a"].parameters == 9 * MIB
    assert 9 * MIB < one["b"].least < 12 * MIB, "auto: parameters and one request"
    assert one["a"].kv_token_bytes == 4096 * 128 / 100, "whole blocks of the longest request"


# -- what moves -----------------------------------------------------------------------------------

START = MoveStep(MoveVerb.START, "a", "y", "it is hot")
ROUTE = MoveStep(MoveVerb.ROUTE, "a", "y", "both serve it")
HERE = DevicePlacement.of_names({"a": ["x"]})


def test_a_stand_in_is_over_when_another_device_serves_its_model() -> None:
    both = HERE.put("a", "y")
    standing = StandIns()
    standing.begin([START], gone=["b"])
    assert standing.over(both, lambda model, device: True) == [], "it was not lost"
    standing.begin([START, ROUTE], gone=["a"])
    assert standing.models == {"a"}
    assert standing.over(both, lambda model, device: device == "y") == []
    assert standing.over(both, lambda model, device: True) == [("a", "y")]
    assert standing.over(both, lambda model, device: True) == [], "once"
    standing.begin([START], gone=["a"])
    assert standing.over(HERE, lambda model, device: True) == []
    assert standing.over(both, lambda model, device: True) == [], "it has gone by itself"


def test_a_new_controller_knows_stand_ins_by_the_devices_that_models_name() -> None:
    present = DevicePlacement.of_names({"a": ["x", "y"], "b": ["y"], "c": ["y"]})
    standing = StandIns()
    standing.found(present, {"a": ("x",), "b": ("y",), "c": ()})
    assert standing.over(present, lambda model, device: True) == [("a", "y")]


def test_a_stand_in_on_a_device_that_its_model_names_by_now_is_none() -> None:
    both, standing = HERE.put("a", "y"), StandIns()
    standing.begin([START], gone=["a"])
    standing.named({"a": ("x",)})
    assert standing.places == {("a", "y")}
    standing.named({"a": ("y", "x")})
    assert standing.over(both, lambda model, device: True) == [] and not standing.places


def test_what_fits_nowhere_goes_where_most_is_free_most_asked_first() -> None:
    facts = world({"a": 90.0, "b": 90.0, "c": 60.0, "d": 60.0})
    loads = {"c": SOME_LOAD, "d": ModelLoad(3.0, 10.0, 10.0)}
    facts = replace(facts, windows=(LoadWindow(60.0, loads),))
    first, second = (one.name for one in facts.devices)
    present = DevicePlacement.of_names({"a": [first]})
    placement, steps = squeezed(facts, present, ["a", "c", "d", "gone"])
    assert [(step.verb, step.model) for step in steps] == [
        (verb, name) for name in "dc" for verb in (MoveVerb.START, MoveVerb.ROUTE)
    ]
    assert placement.of("d") == {second: Stand.ASLEEP} and placement.of("a") == present.of("a")
    assert set(placement.of("c")) <= {first, second} and not placement.awake("c")


def test_a_move_is_told_with_its_steps_and_how_they_went() -> None:
    book = MoveBook()
    for fails in (False, True):
        move = OneMove(HERE, HERE.put("a", "y"), (START, ROUTE), "it pays")
        book.begins(move)
        move.begins(0)
        if fails:
            move.failed(0, "y is away", "y is as it was")
            move.leaves_out(1, "start a on y was not done")
        else:
            move.is_done(0, "")
            move.begins(1)
            move.is_done(1, "")
        move.ends()
        book.ends(move)
    assert book.results == {DONE: 1, FAILED: 1}
    assert book.told("b", 0.0) == [] and len(book.told("a", 0.0)) == len(book.told(None, 0.0)) == 2
    told = WhyTold(
        t=0.0,
        began=0.0,
        since=0.0,
        moves=[],
        loans=[],
        next_skip=None,
        placements=book.told(None, 0.0),
        stays="nothing that was found is better",
        sockets={"x": "/x"},
    )
    lines = explanation(told).splitlines()
    assert lines[0].endswith(" UTC, done: it pays")
    assert lines[1] == "  a: x -> x, y"
    assert lines[2].startswith("  1. start a on y, done in 0.0 s: it is hot") or (
        lines[2] == "  1. start a on y, done: it is hot"
    )
    assert "  1. start a on y, failed" in lines[6] and lines[6].endswith("(y is away): it is hot")
    left_out = "left out (start a on y was not done)"
    assert lines[7] == f"  2. route a on y, {left_out}: both serve it"
    assert lines[8] == "  way back: y is as it was"
    assert lines[9:] == [
        "last decision: nothing that was found is better",
        "memory on x: mirage why --socket /x",
    ]
