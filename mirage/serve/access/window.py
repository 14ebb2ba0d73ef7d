"""Sum of amounts, such as requests or tokens, in a sliding window. Each amount counts for a minute
or for a time of its own. Pure: the caller tells the time, in seconds of any clock.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from operator import attrgetter

LENGTH_S = 60.0


@dataclass(eq=False)
class WindowBooking:
    """Amount, and the time until which it counts."""

    amount: int
    until: float


class RateWindow:
    """Sum of the amounts that count now. Calls have to come in the order of their times."""

    def __init__(self) -> None:
        self._bookings: list[WindowBooking] = []
        self._total = 0

    def wait_s(self, amount: int, limit: int, now: float) -> float:
        """Seconds until `amount` more is within `limit`; 0 if it is now.

        Raises `ValueError` if `amount` alone exceeds `limit`.
        """
        self._forget(now)
        over = self._total + amount - limit
        if over <= 0:
            return 0.0
        for booking in self._bookings:
            over -= booking.amount
            if over <= 0:
                return booking.until - now
        raise ValueError(f"{amount} is more than {limit}")

    def book(self, amount: int, now: float, seconds: float = LENGTH_S) -> WindowBooking:
        """Count `amount` for `seconds` seconds from `now`; returns the booking."""
        booking = WindowBooking(amount, now + seconds)
        if not self._bookings or self._bookings[-1].until <= booking.until:
            self._bookings.append(booking)  # as nearly always
        else:
            insort(self._bookings, booking, key=attrgetter("until"))
        self._total += amount
        return booking

    def lower(self, booking: WindowBooking, amount: int, now: float) -> None:
        """Correct a booking to `amount`, if it still counts."""
        self._forget(now)
        if booking.until > now:
            self._total += amount - booking.amount
            booking.amount = amount

    def _forget(self, now: float) -> None:
        if self._bookings and self._bookings[0].until <= now:
            gone = bisect_right(self._bookings, now, key=attrgetter("until"))
            self._total -= sum(booking.amount for booking in self._bookings[:gone])
            del self._bookings[:gone]
