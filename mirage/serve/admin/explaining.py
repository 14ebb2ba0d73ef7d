"""Route of `mirage why`: the reasons for which memory moved, and its costs and gains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from aiohttp import web

from mirage.config import TenantSection
from mirage.control.lent import Lending
from mirage.control.loan_sums import LoanMinute, LoanSums, Pair
from mirage.control.loans import MINUTE_S, LoanBook
from mirage.control.moves import Kind, Move
from mirage.serve.admin.asked import as_json, number, tenant_named
from mirage.serve.admin.forms import LONGEST_S, LoanTold, WhyTold
from mirage.serve.apply.revision import Revision
from mirage.serve.registry.registry import Registry, moved

LAST_S = 3600.0
PAGE_LOANS = 500
MOST_MOVES = 1000
"""Most moves in an answer, those of the first tenants."""


class Explaining:
    """Route of `mirage why` over one device's loans.

    `clock` returns seconds since 1970; `running` returns seconds of the monotonic clock by which
    the loans are timed.
    """

    def __init__(
        self,
        sections: Mapping[str, TenantSection],
        registry: Registry,
        loans: LoanBook,
        revision: Revision,
        clock: Callable[[], float] = time.time,
        running: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sections, self._registry = sections, registry
        self._loans, self._revision = loans, revision
        self._clock, self._running = clock, running
        self._began = running()

    def routes(self) -> list[web.RouteDef]:
        """Routes of `mirage why`."""
        return [web.get("/why", self._why)]

    async def _why(self, request: web.Request) -> web.Response:
        """Answer `GET /why`. Data that changes is copied first, without a pause; the rest is
        computed in a thread.
        """
        found = self._found(request)
        return await asyncio.to_thread(lambda: as_json(told(found), self._revision))

    def _found(self, request: web.Request) -> LoansFound:
        name = request.query.get("tenant")
        tenant = None if name is None else tenant_named(name, self._sections)
        last_s = number(request, "last", "seconds", 0, LONGEST_S)
        skip, limit = (number(request, *asked) for asked in (SKIP, LIMIT))
        now, epoch = self._running(), self._clock() - self._running()
        last_s = LAST_S if last_s is None else last_s
        minutes = self._loans.last(last_s, now)
        since = (now - last_s) // MINUTE_S * MINUTE_S
        return LoansFound(
            tenant,
            epoch + now,
            epoch + self._began,
            epoch + max(since, self._began, self._loans.kept_since),
            self._moves(tenant),
            minutes,
            dict(self._loans.lent),
            {one: shape.layer_bytes for one, shape in self._registry.shapes.items()},
            int(skip or 0),
            int(limit or PAGE_LOANS),
        )

    def _moves(self, tenant: str | None) -> list[Move]:
        """Moves of the plan from and to one tenant; with None all moves, each once."""
        why = self._registry.sources.why
        if tenant is not None:
            return list(why(tenant))[:MOST_MOVES]
        every = (move for name in self._sections for move in why(name) if move.tenant == name)
        return list(every)[:MOST_MOVES]


SKIP = ("skip", "a number", 0, 1_000_000)
LIMIT = ("limit", "a number", 1, PAGE_LOANS)


class LoansFound(NamedTuple):
    """Data copied for one answer of ``GET /why``: moves of the present plan between places of
    memory, loans between tenants, and the page that was asked for.

    `t`, `began` and `since` are seconds since 1970. The page has at most `limit` loans, after the
    first `skip`.
    """

    tenant: str | None
    t: float
    began: float
    since: float
    moves: Sequence[Move]
    minutes: Sequence[LoanMinute]
    lent: Mapping[Pair, Sequence[Lending]]
    layer_bytes: Mapping[str, int]
    skip: int
    limit: int


def told(found: LoansFound) -> WhyTold:
    """Answer of ``GET /why``, made of the copied data."""
    sums = summed(found.minutes, found.tenant)
    page = sorted(sums)[found.skip : found.skip + found.limit]
    end = found.skip + len(page)
    return WhyTold(
        t=found.t,
        began=found.began,
        since=found.since,
        moves=[moved(move) for move in found.moves] if not found.skip else [],
        loans=[_loan(pair, sums[pair], found) for pair in page],
        next_skip=end if end < len(sums) else None,
    )


def summed(minutes: Iterable[LoanMinute], tenant: str | None) -> dict[Pair, LoanSums]:
    """Sums over minutes by lender and borrower; `tenant` selects loans from and to one tenant."""
    sums: dict[Pair, LoanSums] = {}
    for one in minutes:
        if tenant is None or tenant in one.pair:
            sums.setdefault(one.pair, LoanSums()).add(one.sums)
    return sums


def _loan(pair: Pair, sums: LoanSums, found: LoansFound) -> LoanTold:
    lender, borrower = pair
    layers = sums.most.get(Kind.LAYERS.value, 0)
    return LoanTold(
        lender=lender,
        borrower=borrower,
        bytes_now=sum(one.nbytes for one in found.lent.get(pair, ())),
        lent_s=sums.lent_s,
        byte_s=sums.byte_s,
        most_bytes=sums.most,
        most_layers=layers / found.layer_bytes[lender] if lender in found.layer_bytes else 0.0,
        reasons=sums.reasons,
        wait_s=sums.wait_s,
        token_s=sums.token_s,
        tokens=sums.tokens,
        requests=sums.requests,
        preemptions_saved=sums.preemptions,
        waits_saved=sums.waits,
        request_s=sums.request_s,
    )
