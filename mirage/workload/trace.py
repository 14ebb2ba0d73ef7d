"""Traces: requests with arrivals and lengths, read from a file of any known format.

The formats are in `mirage/workload/formats`. Rows are streamed, so a file of tens of millions of
rows is never held in memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from mirage.workload.formats import registry
from mirage.workload.formats.arrivals import poisson
from mirage.workload.formats.contract import Format
from mirage.workload.formats.request import MAX_TOKENS, EndlessTrace, TraceError, TraceRequest
from mirage.workload.formats.source import Source
from mirage.workload.rates import LARGEST_RATE, checked

__all__ = [
    "AS_IT_SAYS",
    "LARGEST_RATE",
    "MAX_TOKENS",
    "EndlessTrace",
    "Reading",
    "TraceError",
    "TraceRequest",
    "has_arrivals",
    "parse_window",
    "read",
    "scaled",
    "select",
    "stream",
]


@dataclass(frozen=True)
class Reading:
    """Options for reading a trace's file: its format, the rate and the seed for arrivals and
    lengths that it lacks, and whether an endless trace may be read."""

    format: str | None = None
    """Name in `registry.FORMATS`; None: recognised by the file's beginning."""
    rate: float | None = None
    """Requests a second for a format without arrivals, which are then drawn (Poisson)."""
    seed: int = 0
    """Seed of drawn arrivals and lengths, and of synthetic traces without a seed of their own."""
    bounded: bool = False
    """True if the caller takes only a part of the requests, so that an endless trace may be
    read.
    """


AS_IT_SAYS = Reading()


def read(
    path: Path, how: Reading = AS_IT_SAYS, skipped: Counter[str] | None = None
) -> Generator[TraceRequest, None, None]:
    """The requests of a file in order, one at a time, read by the options in `how`. The file stays
    open until the generator is closed.

    Rows that are no requests, such as failed ones, are left out and counted in `skipped`, by
    reason. Raises `TraceError` for a file that cannot be read, is of no known format or has no
    requests, a malformed row, a length that is not between 1 and `MAX_TOKENS`, time that goes
    backwards, and a rate that is missing or not accepted.
    """
    try:
        named = how.format is not None
        with Source(path, skipped, seed=how.seed, bounded=how.bounded, named=named) as source:
            requests = _requests(source, how)
            first = next(requests, None)
            if first is None:
                raise TraceError(f"{path}: no row is a request ({_reasons(source.skipped)})")
            yield from chain([first], requests)
    except OSError as error:
        raise _unreadable(path, error) from None


def select(
    path: Path,
    window: tuple[float, float] | None = None,
    limit: int | None = None,
    how: Reading = AS_IT_SAYS,
    skipped: Counter[str] | None = None,
) -> list[TraceRequest]:
    """All requests in a list that `stream` yields for the same arguments."""
    return list(stream(path, window, limit, how, skipped))


def stream(
    path: Path,
    window: tuple[float, float] | None = None,
    limit: int | None = None,
    how: Reading = AS_IT_SAYS,
    skipped: Counter[str] | None = None,
) -> Iterator[TraceRequest]:
    """The requests that arrive in ``window[0] <= t < window[1]`` seconds, at most `limit` of them,
    read as by `read`.

    Arrivals count from the window's start. Raises `TraceError` as `read` does, and for a window in
    which no request arrives.
    """
    bounded = how.bounded or window is not None or limit is not None
    requests = read(path, replace(how, bounded=bounded), skipped)
    if window is None:
        yield from islice(requests, limit)
        return
    start, end = window
    chosen = islice(_inside(requests, start, end), limit)
    first = next(chosen, None)
    if first is None:
        raise TraceError(
            f"{path}: no request arrives from {start:g} to {end:g} s: "
            f"{_length(path, how)}choose another window"
        )
    yield first
    yield from chosen


def scaled(request: TraceRequest, time_scale: float, length_scale: float) -> TraceRequest:
    """The request with its arrival times `time_scale` and its lengths times `length_scale`, at
    least 1 token each.

    Hashes and texts are not changed.
    """
    return replace(
        request,
        arrival_s=request.arrival_s * time_scale,
        context_tokens=max(1, round(request.context_tokens * length_scale)),
        output_tokens=max(1, round(request.output_tokens * length_scale)),
    )


def parse_window(text: str) -> tuple[float, float]:
    """Start and end in seconds of a window ``"60:120"``. Raises `TraceError` if it is invalid."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*:\s*(\d+(?:\.\d+)?)\s*", text, re.ASCII)
    if not match:
        raise TraceError(f"window {text!r}: write START:END in seconds of the trace, as 60:120")
    start, end = float(match[1]), float(match[2])
    if not start < end:
        raise TraceError(f"window {text!r}: it ends before it starts, write START:END")
    return start, end


def has_arrivals(path: Path, how: Reading = AS_IT_SAYS) -> bool:
    """True if the format of a file, recognised or named in `how`, has arrivals. Raises `TraceError`
    if the file cannot be read or its format is not known.

    Do not call it for a pipe: it would consume the beginning.
    """
    try:
        with Source(path, None, seed=how.seed, bounded=True) as source:
            return _form(source, how).has_arrivals
    except OSError as error:
        raise _unreadable(path, error) from None


def _form(source: Source, how: Reading) -> Format:
    return registry.named(how.format) if how.format else registry.of(source)


def _requests(source: Source, how: Reading) -> Iterator[TraceRequest]:
    form = _form(source, how)
    requests = form.read(source)
    if form.has_arrivals:
        if how.rate is not None:
            raise TraceError(
                f"{source.path}: {form.name} has arrivals of its own: leave the rate out, "
                "a time scale changes them"
            )
        return requests
    if how.rate is None:
        raise TraceError(
            f"{source.path}: {form.name} has no arrivals: give a rate in requests a second "
            "(`--rate` of mirage replay, or workload.rate of an experiment)"
        )
    return poisson(requests, checked(how.rate), how.seed)


def _unreadable(path: Path, error: OSError) -> TraceError:
    known = "; `mirage traces list` has the names of traces" if len(path.parts) == 1 else ""
    return TraceError(f"{path}: cannot be read ({error.strerror}{known})")


def _length(path: Path, how: Reading) -> str:
    """Seconds from a trace's start to its last arrival, as words for a message; empty for an
    endless trace, and for a pipe, which cannot be read again.
    """
    if not path.is_file():
        return ""
    try:
        last = max(request.arrival_s for request in read(path, replace(how, bounded=False)))
    except TraceError:  # it has no end
        return ""
    return f"the trace is {last:.1f} s long, "


def _inside(requests: Iterable[TraceRequest], start: float, end: float) -> Iterator[TraceRequest]:
    for request in requests:
        if request.arrival_s >= end:
            return
        if request.arrival_s >= start:
            yield replace(request, arrival_s=request.arrival_s - start)


def _reasons(skipped: Counter[str]) -> str:
    return ", ".join(f"{why}: {count:,}" for why, count in skipped.items())
