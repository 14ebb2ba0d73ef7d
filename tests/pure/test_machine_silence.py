"""All bounds of silence between machines follow from one key."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mirage.config import HttpSection
from mirage.control.machine_silence import MISSED_S, address_s, door_s
from mirage.machines.ray.node import SYSTEM

pytestmark = pytest.mark.pure


def test_the_default_has_the_bounds_that_were_measured() -> None:
    silent_s = HttpSection().silent_s
    assert (silent_s, door_s(silent_s), address_s(silent_s)) == (3, 2.0, 1.0)


@pytest.mark.parametrize("silent_s", range(2, 61))
def test_nothing_is_lost_before_the_bound(silent_s: int) -> None:
    assert HttpSection(silent_s=silent_s).silent_s == silent_s
    assert MISSED_S + address_s(silent_s) >= silent_s
    assert silent_s / 2 < door_s(silent_s) < silent_s


@pytest.mark.parametrize("silent_s", [0, 1, 61, 3.5, "never"])
def test_other_bounds_are_refused(silent_s: object) -> None:
    with pytest.raises(ValidationError):
        HttpSection.model_validate({"silent_s": silent_s})


def test_ray_misses_a_machine_when_we_believe_it_does() -> None:
    period_ms, count = SYSTEM["health_check_period_ms"], SYSTEM["health_check_failure_threshold"]
    assert period_ms * count == MISSED_S * 1000
