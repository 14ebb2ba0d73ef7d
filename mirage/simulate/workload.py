"""Requests of each tenant: their arrivals and lengths, drawn from one seed or read from a trace.

Requests of a trace are produced one at a time, so that a trace of any length takes little memory.
Drawn arrivals, and windows of a trace, are held as a whole: they are stretched to a rate.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Protocol

from mirage.config import ConfigError
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.experiment import Experiment, SimulatedTenant, Workload
from mirage.simulate.prefix import Prefix
from mirage.simulate.roofline import PS
from mirage.workload import drawing, rates, trace
from mirage.workload.chosen import Chosen
from mirage.workload.dealing import clip
from mirage.workload.lengths import OF_TRACE, Lengths, lengths
from traces.generate import gaps


class Drawn(Protocol):
    """The part of an experiment, on one device or several, that its requests depend on."""

    @property
    def experiment(self) -> Experiment:
        """The experiment from which the requests are drawn, as its file has it."""

    def tenant(self, name: str) -> SimulatedTenant:
        """The tenant of that name."""

    def max_len(self, tenant: str) -> int:
        """Most tokens of a request to this tenant, prompt and output together."""


Row = tuple[int, int, int, trace.TraceRequest | None]
"""Arrival in picoseconds, prompt tokens, output tokens, and the row of the trace; None if drawn."""


def requests(setup: Drawn, seed: int) -> dict[str, Iterator[SimulatedRequest]]:
    """Each tenant's requests in order of arrival."""
    tenants = setup.experiment.tenants
    if setup.experiment.workload.arrivals == "trace":
        rows = _from_trace(setup, seed)
    else:
        shares = _counts(setup.experiment.workload, tenants)
        rows = {t.name: _drawn(setup, t, shares[t.name], seed) for t in tenants}
    return {name: _numbered(setup, name, each) for name, each in rows.items()}


def peak_end(setup: Drawn, seed: int) -> int:
    """Arrival of the peak's last request, in picoseconds; 0 if the workload has no peak."""
    asked, tenants = setup.experiment.workload, setup.experiment.tenants
    if asked.peak is None:
        return 0
    counts = _counts(asked, tenants)
    firsts = (
        islice(_arrivals(setup, t, counts[t.name], seed), _fast(asked, tenants, t)) for t in tenants
    )
    return max((max(times, default=0) for times in firsts), default=0)


def _numbered(setup: Drawn, tenant: str, rows: Iterable[Row]) -> Iterator[SimulatedRequest]:
    reuses = setup.experiment.prefix_cache or setup.experiment.tiers is not None
    model = setup.tenant(tenant).model.encode()
    for number, (arrival, prompt, output, row) in enumerate(rows):
        request = SimulatedRequest(number, arrival, prompt, output)
        if reuses:
            request.prefix = _prefix(model, f"{tenant} {number}", prompt, row)
        yield request


def _prefix(model: bytes, own: str, prompt: int, row: trace.TraceRequest | None) -> Prefix:
    if row is None:
        return Prefix(model, own, prompt)
    return Prefix(model, own, prompt, row.session, row.prefix_hashes, row.hash_tokens)


def _counts(workload: Workload, tenants: list[SimulatedTenant]) -> dict[str, int]:
    """Number of requests of each tenant, in proportion to the rates."""
    assert workload.requests is not None
    rates = [t.rate or 0 for t in tenants]
    bounds = [round(workload.requests * sum(rates[:i]) / sum(rates)) for i in range(len(rates) + 1)]
    return {t.name: bounds[i + 1] - bounds[i] for i, t in enumerate(tenants)}


def _drawn(setup: Drawn, tenant: SimulatedTenant, requests: int, seed: int) -> Iterator[Row]:
    workload = setup.experiment.workload
    name = tenant.lengths or workload.lengths
    rng = random.Random(f"lengths {tenant.name} {seed}")
    of_rows = name == OF_TRACE
    tokens = _rows_tokens(workload, tenant, seed) if of_rows else _drawn_tokens(lengths(name), rng)
    longest = setup.max_len(tenant.name)
    for arrival in _arrivals(setup, tenant, requests, seed):
        prompt, output = clip(*next(tokens), longest)
        yield arrival, prompt, output, None


def _drawn_tokens(shape: Lengths, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Endless pairs of prompt tokens and output tokens, drawn from a distribution."""
    while True:
        yield drawing.lengths(rng, shape)


def _rows_tokens(
    workload: Workload, tenant: SimulatedTenant, seed: int
) -> Iterator[tuple[int, int]]:
    """Endless pairs of prompt tokens and output tokens, from the rows of the trace: from a random
    row of the tenant on, and after the last from the first.
    """
    rows = _rows_of(workload, seed)
    for number in count(_window_start(rows, tenant, seed)):
        row = rows[number % len(rows)]
        yield row.context_tokens, row.output_tokens


def _fast(workload: Workload, tenants: list[SimulatedTenant], tenant: SimulatedTenant) -> int:
    """Number of a tenant's requests that belong to the peak; 0 if the workload has no peak."""
    total = sum(t.rate or 0 for t in tenants)
    return round(workload.peak.requests * (tenant.rate or 0) / total) if workload.peak else 0


def _arrivals(setup: Drawn, tenant: SimulatedTenant, requests: int, seed: int) -> Iterator[int]:
    """Arrivals in picoseconds, at the tenant's rate on average; those of the peak at `factor` times
    the rate.
    """
    assert tenant.rate is not None
    workload = setup.experiment.workload
    steps = list(_unit_gaps(workload, tenant, requests, seed))
    mean = sum(steps) / len(steps) if any(steps) else 1.0
    fast = _fast(workload, setup.experiment.tenants, tenant)
    time = 0.0
    for number, gap in enumerate(steps):
        factor = workload.peak.factor if workload.peak and number < fast else 1.0
        time += gap / mean / tenant.rate / factor
        yield round((time + _silent_s(tenant, time)) * PS)


def _silent_s(tenant: SimulatedTenant, time: float) -> float:
    """Seconds by which the tenant's pause delays a request that would arrive at `time` seconds."""
    silence = tenant.silence
    return silence.for_s if silence is not None and time >= silence.from_s else 0.0


def _unit_gaps(
    workload: Workload, tenant: SimulatedTenant, requests: int, seed: int
) -> Iterator[float]:
    """Times between arrivals in an arbitrary unit."""
    rng = random.Random(f"arrivals {tenant.name} {seed}")
    if workload.arrivals == "poisson":
        return islice(drawing.poisson_gaps(rng), requests)
    if workload.arrivals == "bursty":
        return gaps(rng, requests) if requests else iter(())
    return _window(_rows_of(workload, seed), tenant, seed, requests)


def _window(
    rows: list[trace.TraceRequest], tenant: SimulatedTenant, seed: int, requests: int
) -> Iterator[float]:
    """Gaps of a trace from a random row on; after the last row they continue with the first."""
    inner = [after.arrival_s - before.arrival_s for before, after in pairwise(rows)]
    start = _window_start(rows, tenant, seed)
    return (inner[(start + i) % len(inner)] for i in range(requests))


def _window_start(rows: list[trace.TraceRequest], tenant: SimulatedTenant, seed: int) -> int:
    return random.Random(f"arrivals {tenant.name} {seed}").randrange(len(rows) - 1)


def _rows_of(workload: Workload, seed: int) -> list[trace.TraceRequest]:
    assert workload.file is not None
    return _rows(workload.file, _reading(workload, seed))


def _reading(workload: Workload, seed: int) -> trace.Reading:
    """Way to read the trace's file. The seed is left out if it has no effect, so that the file is
    read once for all seeds.
    """
    own = workload.rate is None and workload.arrivals == "windows"
    rate = None if _scaled(workload) else workload.rate
    bounded = workload.arrivals == "trace" and workload.requests is not None
    return trace.Reading(workload.trace_format, rate, 0 if own else seed, bounded)


def _scaled(workload: Workload) -> bool:
    """True if the rate is reached by scaling the trace's own gaps. Raises `ConfigError` if
    `time_scale` is set too.
    """
    if workload.rate is None or workload.arrivals != "trace":
        return False
    assert workload.file is not None
    own = _has_arrivals(workload.file, workload.trace_format)
    if own and "time_scale" in workload.model_fields_set:
        raise ConfigError("workload.rate and time_scale both set the gaps of this trace: give one")
    return own


@lru_cache
def _has_arrivals(path: Path, trace_format: str | None) -> bool:
    return path.is_file() and trace.has_arrivals(path, trace.Reading(trace_format))


@lru_cache
def _time_scale(path: Path, how: trace.Reading, requests: int | None, rate: float) -> float:
    rows = islice(trace.read(path, how), requests)
    return rates.time_scale((row.arrival_s for row in rows), rate)


@lru_cache
def _rows(path: Path, how: trace.Reading) -> list[trace.TraceRequest]:
    # Without texts and hashes, which nothing here looks at: all rows are held.
    rows = [
        trace.TraceRequest(row.arrival_s, row.context_tokens, row.output_tokens)
        for row in trace.read(path, how)
    ]
    if len(rows) < 2:
        raise ConfigError(f"{path}: one row has no gaps: name a longer trace")
    if rows[0].arrival_s == rows[-1].arrival_s:
        raise ConfigError(f"{path}: all rows have one time, and no gaps to stretch to a rate")
    return rows


def _from_trace(setup: Drawn, seed: int) -> dict[str, Iterator[Row]]:
    """Rows of a trace, dealt to tenants as `mirage replay` deals them."""
    experiment = setup.experiment
    workload, names = experiment.workload, [t.name for t in experiment.tenants]
    waiting: dict[str, deque[Row]] = {name: deque() for name in names}
    dealt = _dealt(names, workload, seed)

    def of(name: str) -> Iterator[Row]:
        longest = setup.max_len(name)
        while True:
            while not waiting[name]:
                entry = next(dealt, None)
                if entry is None:
                    return
                waiting[entry[0]].append(entry[1])
            arrival, prompt, output, row = waiting[name].popleft()
            prompt, output = clip(prompt, output, longest)
            yield arrival, prompt, output, row

    return {name: of(name) for name in names}


def _dealt(names: list[str], workload: Workload, seed: int) -> Iterator[tuple[str, Row]]:
    scale, how = workload.time_scale, _reading(workload, seed)
    if _scaled(workload):
        assert workload.file is not None and workload.rate is not None
        scale = _time_scale(workload.file, how, workload.requests, workload.rate)
    of, part = Chosen(workload.file, workload.files), (workload.window, workload.requests)
    for name, row in of.requests(names, workload.traffic, seed, how, *part, Counter()):
        arrival = round(row.arrival_s * scale * PS)
        yield name, (arrival, row.context_tokens, row.output_tokens, row)
