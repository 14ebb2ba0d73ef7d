"""Draining of a tenant that loses its turn, by setting or by the cost of the change."""

from __future__ import annotations

import pytest

from mirage.control.draining import Draining

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("costly", [True, False])
def test_a_setting_is_kept_whatever_it_costs(drain: bool, costly: bool) -> None:
    draining = Draining(drain, 2.0)
    assert draining.begins("a", 5.0, costly=costly) == drain
    assert draining.until is None


def test_by_cost_a_cheap_change_stops_at_once() -> None:
    draining = Draining("auto", 2.0)
    assert not draining.begins("a", 5.0, costly=False)
    assert draining.name is None


def test_by_cost_it_ends_when_the_change_has_become_cheap() -> None:
    draining = Draining("auto", 2.0)
    assert draining.begins("a", 5.0, costly=True)
    assert not draining.ends(5.1, costly=True)
    assert draining.ends(5.2, costly=False)
    assert draining.until is None


def test_others_wait_one_turn_more_at_most() -> None:
    draining = Draining("auto", 2.0)
    draining.begins("a", 5.0, costly=True)
    assert (draining.name, draining.until) == ("a", 7.0)
    assert draining.ends(7.0, costly=True)
