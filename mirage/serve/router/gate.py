"""Checks on each request before it is passed on: its key, and its limits.

A new limit per key begins as a field of `LimitsSection` in `mirage/config/limits.py`, is counted in
`mirage/serve/access/limiter.py`, and gets its words here (`WORDS`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from mirage.serve.access.bounds import ShapedBody
from mirage.serve.access.forms import NO_KEYS, AccessKey, AccessTable
from mirage.serve.access.limiter import LimitedEntry, LimitedParty, Limiter, OverLimit
from mirage.serve.access.ring import KeyRing, may_use, need_of
from mirage.serve.access.usage import AnswerUsage, prompt_guess
from mirage.serve.api.openai import ApiError
from mirage.serve.ends.strikes import MOST_STRIKES
from mirage.serve.routed.table import RoutedRow
from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.key_metrics import KeyMetrics, TokenKind
from mirage.serve.router.metrics import CLIENT_LEFT, RouterMetrics
from mirage.serve.router.replica_address import is_probe
from mirage.serve.whatif.past import NO_STREAM, EndedRequest, UntoldRequests

KEY = web.RequestKey("mirage_key", AccessKey)
"""Key under which a request carries its access key, if it was asked for one."""
WORDS = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "in_flight": "requests at one time",
}
"""Words for each limit in messages, by the field's name."""


@dataclass
class Passage:
    """Request that is within its limits, on its way to `model`. Times are seconds."""

    model: str
    prompt_guess: int
    entries: list[LimitedEntry]
    usage: AnswerUsage = field(default_factory=AnswerUsage)
    sent: bool = False
    """True once the request was sent to an engine."""
    since: float = 0.0
    """Time at which the request was let in; this and `first` are by the clock of `AccessGate`."""
    untold: UntoldRequests = field(default_factory=UntoldRequests)
    """Collection of lengths and times of ended requests, which gets this one's."""
    first: float = 0.0
    """Time of the first chunk of a stream; 0 for an answer that is no stream."""

    def tokens(self, status: int) -> dict[TokenKind, int]:
        """Tokens that the request took, by kind, after it ended with `status`.

        They are estimated if the answer reported no usage. The result is empty for a request
        without usage that was never sent or ended with an error.
        """
        usage, left = self.usage, status == CLIENT_LEFT
        if usage.known:  # of a stream that was left, perhaps not to its end
            completion = max(usage.completion, usage.events) if left else usage.completion
            return {TokenKind.PROMPT: usage.prompt, TokenKind.COMPLETION: completion}
        if not self.sent or (status >= 400 and not left):
            return {}
        return {TokenKind.ESTIMATED: self.prompt_guess + usage.events}

    def note(self, took: Mapping[TokenKind, int], now: float) -> None:
        """Note lengths and times of the request in `untold`, at its end `now`.

        `took` is the result of `tokens`. Requests whose answers tell no tokens are left out.
        """
        if not took or not (self.usage.known or self.usage.events):
            return
        prompt = took.get(TokenKind.PROMPT, self.prompt_guess)
        output = took.get(TokenKind.COMPLETION, self.usage.events)
        first_s = self.first - self.since if self.first else NO_STREAM
        times = self.since, prompt, output, first_s, now - self.since
        self.untold.add(EndedRequest(*times, counted=self.usage.known))


class AccessGate:
    """Table of keys, and the counters for the limits of keys and tenants."""

    def __init__(
        self,
        tenants: RoutedDevices,
        metrics: RouterMetrics,
        table: AccessTable = NO_KEYS,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        self._clock, self._date = clock, date
        self._ring, self._limiter = KeyRing(table), Limiter()
        self._counts = KeyMetrics(lambda: tenants.models)
        self._tells = False
        """True once the metrics by key are registered."""

    def holds(self, table: AccessTable) -> None:
        """Replace the table of keys for new requests; running requests are not affected."""
        self._ring = KeyRing(table)
        if self._ring.asks and not self._tells:
            self._metrics.add(self._counts)
            self._tells = True
        names = {key.name for key in table.keys or ()}
        self._limiter.keep("key", names)
        self._counts.keep(names)

    def asks(self, request: web.Request) -> None:
        """Check the request's key, if its route needs one, and store it in the request under `KEY`.
        Raises `ApiError` if the key is missing, invalid or expired, or lacks the right.
        """
        if not self._ring.asks:
            return
        if is_probe(request):
            return
        resource = request.match_info.route.resource
        need = need_of(resource.canonical if resource is not None else None)
        try:
            key = self._ring.admitted(request.headers.items(), need, self._date())
        except ApiError as error:
            self._metrics.answered("", error.status)
            self._counts.answered("", "", error.status)
            raise
        if key is not None:
            request[KEY] = key

    # -- what a request may see ---------------------------------------------------------

    def is_admin(self, request: web.Request) -> bool:
        """True if the request came with an operator's key."""
        key = request.get(KEY)
        return key is not None and key.admin

    def key_name(self, request: web.Request) -> str:
        """Name of the request's key; empty if it was asked for none."""
        key = request.get(KEY)
        return key.name if key is not None else ""

    def opens(self, request: web.Request, row: RoutedRow, model: str) -> bool:
        """True if the request may use `model`, which is one of the tenant's names."""
        return may_use(request.get(KEY), row.name, model)

    # -- limits -------------------------------------------------------------------------

    def counts_tokens(self, request: web.Request, row: RoutedRow) -> bool:
        """True if tokens are limited for the request's key or for the tenant."""
        key = request.get(KEY)
        own = None if key is None else key.limits.tokens_per_minute
        return own is not None or row.limits.tokens_per_minute is not None

    def enters(
        self,
        request: web.Request,
        replicas: Sequence[RoutedTenant],
        model: str,
        shaped: ShapedBody,
    ) -> Passage:
        """Let a request pass, and count it for the limits. Call `leaves` when it has ended.

        Raises `ApiError` if it is over a limit. `replicas` share one limit, and a key whose
        requests have ended the engine of one of them too often is refused at all of them.
        """
        row = replicas[0].row
        parties = [LimitedParty("model", row.name, row.limits)]
        if (key := request.get(KEY)) is not None:
            for one in replicas:
                if (wait_s := one.strikes.wait_s(key.name, self._clock())) is not None:
                    raise struck(key.name, model, wait_s)
            parties.append(LimitedParty("key", key.name, key.limits))
        guess = prompt_guess(len(shaped.body), row.max_model_len)
        tokens = guess + shaped.output.most(row.max_model_len)
        now = self._clock()
        entered = self._limiter.enter(parties, tokens, now)
        if isinstance(entered, OverLimit):
            raise rate_limited(entered, model)
        return Passage(model, guess, entered, since=now, untold=replicas[0].untold)

    def leaves(self, request: web.Request, passage: Passage | None, status: int) -> None:
        """Note that a request has ended with `status`: count it and its tokens for its key's
        metrics, free its place in the limits, and keep its length and times for predictions.

        `passage` is None for a request that `enters` did not let in. Such a request counts only in
        its key's metrics.
        """
        key, model = request.get(KEY), passage.model if passage is not None else ""
        if key is not None:
            self._counts.answered(key.name, model, status)
        if passage is None:
            return
        took, now = passage.tokens(status), self._clock()
        self._limiter.leave(passage.entries, sum(took.values()), now)
        passage.note(took, now)
        if key is not None:
            for kind, tokens in took.items():
                self._counts.took(key.name, model, kind, tokens)


def struck(key: str, model: str, wait_s: float) -> ApiError:
    """Answer to a request of a key whose requests have ended the engine too often."""
    message = (
        f"model {model!r}: requests of key {key!r} ended its engine {MOST_STRIKES} times: "
        f"wait for {wait_s:.0f} s"
    )
    return ApiError(422, message, param="model", code="key_ended_engines", wait_s=wait_s)


def rate_limited(over: OverLimit, model: str) -> ApiError:
    """Answer to a request for `model`, by one of its names, that is over a limit."""
    party, most = over.party, f"{over.limit:,} {WORDS[over.field]}"
    name = model if party.kind == "model" else party.name
    message = f"{party.kind} {name!r} has its limit of {most}: try again later"
    return ApiError(429, message, code="rate_limit_exceeded", wait_s=over.wait_s)
