"""Load of all models in windows of time, from requests that have ended and those that run. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mirage.control.placement.facts import SOME_LOAD, LoadWindow, ModelLoad


class SeenRequest(NamedTuple):
    """One request that has ended. `t` is the time of its arrival in seconds."""

    t: float
    model: str
    prompt: int
    """Tokens."""
    output: int
    """Tokens."""


class LoadHistory:
    """Requests of the last windows."""

    def __init__(self, window_s: float, windows: int, began: float) -> None:
        """It knows of requests that arrived after `began` alone."""
        self._window_s, self._count, self._began = window_s, windows, began
        self._seen: deque[SeenRequest] = deque()

    def add(self, requests: Iterable[SeenRequest]) -> None:
        """These have ended."""
        self._seen += requests

    def windows(self, now: float, open_now: Mapping[str, int]) -> tuple[LoadWindow, ...]:
        """Windows up to `now`, the newest first; at least one.

        Requests that are `open_now` wait or run: they count in the newest window, as long as
        their model's others.
        """
        first = max(self._began, now - self._window_s * self._count)
        self._seen = deque(one for one in self._seen if one.t >= first)
        means = _loads(self._seen, 1.0)
        found = []
        for number in range(self._count):
            end = now - number * self._window_s
            begin = max(self._began, end - self._window_s)
            if number and end - begin < self._window_s:
                break  # it was not seen as a whole
            some = [
                one for one in self._seen if begin <= one.t < end or (not number and one.t >= end)
            ]
            some += _as_long(open_now, means, now) if not number else []
            found.append(LoadWindow(max(1.0, end - begin), _loads(some, max(1.0, end - begin))))
        return tuple(found)


def _as_long(
    open_now: Mapping[str, int], means: Mapping[str, ModelLoad], now: float
) -> list[SeenRequest]:
    return [
        SeenRequest(now, model, round(mean.tokens_in), round(mean.tokens_out))
        for model, count in open_now.items()
        for mean in [means.get(model, SOME_LOAD)]
        for _ in range(count)
    ]


def _loads(requests: Iterable[SeenRequest], seconds: float) -> dict[str, ModelLoad]:
    sums: dict[str, tuple[int, int, int]] = {}
    for one in requests:
        count, prompt, output = sums.get(one.model, (0, 0, 0))
        sums[one.model] = (count + 1, prompt + one.prompt, output + one.output)
    return {
        model: ModelLoad(count / seconds, prompt / count, output / count)
        for model, (count, prompt, output) in sums.items()
    }
