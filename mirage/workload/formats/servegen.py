"""ServeGen: statistics of one client's requests to a production service, in windows of ten minutes.

A file ``…-trace.csv`` has no header. A row is the beginning of a window in seconds, requests a
second, their coefficient of variation, and the law of their gaps: ``Gamma`` or ``Weibull`` with
shape and scale, or nothing in a window without requests. A file ``…-dataset.json`` beside it has
the lengths: for some windows, each valid until the next one, the frequency of each number of prompt
tokens and of output tokens. Without it lengths are drawn from ShareGPT's distribution. Requests are
drawn from the seed, a window at a time.
"""

from __future__ import annotations

import ast
import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from mirage.workload import drawing
from mirage.workload.formats.contract import Format
from mirage.workload.formats.head import Head
from mirage.workload.formats.request import MAX_TOKENS, TraceError, TraceRequest
from mirage.workload.formats.source import Source
from mirage.workload.lengths import Lengths, lengths

WINDOW_S = 600.0
"""Seconds of a window that is the only one; otherwise the last window is as long as the one before
it.
"""
LAWS = ("", "Gamma", "Weibull")
FIELDS = 6
TRACE, DATASET = "-trace.csv", "-dataset.json"
LENGTHS = "sharegpt"
MOST_RATE = 1e6
Drawn = tuple[list[int], list[float]]
"""Numbers of tokens in ascending order, and the cumulative frequency of each."""


class ClientWindow(NamedTuple):
    """Requests of one client from `begin_s` seconds on."""

    begin_s: float
    rate: float
    """Requests a second."""
    law: str
    shape: float

    def gap(self, rng: random.Random) -> float:
        """A gap between two requests, in an arbitrary unit."""
        if self.law == "Gamma":
            return rng.gammavariate(self.shape, 1.0)
        return rng.weibullvariate(1.0, self.shape)


def _fits(head: Head) -> bool:
    fields = head.line.split(",")
    return len(fields) == FIELDS and fields[3] in LAWS and fields[0].isdigit()


def _read(source: Source) -> Iterator[TraceRequest]:
    rng, tokens = random.Random(f"servegen {source.seed}"), _lengths(source)
    windows = _windows(source)
    first = next(windows, None)
    if first is None:
        raise TraceError(f"{source.path}: holds no windows: nothing to replay")
    for window, end_s in _with_ends(first, windows):
        for arrival_s in _arrivals(window, end_s, rng):
            prompt, output = tokens.draw(window.begin_s, rng)
            yield TraceRequest(arrival_s - first.begin_s, prompt, output)


def _with_ends(
    first: ClientWindow, others: Iterator[ClientWindow]
) -> Iterator[tuple[ClientWindow, float]]:
    window, length = first, WINDOW_S
    for other in others:
        length = other.begin_s - window.begin_s
        yield window, other.begin_s
        window = other
    yield window, window.begin_s + length


def _arrivals(window: ClientWindow, end_s: float, rng: random.Random) -> Iterator[float]:
    """Arrivals in seconds. Their number follows the rate on average, and the gaps fill the
    window.
    """
    count = int(window.rate * (end_s - window.begin_s) + rng.random())
    if not count:
        return
    gaps = [window.gap(rng) for _ in range(count + 1)]
    scale = (end_s - window.begin_s) / (sum(gaps) or 1.0)
    time = window.begin_s
    for gap in gaps[:-1]:
        time += gap * scale
        yield min(time, end_s)


def _windows(source: Source) -> Iterator[ClientWindow]:
    last = -1.0
    for where, line in source.lines():
        window = _window(line, where)
        if window.begin_s <= last:
            raise TraceError(f"{where}: time goes back to {window.begin_s:g} s: sort the rows")
        last = window.begin_s
        yield window


def _window(line: str, where: str) -> ClientWindow:
    fields = line.split(",")
    try:
        begin, rate, _, law, shape, _ = fields
        window = ClientWindow(float(begin), float(rate), law, float(shape))
        fine = law in LAWS and 0 <= window.rate <= MOST_RATE and window.begin_s >= 0
        if not fine or (window.rate > 0 and (not law or not 0 < window.shape < MOST_RATE)):
            raise ValueError
    except ValueError:
        raise TraceError(
            f"{where}: found {line[:80]!r}, expected seconds, requests a second, their variation, "
            "Gamma or Weibull, and two numbers"
        ) from None
    return window


class TokenLengths:
    """Lengths of a client's requests, by the begin in seconds of the windows that have lengths."""

    def __init__(self, windows: dict[float, tuple[Drawn, Drawn]], otherwise: Lengths) -> None:
        self._windows, self._otherwise = windows, otherwise
        self._begins = sorted(windows)

    def draw(self, time_s: float, rng: random.Random) -> tuple[int, int]:
        """Tokens of a prompt and of its answer, for a window that begins at `time_s` seconds."""
        if not self._begins:
            return drawing.lengths(rng, self._otherwise)
        place = max(0, bisect_right(self._begins, time_s) - 1)
        asked, answered = self._windows[self._begins[place]]
        return _one(asked, rng), _one(answered, rng)


def _one(drawn: Drawn, rng: random.Random) -> int:
    values, sums = drawn
    return values[min(bisect_right(sums, rng.random() * sums[-1]), len(values) - 1)]


def _lengths(source: Source) -> TokenLengths:
    """Lengths from the file beside a trace, or ShareGPT's without such a file."""
    beside = source.path.with_name(source.path.name.removesuffix(TRACE) + DATASET)
    found: dict[float, tuple[Drawn, Drawn]] = {}
    if beside.is_file():
        found = _dataset(beside)
    else:
        source.say(f"no {beside.name} is beside it: lengths are drawn, as {LENGTHS}'s")
    return TokenLengths(found, lengths(LENGTHS))


def _dataset(path: Path) -> dict[float, tuple[Drawn, Drawn]]:
    """Lengths by the begin in seconds of each window that has them. Raises `TraceError` if the file
    is no such dataset.
    """
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]])
        found = {
            float(begin): (_drawn(of["input_tokens"]), _drawn(of["output_tokens"]))
            for begin, of in raw.items()
            if of["input_tokens"] != "{}" and of["output_tokens"] != "{}"
        }
    except (OSError, msgspec.DecodeError, KeyError, ValueError, SyntaxError, TypeError):
        raise TraceError(
            f"{path}: is no dataset of ServeGen (windows with input_tokens and output_tokens): "
            "fetch it anew, or remove it"
        ) from None
    return found


def _drawn(text: str) -> Drawn:
    """Parse frequencies as ``{120: 0.25, 121: 0.75}``. Raises `ValueError`, `SyntaxError` or
    `TypeError` for any other text, and `ValueError` for frequencies that are negative or all 0, or
    more than `MAX_TOKENS` tokens.
    """
    each = dict(ast.literal_eval(text)).items()
    parts = sorted((max(1, int(tokens)), float(part)) for tokens, part in each)
    sums = list(accumulate(part for _, part in parts))
    rises = all(one <= other for one, other in pairwise(sums))
    if not sums or not rises or sums[-1] <= 0 or parts[-1][0] > MAX_TOKENS:
        raise ValueError(text[:80])
    return [tokens for tokens, _ in parts], sums


FORMAT = Format("servegen", "rows of a time, a rate, and Gamma or Weibull", _fits, _read)
