"""Models of lost devices: where they go, and that nothing goes before it is elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.machines.seam import StaleEpoch
from mirage.machines.spread import SpreadModel, on_the_way, spread
from mirage.machines.tenure import Tenure

pytestmark = pytest.mark.pure

A = SpreadModel("a", ("left",), 40)
B = SpreadModel("b", ("right",), 40)
C = SpreadModel("c", ("left", "right"), 20)


def test_models_of_a_lost_device_go_where_room_is_most_pressure_first() -> None:
    models = [A, B, C, SpreadModel("d", ("left",), 40, pressure=3)]
    devices = ["right", "third", "fourth"]
    placed = spread(models, devices, {})
    assert placed == {"right": ("b", "c"), "third": ("a",), "fourth": ("d",)}
    assert spread([A, B, C], ["left", "right"], placed) == {"left": ("a", "c"), "right": ("b", "c")}
    assert spread([A, B], [], {}) == {}


def test_a_stray_stays_where_it_was_though_another_device_has_more_room() -> None:
    stray = SpreadModel("a", ("lost",), 40)
    assert spread([stray, B], ["right", "third"], {"right": ("a",)})["right"] == ("b", "a")


def test_of_strays_with_equal_pressure_the_largest_comes_first() -> None:
    small, large = SpreadModel("a", (), 10), SpreadModel("b", (), 60)
    assert spread([small, large], ["left", "right"], {}) == {"left": ("b",), "right": ("a",)}


names = st.sampled_from("abcdef")
devices = st.sampled_from(["d1", "d2", "d3"])
models = st.lists(
    st.builds(
        SpreadModel,
        names,
        st.lists(devices, min_size=1, unique=True).map(tuple),
        st.floats(1, 100),
        st.floats(0, 100),
    ),
    unique_by=lambda one: one.name,
)


@given(models, st.lists(devices, unique=True), st.lists(devices, unique=True))
def test_each_model_is_somewhere_and_stays(
    models: list[SpreadModel], there: list[str], later: list[str]
) -> None:
    first = spread(models, there, {})
    for model in models:
        at = [device for device in there if model.name in first[device]]
        assert bool(at) == bool(there)
        homes = [device for device in model.homes if device in there]
        assert set(at) == set(homes) or not homes
    assert spread(models, there, first) == first
    second = spread(models, later, first)
    for model in models:
        before = [d for d in later if model.name in first.get(d, ())]
        if before and not set(model.homes) & {*there, *later}:
            assert [d for d in later if model.name in second[d]] == before[:1]


@given(models, st.lists(devices, unique=True), st.data())
def test_nothing_goes_before_it_can_serve_elsewhere(
    models: list[SpreadModel], there: list[str], data: st.DataObject
) -> None:
    wanted = spread(models, there, {})
    told = data.draw(st.dictionaries(devices, st.dictionaries(names, st.booleans())))
    known = {model.name for model in models} if there else set()
    for device, target in on_the_way(wanted, told).items():
        assert set(wanted.get(device, ())) <= set(target)
        for name in set(told[device]) - set(target):
            at = [other for other in wanted if name in wanted[other]]
            assert name not in known or all(told.get(other, {}).get(name) for other in at)


def test_older_controllers_are_refused_and_the_lease_is_never_cut_short() -> None:
    tenure = Tenure(2, 10.0, now=0.0)
    with pytest.raises(StaleEpoch):
        tenure.obeys(1)
    tenure.obeys(2)
    tenure.obeys(4)
    with pytest.raises(StaleEpoch):
        tenure.obeys(3)
    tenure.renew(5.0, now=1.0)
    assert tenure.left_s(1.0) == 9.0
    tenure.renew(20.0, now=1.0)
    assert tenure.left_s(1.0) == 20.0
    assert tenure.left_s(30.0) == 0.0
