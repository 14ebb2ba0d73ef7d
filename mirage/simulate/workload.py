"""Requests for each tenant: when they come, how long they are. All drawn from one seed.

Requests are produced one at a time, so a trace of any length is never held in memory.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import configs
from mirage.config import ConfigError, read_yaml, validated
from mirage.replay import trace
from mirage.replay.workload import assign, clip
from mirage.simulate.batch import Request
from mirage.simulate.experiment import Lengths, Setup, Tenant, Workload
from mirage.simulate.roofline import PS
from traces.generate import gaps

Row = tuple[int, int, int]
"""Arrival in picoseconds, prompt tokens, output tokens."""


def requests(setup: Setup, seed: int) -> dict[str, Iterator[Request]]:
    """Each tenant's requests in order of arrival."""
    tenants = setup.experiment.tenants
    if setup.experiment.workload.arrivals == "trace":
        rows = _from_trace(setup, seed)
    else:
        shares = _counts(setup.experiment.workload, tenants)
        rows = {t.name: _drawn(setup, t, shares[t.name], seed) for t in tenants}
    return {name: _numbered(each) for name, each in rows.items()}


def peak_end(setup: Setup, seed: int) -> int:
    """When the last request of the peak comes, in picoseconds; 0 without a peak."""
    peak = setup.experiment.workload.peak
    if peak is None:
        return 0
    total = sum(t.rate or 0 for t in setup.experiment.tenants)
    return round(peak.requests / (peak.factor * total) * PS)


def lengths(name: str) -> Lengths:
    """Raises `ConfigError` for a name that is not in `configs/lengths.yaml`."""
    path = configs.HERE / "lengths.yaml"
    known = _lengths_file(path)
    if name not in known:
        raise ConfigError(f"no lengths are named {name!r}: known are {', '.join(known)}")
    return known[name]


@lru_cache
def _lengths_file(path: Path) -> dict[str, Lengths]:
    return {str(k): validated(Lengths, v, path) for k, v in read_yaml(path).items()}


def _numbered(rows: Iterable[Row]) -> Iterator[Request]:
    for number, (arrival, prompt, output) in enumerate(rows):
        yield Request(number, arrival, prompt, output)


def _counts(workload: Workload, tenants: list[Tenant]) -> dict[str, int]:
    """Requests of each tenant, in proportion to the rates."""
    assert workload.requests is not None
    rates = [t.rate or 0 for t in tenants]
    bounds = [round(workload.requests * sum(rates[:i]) / sum(rates)) for i in range(len(rates) + 1)]
    return {t.name: bounds[i + 1] - bounds[i] for i, t in enumerate(tenants)}


def _drawn(setup: Setup, tenant: Tenant, count: int, seed: int) -> Iterator[Row]:
    workload = setup.experiment.workload
    shape = lengths(tenant.lengths or workload.lengths)
    rng = random.Random(f"lengths {tenant.name} {seed}")
    for arrival in _arrivals(setup, tenant, count, seed):
        prompt = _lognormal(rng, shape.prompt_mean, shape.prompt_sigma)
        output = _lognormal(rng, shape.output_mean, shape.output_sigma)
        yield arrival, *clip(prompt, output, setup.max_len(tenant.name))


def _lognormal(rng: random.Random, mean: float, sigma: float) -> int:
    return max(1, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)))


def _arrivals(setup: Setup, tenant: Tenant, count: int, seed: int) -> Iterator[int]:
    """Picoseconds, at the tenant's rate on average; the peak's requests closer together."""
    assert tenant.rate is not None
    workload = setup.experiment.workload
    steps = list(_unit_gaps(workload, tenant, count, seed))
    mean = sum(steps) / len(steps) if any(steps) else 1.0
    total = sum(t.rate or 0 for t in setup.experiment.tenants)
    fast = round(workload.peak.requests * tenant.rate / total) if workload.peak else 0
    time = 0.0
    for number, gap in enumerate(steps):
        factor = workload.peak.factor if workload.peak and number < fast else 1.0
        time += gap / mean / tenant.rate / factor
        yield round(time * PS)


def _unit_gaps(workload: Workload, tenant: Tenant, count: int, seed: int) -> Iterator[float]:
    """Times between arrivals, on any scale."""
    rng = random.Random(f"arrivals {tenant.name} {seed}")
    if workload.arrivals == "poisson":
        return (rng.expovariate(1) for _ in range(count))
    if workload.arrivals == "bursty":
        return gaps(rng, count) if count else iter(())
    assert workload.file is not None
    return _window(workload.file, rng, count)


def _window(path: Path, rng: random.Random, count: int) -> Iterator[float]:
    """`count` gaps from somewhere in a trace, going on at its beginning after its end."""
    times = _times(path)
    inner = [after - before for before, after in pairwise(times)]
    start = rng.randrange(len(inner))
    return (inner[(start + i) % len(inner)] for i in range(count))


@lru_cache
def _times(path: Path) -> list[float]:
    times = [request.arrival_s for request in trace.read(path)]
    if len(times) < 2:
        raise ConfigError(f"{path}: one row has no gaps: name a longer trace")
    return times


def _from_trace(setup: Setup, seed: int) -> dict[str, Iterator[Row]]:
    """A file's rows, dealt to tenants as `mirage replay` deals them."""
    experiment = setup.experiment
    workload, names = experiment.workload, [t.name for t in experiment.tenants]
    assert workload.file is not None
    rows = trace.read(workload.file)
    waiting: dict[str, deque[Row]] = {name: deque() for name in names}
    dealt = _dealt(rows, names, workload, seed)

    def of(name: str) -> Iterator[Row]:
        while True:
            while not waiting[name]:
                entry = next(dealt, None)
                if entry is None:
                    return
                waiting[entry[0]].append(entry[1])
            arrival, prompt, output = waiting[name].popleft()
            yield arrival, *clip(prompt, output, setup.max_len(name))

    return {name: of(name) for name in names}


def _dealt(
    rows: Iterator[trace.Request], names: list[str], workload: Workload, seed: int
) -> Iterator[tuple[str, Row]]:
    seen: deque[trace.Request] = deque()

    def arrivals() -> Iterator[float]:
        for number, row in enumerate(rows):
            if number == workload.requests:
                return
            seen.append(row)
            yield row.arrival_s

    for name in assign(arrivals(), names, workload.traffic, seed):
        row = seen.popleft()
        arrival = round(row.arrival_s * workload.time_scale * PS)
        yield name, (arrival, row.context_tokens, row.output_tokens)
