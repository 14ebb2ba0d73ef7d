"""The client. Open loop: every call is sent at its own time, whatever the state of the others.
Closed loop: a fixed number of calls is in flight, and the next is sent when one ends.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import aiohttp

from mirage.tools.replay.asking import FULL, UNKNOWN_FIELD, Manner
from mirage.tools.replay.stream import StatusRefused, StreamedAnswer, error_message
from mirage.tools.replay.trail import NOTHING, Trail, trail
from mirage.tools.replay.turns import SessionTurns
from mirage.workload.dealing import TenantRequest
from mirage.workload.prompts import prompt_of


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one call. `error` is None if it completed; times are in seconds.

    All results are held until the end, so each of them is small.
    """

    call: TenantRequest
    """The call without its hashes and session, which only its prompt needs."""
    sent_s: float
    """Time at which it was sent, in seconds since the start."""
    lag_s: float
    """Seconds by which it was sent later than planned."""
    ended_s: float
    ttft_s: float
    e2el_s: float
    itl_s: Sequence[float]
    prompt_tokens: int
    output_tokens: int
    output: Trail
    error: str | None
    abandoned: bool = False
    """True if the client gave up waiting; `error` has the seconds."""
    text: str | None = None
    """Text of the output; None unless texts are kept."""

    def latencies_ms(self) -> dict[str, float] | None:
        """This request's latencies in milliseconds, by the names of the limits of `Slo`; None if it
        did not complete.

        ``itl_ms`` is the longest gap.
        """
        if self.error is not None:
            return None
        after_first = self.e2el_s - self.ttft_s
        return {
            "ttft_ms": self.ttft_s * 1e3,
            "tpot_ms": after_first / max(self.output_tokens - 1, 1) * 1e3,
            "itl_ms": max(self.itl_s, default=0.0) * 1e3,
            "e2el_ms": self.e2el_s * 1e3,
        }


@dataclass(frozen=True)
class Habits:
    """Behaviour of the client. With `concurrency` None it is an open loop."""

    concurrency: int | None = None
    """Requests in flight of a closed loop, which ignores arrival times."""
    abandon_s: float | None = None
    """Seconds after which the client gives a request up, as a person would; None: never."""
    manner: Manner = FULL
    """Fields of a request; `warm_up` finds those that the server accepts."""
    keep_texts: bool = False
    think_s: float | None = None
    """Open loop: least seconds from an answer to the next turn of its session. None: turns are sent
    at their times, answered or not.
    """


PATIENT = Habits()


@dataclass
class Journal:
    """Progress of a replay; it remains if the replay is stopped."""

    sent: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    failed: int = 0
    """Failed calls, without those that the client gave up: in these the server did not fail."""
    duration_s: float = 0.0
    """Seconds from the start to the last outcome."""
    changed: Callable[[Journal], None] = lambda journal: None
    """Called after each change."""

    def note_sent(self) -> None:
        self.sent += 1
        self.changed(self)

    def note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.failed += outcome.error is not None and not outcome.abandoned
        self.duration_s = max(self.duration_s, outcome.ended_s)
        self.changed(self)


def base(url: str) -> str:
    """Base of the requests' paths; `url` may or may not end in the /v1 that servers print."""
    return url.rstrip("/").removesuffix("/v1") + "/"


def session(url: str, timeout_s: float, key: str | None = None) -> aiohttp.ClientSession:
    """HTTP session with a limit of `timeout_s` seconds for each request, and none for their number.

    With `key` every request carries it, as servers with ``--api-key`` require. Each request has its
    own connection: a server may close an idle one just as it is used again, and a completion must
    not be sent twice.
    """
    return aiohttp.ClientSession(
        base(url),
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )


async def send_all(
    http: aiohttp.ClientSession,
    calls: Iterable[TenantRequest],
    seed: int,
    journal: Journal,
    habits: Habits = PATIENT,
) -> None:
    """Send all calls by the `habits` of the client, and write each outcome into the journal.

    A failed call stops no other. Cancelling ends the requests in flight; the journal keeps the
    outcomes so far.
    """
    sender = _Sender(http, seed, journal, habits)
    if habits.concurrency is None:
        await _open_loop(sender, calls, habits.think_s)
    else:
        await _closed_loop(sender, calls, habits.concurrency)


async def _open_loop(
    sender: _Sender, calls: Iterable[TenantRequest], think_s: float | None
) -> None:
    turns = None if think_s is None else SessionTurns(think_s, sender.send, sender.now)
    async with asyncio.TaskGroup() as group:
        for call in calls:
            await asyncio.sleep(max(0.0, call.at_s - sender.now()))
            sent = turns.take(call) if turns is not None else sender.send(call, call.at_s)
            group.create_task(sent)


async def _closed_loop(sender: _Sender, calls: Iterable[TenantRequest], concurrency: int) -> None:
    left = iter(calls)
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(_one_after_another(sender, left))


async def _one_after_another(sender: _Sender, left: Iterator[TenantRequest]) -> None:
    for call in left:
        await sender.send(call, sender.now())


async def warm_up(http: aiohttp.ClientSession, tenants: Sequence[str]) -> Manner:
    """Send one short completion to each tenant, so that no measured request pays for first use.

    Returns the fields that all tenants accept. Raises `StreamError`, `aiohttp.ClientError` or
    `TimeoutError` if a tenant does not answer.
    """
    manner = FULL
    for tenant in tenants:
        manner = await _accepted(http, tenant, manner)
    return manner


async def _accepted(http: aiohttp.ClientSession, tenant: str, manner: Manner) -> Manner:
    """The first manner, from `manner` on, that a tenant does not refuse. Raises the first refusal
    if there is none.
    """
    trying: Manner | None = manner
    refused: StatusRefused | None = None
    while trying is not None:
        try:
            body = trying.body(tenant, "Hello", 2)
            await _receive(http, body, StreamedAnswer(perf_counter()))
            return trying
        except StatusRefused as refusal:
            refused = refused or refusal
            trying = trying.simpler(str(refusal)) if refusal.status in UNKNOWN_FIELD else None
    assert refused is not None
    raise refused


class _Sender:
    """Sends calls over one HTTP session; times count from its construction."""

    def __init__(
        self, http: aiohttp.ClientSession, seed: int, journal: Journal, habits: Habits
    ) -> None:
        self._http, self._seed, self._journal = http, seed, journal
        self._abandon_s, self._manner = habits.abandon_s, habits.manner
        self._keep_texts = habits.keep_texts
        self.start = perf_counter()

    def now(self) -> float:
        """Seconds since the start."""
        return perf_counter() - self.start

    async def send(self, call: TenantRequest, planned_s: float) -> None:
        """Send one call, planned for `planned_s`, and note its outcome. Never raises an error of
        the server.
        """
        text = prompt_of(call, self._seed)
        body = self._manner.body(call.tenant, text, call.output_tokens)
        sent = perf_counter()
        answer, error, patience = StreamedAnswer(sent), None, asyncio.timeout(self._abandon_s)
        self._journal.note_sent()
        try:
            async with patience:
                await _receive(self._http, body, answer)
        except TimeoutError:
            error = f"no end within {self._http.timeout.total:g} s"
            if patience.expired():
                error = f"given up after {self._abandon_s:g} s"
        except Exception as problem:  # whatever it was: this call failed, and the others go on
            error = str(problem) or type(problem).__name__
        self._journal.note(
            Outcome(
                call=replace(call, session=None, prefix_hashes=()),
                sent_s=sent - self.start,
                lag_s=sent - self.start - planned_s,
                ended_s=self.now(),
                ttft_s=answer.ttft_s,
                e2el_s=answer.e2el_s,
                itl_s=array("f", answer.itl_s),
                prompt_tokens=answer.prompt_tokens,
                output_tokens=answer.output_tokens,
                output=trail(answer.text, answer.token_ids) if error is None else NOTHING,
                error=error,
                abandoned=patience.expired(),
                text=answer.text if self._keep_texts else None,
            )
        )


async def _receive(
    http: aiohttp.ClientSession, body: dict[str, object], answer: StreamedAnswer
) -> None:
    async with http.post("v1/completions", json=body) as response:
        if response.status != 200:
            raise StatusRefused(response.status, _reason(await response.text()))
        async for data in response.content.iter_any():
            answer.feed(data, perf_counter())
    answer.close()


def _reason(text: str) -> str:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    return error_message(body) if isinstance(body, dict) else " ".join(text.split())[:200]
