"""Limits of a key and of a tenant, which a request is within or not. Pure.

A request and its tokens count in the minute that follows its admission. Its tokens are not known by
then: what it asks for is booked, and put right when it has ended. What it took beyond that counts
for a minute from its end, or for longer if it is more than the limit: for as many minutes as it is
limits. So no client gets more than its limit a minute for long, whatever is estimated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from mirage.serve.access.window import LENGTH_S, RateWindow, WindowBooking
from mirage.serve.rates import RateLimits

RETRY_S = 1.0
"""Seconds to wait for the end of a request, which nobody knows."""


class LimitedParty(NamedTuple):
    """A key or a tenant, with its limits now."""

    kind: str
    name: str
    limits: RateLimits


class OverLimit(NamedTuple):
    """A request that is refused: over whose limit, which, and until when at least."""

    party: LimitedParty
    field: str
    """Name of the limit in `RateLimits`."""
    limit: int
    wait_s: float


@dataclass
class LimitAccount:
    """Requests and tokens that one key or tenant took lately."""

    requests: RateWindow = field(default_factory=RateWindow)
    tokens: RateWindow = field(default_factory=RateWindow)
    running: int = 0


class LimitedEntry(NamedTuple):
    """A party's part in a request that was admitted."""

    account: LimitAccount
    tokens: WindowBooking | None
    """None without a limit of tokens."""
    limit: int
    """Limit of tokens, 0 if there is none."""


class Limiter:
    """Accounts of all keys and tenants. Seconds are of any clock that does not go back."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str], LimitAccount] = {}

    def enter(
        self, parties: Iterable[LimitedParty], tokens: int, now: float
    ) -> list[LimitedEntry] | OverLimit:
        """Admit a request that asks for `tokens`, or say what speaks against it.

        One that is admitted has to `leave`. One that asks for more than a limit waits until nothing
        else is booked: what it asks for is an estimate.
        """
        pairs = [(party, self._account(party)) for party in parties]
        over = [one for party, account in pairs for one in _over(party, account, tokens, now)]
        if over:
            return max(over, key=lambda one: one.wait_s)
        return [_booked(party.limits, account, tokens, now) for party, account in pairs]

    def leave(self, entries: Iterable[LimitedEntry], tokens: int, now: float) -> None:
        """A request has ended and has taken `tokens`."""
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
        """Forget parties of a kind that are there no more, unless requests of theirs run."""
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
