"""Amounts that count for a minute from when they were taken. Pure; seconds of any clock."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from operator import attrgetter

LENGTH_S = 60.0


@dataclass(eq=False)
class WindowBooking:
    """An amount, and until when it counts."""

    amount: int
    until: float


class RateWindow:
    """Sum of the amounts of the last minute. Calls come in the order of their times."""

    def __init__(self) -> None:
        self._bookings: list[WindowBooking] = []
        self._total = 0

    def wait_s(self, amount: int, limit: int, now: float) -> float:
        """Seconds until `amount` more, which is at most `limit`, is within it; 0 if it is now."""
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
        """Count `amount` for `seconds` seconds."""
        booking = WindowBooking(amount, now + seconds)
        if not self._bookings or self._bookings[-1].until <= booking.until:
            self._bookings.append(booking)  # as nearly always
        else:
            insort(self._bookings, booking, key=attrgetter("until"))
        self._total += amount
        return booking

    def lower(self, booking: WindowBooking, amount: int, now: float) -> None:
        """The booking was but `amount`, as is known now."""
        self._forget(now)
        if booking.until > now:
            self._total += amount - booking.amount
            booking.amount = amount

    def _forget(self, now: float) -> None:
        if self._bookings and self._bookings[0].until <= now:
            gone = bisect_right(self._bookings, now, key=attrgetter("until"))
            self._total -= sum(booking.amount for booking in self._bookings[:gone])
            del self._bookings[:gone]
