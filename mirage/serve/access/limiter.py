"""Limits of keys and tenants, and whether a request is within them. Pure.

A request and its tokens count in the minute that follows its admission. Its tokens are only known
at its end: until then the number that it allows is booked, and corrected when it has ended. Tokens
beyond that number count for a minute from the request's end; if they are several times the limit,
for as many minutes. So no client exceeds its limit a minute for long, however wrong the estimate
was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from mirage.serve.access.rates import RateLimits
from mirage.serve.access.window import LENGTH_S, RateWindow, WindowBooking

RETRY_S = 1.0
"""Seconds to wait after a refusal because of requests in flight, whose end cannot be predicted."""


class LimitedParty(NamedTuple):
    """Key or tenant, with its present limits."""

    kind: str
    name: str
    limits: RateLimits


class OverLimit(NamedTuple):
    """Refusal of a request: the party whose limit it exceeds, the limit, and seconds to wait."""

    party: LimitedParty
    field: str
    """Name of the limit in `RateLimits`."""
    limit: int
    wait_s: float


@dataclass
class LimitAccount:
    """Requests and tokens of one key or tenant that count now, and the number of its requests that
    run.
    """

    requests: RateWindow = field(default_factory=RateWindow)
    tokens: RateWindow = field(default_factory=RateWindow)
    running: int = 0


class LimitedEntry(NamedTuple):
    """Part that an admitted request has in the account of one key or tenant."""

    account: LimitAccount
    tokens: WindowBooking | None
    """Booking of the request's tokens; None if there is no limit of tokens."""
    limit: int
    """Limit of tokens, 0 if there is none."""


class Limiter:
    """Limiter that admits requests by the limits of their keys and tenants, and keeps an account
    for each.

    Times are seconds of a clock that never goes back.
    """

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str], LimitAccount] = {}

    def enter(
        self, parties: Iterable[LimitedParty], tokens: int, now: float
    ) -> list[LimitedEntry] | OverLimit:
        """Admit a request that allows `tokens`, or return the refusal with the longest wait.

        An admitted request has to `leave`. A request that allows more tokens than a limit is
        admitted once no tokens of other requests are booked, since its number is an estimate.
        """
        pairs = [(party, self._account(party)) for party in parties]
        over = [one for party, account in pairs for one in _over(party, account, tokens, now)]
        if over:
            return max(over, key=lambda one: one.wait_s)
        return [_booked(party.limits, account, tokens, now) for party, account in pairs]

    def leave(self, entries: Iterable[LimitedEntry], tokens: int, now: float) -> None:
        """Note that a request has ended and has taken `tokens`."""
        for account, booking, limit in entries:
            account.running -= 1
            if booking is None:
                continue
            beyond = tokens - booking.amount
            if beyond > 0:
                account.tokens.book(beyond, now, LENGTH_S * max(1.0, beyond / limit))
            else:
                account.tokens.lower(booking, tokens, now)

    def keep(self, kind: str, names: Collection[str]) -> None:
        """Forget the accounts of this kind (key or tenant) whose names are not among `names`, but
        for those with running requests.
        """
        for known in [k for k in self._accounts if k[0] == kind and k[1] not in names]:
            if not self._accounts[known].running:
                del self._accounts[known]

    def _account(self, party: LimitedParty) -> LimitAccount:
        return self._accounts.setdefault((party.kind, party.name), LimitAccount())


def _over(
    party: LimitedParty, account: LimitAccount, tokens: int, now: float
) -> Iterable[OverLimit]:
    limits = party.limits
    if (most := limits.in_flight) is not None and account.running >= most:
        yield OverLimit(party, "in_flight", most, RETRY_S)
    if (most := limits.requests_per_minute) is not None and (
        wait_s := account.requests.wait_s(1, most, now)
    ):
        yield OverLimit(party, "requests_per_minute", most, wait_s)
    if (most := limits.tokens_per_minute) is not None and (
        wait_s := account.tokens.wait_s(min(tokens, most), most, now)
    ):
        yield OverLimit(party, "tokens_per_minute", most, wait_s)


def _booked(limits: RateLimits, account: LimitAccount, tokens: int, now: float) -> LimitedEntry:
    account.running += 1
    if limits.requests_per_minute is not None:
        account.requests.book(1, now)
    if (most := limits.tokens_per_minute) is None:
        return LimitedEntry(account, None, 0)
    return LimitedEntry(account, account.tokens.book(min(tokens, most), now), most)
