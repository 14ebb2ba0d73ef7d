"""Mean rate of a trace's requests, and the factor that scales its gaps to another rate. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mirage.workload.formats.request import TraceError

LARGEST_RATE = 1e6


def checked(rate: float) -> float:
    """`rate` in requests a second. Raises `TraceError` unless it is above 0 and at most
    `LARGEST_RATE`.
    """
    if not 0 < rate <= LARGEST_RATE:
        raise TraceError(
            f"rate {rate:g}: use requests a second, above 0 and at most {LARGEST_RATE:g}"
        )
    return rate


def time_scale(arrivals_s: Iterable[float], rate: float) -> float:
    """Factor for all gaps that results in `rate` requests a second on average.

    All gaps are multiplied by it, so bursts remain: the coefficient of variation of the gaps is
    unchanged. Raises `TraceError` if all gaps are 0 or there are none, and if `checked` refuses
    the rate.
    """
    own = mean_rate(arrivals_s)
    if own is None:
        raise TraceError(
            f"rate {rate:g}: the trace's requests all come at one time, with no gaps to "
            "stretch: leave the rate out"
        )
    return own / checked(rate)


def mean_rate(arrivals_s: Iterable[float]) -> float | None:
    """Requests a second of ascending arrivals; None if they are all at one time."""
    count, first, last = 0, 0.0, 0.0
    for count, last in enumerate(arrivals_s, start=1):
        first = last if count == 1 else first
    return (count - 1) / (last - first) if last > first else None
