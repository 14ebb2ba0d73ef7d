"""A value together with the time until which it is valid."""

from __future__ import annotations

from math import inf
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Clocked(msgspec.Struct, Generic[T], frozen=True):
    """A `value` that is valid before the time `valid_until` (seconds; inf for ever), unless an
    event changes it.

    A value made of several is valid until the first of them ends. Example: a tenant had work last
    at second 3 and counts as active for 2 seconds more; its recent peak of 40 is valid until 7:

        active = Clocked(True, 3 + 2)
        peak = Clocked(40, 7)
        Clocked((active.value, peak.value), min(active.valid_until, peak.valid_until))
        # (True, 40) is valid until 5; it is made anew then, or after an event
    """

    value: T
    valid_until: float = inf
