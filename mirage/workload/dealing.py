"""Dealing of a trace's requests to tenants, and the calls that result.

The rule is `Traffic`'s: trace time is cut into phases; in each phase one tenant is hot and draws
``hot_share`` of the requests, the others share the rest by their weights. Everything is drawn from
one seed and from the trace's own times and order, so the workload is the same for every policy, and
scaling time or lengths does not move a request to another tenant. The requests of a session go
where its first one went. Where rows name models, those of one model go to one tenant instead: the
first model to the first tenant, the next to the next, and around again.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mirage.config import Config, TenantSection, Traffic
from mirage.workload.trace import TraceRequest, scaled

PRINTABLE = bytes(32 + value % 95 for value in range(256))
"""Translation table from each byte value to a printable ASCII character."""
SESSIONS_KEPT = 100_000
"""Most sessions whose tenant is remembered, the most recently used ones. Memory stays constant over
a trace of millions of rows.
"""
Session = tuple[str, str]
"""A tenant, and the name of one of its sessions: traces of two tenants may use the same name."""


@dataclass(frozen=True, slots=True)
class TenantRequest:
    """One request to one tenant: its time in seconds since the start, its lengths in tokens."""

    index: int
    at_s: float
    tenant: str
    context_tokens: int
    output_tokens: int
    clipped: bool
    """True if the lengths in the trace exceeded the tenant's `max_model_len` and were cut."""
    session: str | None = None
    prefix_hashes: tuple[int, ...] = ()
    hash_tokens: float = 0.0
    """Tokens that each hash stands for, scaled as the lengths are; see `prompts.py`."""
    turn: int = 0
    """Number of this request within its session, from 0."""


def build(
    config: Config,
    requests: Iterable[TraceRequest],
    time_scale: float,
    length_scale: float,
    seed: int,
) -> list[TenantRequest]:
    """Calls for `requests` in order, as a list."""
    names = [tenant.name for tenant in config.tenants]
    dealt = deal(requests, names, config.replay.traffic, seed)
    return list(calls(config, dealt, time_scale, length_scale))


def calls(
    config: Config,
    dealt: Iterable[tuple[str, TraceRequest]],
    time_scale: float,
    length_scale: float,
) -> Iterator[TenantRequest]:
    """Calls for requests that were dealt to tenants, in order, generated one at a time."""
    tenants = {tenant.name: tenant for tenant in config.tenants}
    turns: OrderedDict[Session, int] = OrderedDict()
    for index, (name, request) in enumerate(dealt):
        asked = scaled(request, time_scale, length_scale)
        turn = 0 if request.session is None else _turn(turns, (name, request.session))
        yield _call(index, asked, tenants[name], request.hash_tokens * length_scale, turn)


def deal(
    requests: Iterable[TraceRequest], names: list[str], traffic: Traffic, seed: int
) -> Iterator[tuple[str, TraceRequest]]:
    """Each request with its tenant, one at a time. Requests that name the same model all go to one
    tenant: those of the trace's first model to the first tenant, those of the next model to the
    next tenant, and around again."""
    seen: deque[TraceRequest] = deque()
    places: OrderedDict[str, str] = OrderedDict()
    models: dict[str, str] = {}

    def arrivals() -> Iterator[float]:
        for request in requests:
            seen.append(request)
            yield request.arrival_s

    for name in assign(arrivals(), names, traffic, seed):
        request = seen.popleft()
        if request.model is not None:
            name = models.setdefault(request.model, names[len(models) % len(names)])
        session = request.session
        yield (name if session is None else _place(places, session, name)), request


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
    """Prompt and output tokens cut to `room` tokens together: the output first, down to half of the
    room, then the prompt.
    """
    output = min(output, max(room - context, room // 2, 1))
    return max(1, min(context, room - output)), output


def prompt(seed: int, index: int, length: int) -> str:
    """Random text of `length` printable ASCII characters, drawn from `seed` and `index`; a
    byte-level tokenizer makes as many tokens of it.
    """
    drawn = random.Random(f"prompt {seed} {index}").randbytes(length)
    return drawn.translate(PRINTABLE).decode("ascii")


def _hot_tenants(names: list[str], rng: random.Random) -> Iterator[str]:
    """Endless names of the hot tenant of each phase; none twice in a row unless there is only
    one.
    """
    hot = rng.choice(names)
    while True:
        yield hot
        hot = rng.choice([name for name in names if name != hot] or names)


def _place(places: OrderedDict[str, str], session: str, name: str) -> str:
    """Tenant that a session's requests go to: that of its first request, which is `name` if this is
    the first.
    """
    place = places.setdefault(session, name)
    places.move_to_end(session)
    if len(places) > SESSIONS_KEPT:
        places.popitem(last=False)
    return place


def _turn(turns: OrderedDict[Session, int], session: Session) -> int:
    """Count the next request of a session, and return its number within the session, from 0."""
    turn = turns.pop(session, 0)
    turns[session] = turn + 1
    if len(turns) > SESSIONS_KEPT:
        turns.popitem(last=False)
    return turn


def _call(
    index: int, request: TraceRequest, tenant: TenantSection, hash_tokens: float, turn: int
) -> TenantRequest:
    asked = (request.context_tokens, request.output_tokens)
    context, output = clip(*asked, tenant.max_model_len)
    return TenantRequest(
        index,
        request.arrival_s,
        tenant.name,
        context,
        output,
        (context, output) != asked,
        request.session,
        request.prefix_hashes,
        hash_tokens,
        turn,
    )
