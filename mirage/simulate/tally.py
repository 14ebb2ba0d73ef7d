"""Measurements of a simulation: latencies of requests, gaps between tokens, counters.

Up to `LIMIT` values are kept exactly; beyond that they are put into bins of 0.1 % relative width,
so that a trace of any length fits into memory.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from mirage.control.answers import Answered
from mirage.simulate.batch import SimulatedRequest

LIMIT = 2_000_000
BIN = np.log(1.001)
SAMPLES = 400
"""Most samples of one engine's memory over time."""
FIRST_PERIOD_PS = 10**9

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Distribution:
    """Weighted values and their percentiles: exact up to `LIMIT` values, binned beyond."""

    def __init__(self) -> None:
        self._values: list[Floats] = []
        self._weights: list[Ints] = []
        self._pending = 0

    def add(self, values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        """Add `values`, each with its weight in `weights`; None: 1 each."""
        array_ = np.asarray(values, dtype=np.float64)
        once = np.ones(len(array_), dtype=np.int64)
        self._values.append(array_)
        self._weights.append(once if weights is None else np.asarray(weights, dtype=np.int64))
        self._pending += len(array_)
        if self._pending > LIMIT:
            self._compact()

    def merge(self, other: Distribution) -> None:
        for values, weights in zip(other._values, other._weights, strict=True):
            self.add(values, weights)

    @property
    def count(self) -> int:
        return int(sum(w.sum() for w in self._weights))

    def mean(self) -> float:
        """Weighted mean. There must be at least one value."""
        # Not v @ w: BLAS sums in as many parts as it has threads, and the last digits differ.
        total = sum(float((v * w).sum()) for v, w in zip(self._values, self._weights, strict=True))
        return total / self.count

    def percentiles(self, percents: list[float]) -> list[float]:
        """Percentiles by linear interpolation, as numpy's. There must be at least one value."""
        values, weights = self.sorted()
        ends = np.cumsum(weights)
        ranks = np.asarray(percents) / 100 * (ends[-1] - 1)
        below = values[np.searchsorted(ends, np.floor(ranks), side="right")]
        above = values[np.searchsorted(ends, np.ceil(ranks), side="right")]
        return [float(x) for x in below + (above - below) * (ranks - np.floor(ranks))]

    def sorted(self) -> tuple[Floats, Ints]:
        """Values in ascending order, and their weights."""
        values = np.concatenate(self._values or [np.empty(0)])
        weights = np.concatenate(self._weights or [np.empty(0, dtype=np.int64)])
        order = np.argsort(values, kind="stable")
        return values[order], weights[order]

    def _compact(self) -> None:
        values, weights = self.sorted()
        bins = np.rint(np.log(np.maximum(values, 1e-12)) / BIN)
        kept, where = np.unique(bins, return_inverse=True)
        summed = np.zeros(len(kept), dtype=np.int64)
        np.add.at(summed, where, weights)
        self._values, self._weights, self._pending = [np.exp(kept * BIN)], [summed], 0


class Gaps:
    """Times between tokens (ITL) in picoseconds, kept as runs: first gap, growth, steps, tokens in
    each step.
    """

    def __init__(self) -> None:
        self._runs = array("q")
        self.distribution = Distribution()

    def add(self, first: int, growth: int, steps: int, tokens: int) -> None:
        """Add `steps` steps of `tokens` tokens each, with gaps of `first`, `first` + `growth`, …
        picoseconds.
        """
        self._runs.extend((first, growth, steps, tokens))
        if len(self._runs) > LIMIT:
            self.flush()

    def flush(self) -> None:
        """Move all added gaps into `distribution`."""
        if not self._runs:
            return
        runs = np.asarray(self._runs, dtype=np.int64).reshape(-1, 4)
        self._runs = array("q")
        ends = np.cumsum(runs[:, 2])
        start = 0
        while start < len(runs):
            # As many runs at once as expand to `LIMIT` values, or one that is longer.
            before = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + LIMIT, side="right")))
            self._expand(runs[start:stop])
            start = stop

    def _expand(self, runs: Ints) -> None:
        first, growth, steps, tokens = runs.T
        ordinal = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
        values = np.repeat(first, steps) + np.repeat(growth, steps) * ordinal
        self.distribution.add(values, np.repeat(tokens, steps))


@dataclass(slots=True)
class SimulatedCounters:
    """Counters of one engine since measuring began, in bytes and picoseconds."""

    completed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    started: int = 0
    """Requests that began to run. A request preempted after its first token is not counted again;
    one preempted before it is."""
    tokens: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    stall_ps: int = 0
    """Picoseconds for which steps waited for layers."""
    preemptions: int = 0
    holds: int = 0
    bytes_streamed: int = 0
    bytes_restored: int = 0
    busy_ps: int = 0
    most_remapped: int = 0
    most_experts: int = 0
    """Largest number of experts of each layer that were given away."""
    expert_loads: float = 0.0
    """Loads of experts, an expected number."""
    moves: int = 0
    found: Counter[str] = field(default_factory=Counter)
    """Tokens that were not computed, by the place of their KV."""
    saved_ps: int = 0
    """Picoseconds by which computing these tokens would have lengthened steps."""
    bytes_up: int = 0
    bytes_down: int = 0
    late_loads: int = 0
    """Requests that stopped waiting for blocks from a tier."""
    spills: int = 0
    """Requests that gave up their blocks at the end of a turn."""


@dataclass(slots=True)
class MemorySamples:
    """One engine's memory over time, in a bounded number of samples.

    A sample is taken no earlier than `due`. Whenever there are `SAMPLES`, every second one is
    dropped, and from then on samples are taken at twice the interval. Times in picoseconds.
    """

    due: int = 0
    samples: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Time, KV extents, KV blocks in use, layers given away."""
    _period: int = FIRST_PERIOD_PS

    def add(self, sample: tuple[int, int, int, int]) -> None:
        """Add a sample. The caller checks that one is due."""
        self.samples.append(sample)
        if len(self.samples) == SAMPLES:
            self.samples = self.samples[::2]
            self._period *= 2
        self.due = self.samples[-1][0] + self._period


@dataclass(slots=True)
class Tally:
    """Measurements of one engine. Times in picoseconds."""

    gaps: Gaps = field(default_factory=Gaps)
    counters: SimulatedCounters = field(default_factory=SimulatedCounters)
    ttft: Distribution = field(default_factory=Distribution)
    tpot: Distribution = field(default_factory=Distribution)
    e2el: Distribution = field(default_factory=Distribution)
    last_finish: int = 0
    timeline: MemorySamples = field(default_factory=MemorySamples)
    _answered: Answered = field(default_factory=Answered)
    """Answer tokens and completed answers from the engine's start to the last `restart`."""
    _ttft: array[int] = field(default_factory=lambda: array("q"))
    _tpot: array[float] = field(default_factory=lambda: array("d"))
    _e2el: array[int] = field(default_factory=lambda: array("q"))

    def restart(self) -> None:
        """Reset all measurements except the memory samples and the counts in `answered`."""
        fresh = Tally(timeline=self.timeline, _answered=self.answered())
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

    def answered(self) -> Answered:
        """Return answer tokens and completed answers since the engine started, across `restart`."""
        counters, earlier = self.counters, self._answered
        decoded = counters.tokens - counters.prefill_tokens
        return Answered(earlier.tokens + decoded, earlier.ended + counters.completed)

    def finished(self, request: SimulatedRequest, now: int) -> None:
        counters = self.counters
        counters.completed += 1
        counters.prompt_tokens += request.prompt
        counters.output_tokens += request.output
        self.last_finish = now
        self._ttft.append(request.first - request.arrival)
        self._e2el.append(now - request.arrival)
        if request.output > 1:
            self._tpot.append((now - request.first) / (request.output - 1))
        if len(self._ttft) > LIMIT:
            self.flush()

    def flush(self) -> None:
        """Move collected latencies into the distributions."""
        self.gaps.flush()
        self.ttft.add(self._ttft)
        self.tpot.add(self._tpot)
        self.e2el.add(self._e2el)
        self._ttft, self._tpot, self._e2el = array("q"), array("d"), array("q")
