"""One run: the whole workload against one server, and the timeline of the server's memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

import aiohttp

from mirage.tools.replay import client
from mirage.tools.replay.asking import Manner
from mirage.tools.replay.child import ServerError
from mirage.tools.replay.client import PATIENT, Habits, Journal, Outcome
from mirage.tools.replay.stream import StatusRefused, StreamError
from mirage.tools.replay.timeline import (
    RecordedTimeline,
    ReplayState,
    cut,
    joined,
    parse_state,
    parse_timeline,
)
from mirage.workload.calls import tenants
from mirage.workload.dealing import TenantRequest

SETTLE_S = 3.0
"""Most seconds to wait for a sample that is newer than the last outcome."""

NEEDS_KEY = (401, 403)

Death = Callable[[], Coroutine[None, None, ServerError]]
"""Waits until the server has ended by itself; returns an error that describes it."""


@dataclass(frozen=True)
class PolicyRun:
    """Result of one run. `timeline` is None if the server keeps none."""

    policy: str
    calls: Collection[TenantRequest]
    outcomes: list[Outcome] = field(repr=False)
    duration_s: float
    timeline: RecordedTimeline | None = field(repr=False, default=None)
    interrupted: bool = False
    repeat: int = 1
    """Number of the run among several under this policy, from 1."""
    refused_fields: Sequence[str] = ()
    """Fields of a request that the server does not accept, and that were not sent to it."""


async def replay_on(
    url: str,
    calls: Collection[TenantRequest],
    seed: int,
    timeout_s: float,
    journal: Journal,
    policy: str | None = None,
    death: Death | None = None,
    habits: Habits = PATIENT,
    key: str | None = None,
) -> PolicyRun:
    """Warm up, send all calls by the `habits` of the client, and fetch the timeline.

    `timeout_s` limits each request. With `policy` None the server is asked for its policy. `death`
    returns when the server has ended. `key` is the API key, None if there is none. A cancel while
    sending ends the run early and returns the outcomes so far, marked `interrupted`. Raises
    `ServerError` if the server ends, does not answer, or does not serve a tenant, `TimelineError`
    for a timeline of another version or form, `TraceError` if the calls' trace cannot be read any
    more.
    """
    async with client.session(url, timeout_s, key) as http:
        manner = await _warm_up(http, sorted(tenants(calls)))
        before = await _state(http)
        asking = replace(habits, manner=manner)
        sending = client.send_all(http, calls, seed, journal, asking)
        interrupted = False
        try:
            await (_unless(death, sending) if death else sending)
        except asyncio.CancelledError:
            interrupted = _take_back_cancel()
        except ExceptionGroup as found:  # a trace that cannot be read a second time
            raise found.exceptions[0] from None
        return PolicyRun(
            policy=policy or (before.name if before else "server"),
            calls=calls,
            outcomes=sorted(journal.outcomes, key=lambda outcome: outcome.call.index),
            duration_s=journal.duration_s,
            timeline=await _timeline_since(http, before),
            interrupted=interrupted,
            refused_fields=manner.without(),
        )


async def _warm_up(http: aiohttp.ClientSession, tenants: Sequence[str]) -> Manner:
    try:
        return await client.warm_up(http, tenants)
    except TimeoutError:
        why = f"no end within {http.timeout.total:g} s: look at it, or raise --timeout"
    except (aiohttp.ClientError, StreamError) as error:
        why = str(error)
        if isinstance(error, StatusRefused) and error.status in NEEDS_KEY:
            why += ": give --key, or MIRAGE_API_KEY in the environment"
    raise ServerError(f"the server does not answer a first request: {why}")


async def _unless(death: Death, work: Awaitable[None]) -> None:
    """Await `work`; if the server ends first, raise its error."""
    dying, working = asyncio.ensure_future(death()), asyncio.ensure_future(work)
    try:
        await asyncio.wait((dying, working), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise dying.result()
        working.result()
    finally:
        dying.cancel()
        working.cancel()
        await asyncio.gather(dying, working, return_exceptions=True)


def _take_back_cancel() -> bool:
    """Withdraw the cancel that has just ended the sending, so that it does not affect later
    timeouts. Returns True: the run was interrupted.
    """
    if task := asyncio.current_task():
        task.uncancel()
    return True


async def _timeline_since(
    http: aiohttp.ClientSession, before: ReplayState | None
) -> RecordedTimeline | None:
    after = await _settled(http)
    if before is None or after is None:
        return None
    pages = [page async for page in _pages(http, before.t, after.t)]
    return cut(joined(pages), before, after) if pages else None


async def _pages(
    http: aiohttp.ClientSession, since: float | None, until: float
) -> AsyncIterator[RecordedTimeline]:
    """Pages of the timeline with samples after `since`, up to `until`; older servers return all in
    one page.
    """
    while since is not None and since < until:
        if (body := await _get(http, f"mirage/timeline?since={since!r}")) is None:
            return
        page = parse_timeline(body)
        yield page
        since = page.next_since


async def _settled(http: aiohttp.ClientSession) -> ReplayState | None:
    """A sample that is newer than this call, so that it includes the last step's counts; if none
    comes within `SETTLE_S`, the newest one. None if the server has no samples.
    """
    first = newest = await _state(http)
    start = monotonic()
    while first and newest and newest.t == first.t and monotonic() - start < SETTLE_S:
        await asyncio.sleep(0.1)
        newest = await _state(http)
    return newest


async def _state(http: aiohttp.ClientSession) -> ReplayState | None:
    body = await _get(http, "mirage/state")
    return parse_state(body) if body else None


async def _get(http: aiohttp.ClientSession, path: str) -> bytes | None:
    """Body of an answer; None from a server without this path, as a plain vLLM. Raises
    `ServerError` if the server does not answer.
    """
    try:
        async with http.get(path) as response:
            return await response.read() if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ServerError(f"the server does not answer /{path}: {error}") from None
