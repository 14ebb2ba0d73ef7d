"""Load of all models in windows of time, from ended and from running requests. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from mirage.control.placement.facts import SOME_LOAD, ModelLoad
from mirage.simulate.fleet.load_log import SentRow, WindowRows, mean_load
from mirage.simulate.roofline import PS


class SeenRequest(NamedTuple):
    """Request that has ended. `t` is its arrival, in seconds since 1970."""

    t: float
    model: str
    prompt: int
    """Number of prompt tokens."""
    output: int
    """Number of output tokens."""


class LoadHistory:
    """Ended requests of the last windows. Times are seconds."""

    def __init__(self, window_s: float, windows: int, began: float) -> None:
        """`began` is the time from which on requests are known, in seconds since 1970."""
        self._window_s, self._count, self._began = window_s, windows, began
        self._seen: deque[SeenRequest] = deque()

    def ruled(self, window_s: float, windows: int, now: float) -> None:
        """Use `windows` windows of `window_s` seconds from `now` on. Requests that are older than
        the former windows are not known any more.
        """
        self._began = max(self._began, now - self._window_s * self._count)
        self._window_s, self._count = window_s, windows

    def add(self, requests: Iterable[SeenRequest]) -> None:
        """Add requests of clients that have ended."""
        self._seen += requests

    def windows(
        self, now: float, open_now: Mapping[str, int], unseen: Collection[str] = ()
    ) -> tuple[WindowRows, ...]:
        """Windows up to `now`, the newest first as number 0; at least one. Older ones are left out
        if requests are not known for their whole length.

        `open_now` are numbers of waiting and running requests by model: they are added to the
        newest window, spread evenly, with the mean lengths of their model's ended requests. Models
        in `unseen` without any request get `SOME_LOAD` in that window.
        """
        first = max(self._began, now - self._window_s * self._count)
        self._seen = deque(one for one in self._seen if one.t >= first)
        found = []
        for number in range(self._count):
            end = now - number * self._window_s
            begin = max(self._began, end - self._window_s)
            if number and end - begin < self._window_s:
                break  # it was not seen as a whole
            some = [
                one for one in self._seen if begin <= one.t < end or (not number and one.t >= end)
            ]
            rows, seconds = _rows(some, begin), max(1.0, end - begin)
            if not number:
                self._add_open(rows, open_now, seconds)
                for model in unseen:
                    if model not in rows:
                        rows[model] = _evenly(SOME_LOAD, SOME_LOAD.arrivals_s * seconds, seconds)
            found.append(WindowRows(number, seconds, rows))
        return tuple(found)

    def _add_open(
        self, rows: dict[str, list[SentRow]], open_now: Mapping[str, int], seconds: float
    ) -> None:
        seen = _rows(self._seen, self._began)
        for model, count in open_now.items():
            if count:
                mean = mean_load(seen[model], 1.0) if model in seen else SOME_LOAD
                more = _evenly(mean, count, seconds)
                rows[model] = sorted([*rows.get(model, ()), *more])


def _rows(requests: Iterable[SeenRequest], begin: float) -> dict[str, list[SentRow]]:
    """Requests of each model in order of arrival, with picoseconds since `begin`."""
    rows: dict[str, list[SentRow]] = {}
    for one in sorted(requests):
        at = round((one.t - begin) * PS)
        rows.setdefault(one.model, []).append((at, one.prompt, one.output))
    return rows


def _evenly(load: ModelLoad, count: float, seconds: float) -> list[SentRow]:
    """`count` requests, rounded and at least one, with the mean lengths of `load`, spread evenly
    over `seconds`."""
    number = max(1, round(count))
    every, prompt, output = seconds / number, round(load.tokens_in), round(load.tokens_out)
    return [(round((place + 0.5) * every * PS), prompt, output) for place in range(number)]
