"""A value that depends on the time, and until when it holds."""

from __future__ import annotations

from math import inf
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Clocked(msgspec.Struct, Generic[T], frozen=True):
    """`value` holds before `valid_until` (seconds; inf for ever), unless something happens.

    What is made of several of them holds as long as the one that ends first. A tenant that was
    busy last at 3, of which so much is known that nothing else changes by itself before 7:

        active = Clocked(True, 3 + 2)       # it counts as active 2 seconds longer
        peak = Clocked(40, 7)               # then 40 is none of the recent maxima any more
        Clocked((active.value, peak.value), min(active.valid_until, peak.valid_until))
        # (True, 40) until 5: by then, or after an event, it is made anew
    """

    value: T
    valid_until: float = inf
