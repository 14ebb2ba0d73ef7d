"""A trace becomes a workload: which tenant each request goes to, and what it asks.

The rule is `Traffic`'s: trace time is cut into phases; in each phase one tenant is hot and
draws ``hot_share`` of the requests, the others share the rest by their weights. Everything is
drawn from one seed and from the trace's own times and order, so the workload is the same for
every policy, and scaling time or lengths does not move a request to another tenant.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mirage.config import Config, Tenant, Traffic
from mirage.workload.trace import Request, scaled

_PRINTABLE = bytes(32 + value % 95 for value in range(256))


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one tenant: when (seconds since the start), how long (tokens)."""

    index: int
    at_s: float
    tenant: str
    context_tokens: int
    output_tokens: int
    clipped: bool
    """True if the trace asked for more than the tenant's `max_model_len` holds."""


def build(
    config: Config, requests: Iterable[Request], time_scale: float, length_scale: float, seed: int
) -> list[Call]:
    """One call per request, in order."""
    tenants = {tenant.name: tenant for tenant in config.tenants}
    requests = list(requests)
    names = assign([r.arrival_s for r in requests], list(tenants), config.replay.traffic, seed)
    return [
        _call(index, scaled(request, time_scale, length_scale), tenants[name])
        for index, (request, name) in enumerate(zip(requests, names, strict=True))
    ]


def assign(
    arrivals_s: Iterable[float], names: list[str], traffic: Traffic, seed: int
) -> Iterator[str]:
    """The tenant of each arrival (seconds of trace time, ascending)."""
    weights = [traffic.weights.get(name, 1.0) for name in names]
    hot_in_order = _hot_tenants(names, random.Random(f"hot {seed}"))
    rng = random.Random(f"share {seed}")
    phase, hot = -1, names[0]
    for arrival in arrivals_s:
        while phase < int(arrival // traffic.phase_s):
            phase, hot = phase + 1, next(hot_in_order)
        rest = [0.0 if name == hot else w for name, w in zip(names, weights, strict=True)]
        draw = rng.random()
        if draw < traffic.hot_share or not any(rest):
            yield hot
        else:
            yield rng.choices(names, rest)[0]


def clip(context: int, output: int, room: int) -> tuple[int, int]:
    """Lengths that fit a context of `room` tokens; neither is cut below half the room first."""
    output = min(output, max(room - context, room // 2, 1))
    return max(1, min(context, room - output)), output


def prompt(seed: int, index: int, length: int) -> str:
    """`length` printable ASCII characters: as many tokens for a byte-level tokenizer."""
    drawn = random.Random(f"prompt {seed} {index}").randbytes(length)
    return drawn.translate(_PRINTABLE).decode("ascii")


def _hot_tenants(names: list[str], rng: random.Random) -> Iterator[str]:
    """Endless; no tenant twice in a row unless there is only one."""
    hot = rng.choice(names)
    while True:
        yield hot
        hot = rng.choice([name for name in names if name != hot] or names)


def _call(index: int, request: Request, tenant: Tenant) -> Call:
    asked = (request.context_tokens, request.output_tokens)
    given = clip(*asked, tenant.max_model_len)
    return Call(index, request.arrival_s, tenant.name, *given, clipped=given != asked)
