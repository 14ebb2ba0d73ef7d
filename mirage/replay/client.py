"""The open-loop client: every call leaves at its own time, whatever came of the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import aiohttp

from mirage.replay.stream import Answer, StreamError, error_message
from mirage.workload.dealing import Call
from mirage.workload.prompts import prompt_of


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one call. `error` is None for a completed one; times are seconds."""

    call: Call
    sent_s: float
    """When it left, since the start."""
    lag_s: float
    """How much later than planned that was."""
    ended_s: float
    ttft_s: float
    e2el_s: float
    itl_s: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int
    text: str
    token_ids: tuple[int, ...]
    error: str | None


@dataclass
class Journal:
    """What has happened so far; it outlives a replay that is stopped."""

    sent: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    failed: int = 0
    duration_s: float = 0.0
    """From the start to the last outcome."""
    changed: Callable[[], None] = lambda: None

    def note_sent(self) -> None:
        self.sent += 1
        self.changed()

    def note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.failed += outcome.error is not None
        self.duration_s = max(self.duration_s, outcome.ended_s)
        self.changed()


def session(url: str, timeout_s: float) -> aiohttp.ClientSession:
    """A session whose requests end within `timeout_s`, as many at once as are asked for.

    One connection per request: a server may close an idle one just as it is used again,
    and a completion must not be sent twice.
    """
    return aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    )


async def send_all(
    http: aiohttp.ClientSession, calls: Iterable[Call], seed: int, journal: Journal
) -> None:
    """Send each call at its time and write what comes of it into the journal.

    A failed call stops no other. Cancelling ends the requests in flight; the journal keeps
    those that had ended.
    """
    start = perf_counter()
    async with asyncio.TaskGroup() as group:
        for call in calls:
            await asyncio.sleep(max(0.0, start + call.at_s - perf_counter()))
            group.create_task(_one(http, call, seed, start, journal))


async def warm_up(http: aiohttp.ClientSession, tenants: Sequence[str]) -> None:
    """One short completion per tenant, so that no measured request pays for first use.

    Raises `StreamError` or `aiohttp.ClientError` if a tenant does not answer.
    """
    for tenant in tenants:
        answer = Answer(perf_counter())
        await _receive(http, _body(tenant, "Hello", 2), answer)


async def _one(
    http: aiohttp.ClientSession, call: Call, seed: int, start: float, journal: Journal
) -> None:
    body = _body(call.tenant, prompt_of(call, seed), call.output_tokens)
    sent = perf_counter()
    answer, error = Answer(sent), None
    journal.note_sent()
    try:
        await _receive(http, body, answer)
    except TimeoutError:
        error = f"no end within {http.timeout.total:g} s"
    except Exception as problem:  # whatever it was: this call failed, and the others go on
        error = str(problem) or type(problem).__name__
    journal.note(
        Outcome(
            call=call,
            sent_s=sent - start,
            lag_s=sent - start - call.at_s,
            ended_s=perf_counter() - start,
            ttft_s=answer.ttft_s,
            e2el_s=answer.e2el_s,
            itl_s=tuple(answer.itl_s),
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            text=answer.text,
            token_ids=tuple(answer.token_ids),
            error=error,
        )
    )


async def _receive(http: aiohttp.ClientSession, body: dict[str, object], answer: Answer) -> None:
    async with http.post("/v1/completions", json=body) as response:
        if response.status != 200:
            raise StreamError(f"HTTP {response.status}: {_reason(await response.text())}")
        async for data in response.content.iter_any():
            answer.feed(data, perf_counter())
    answer.close()


def _body(tenant: str, text: str, output_tokens: int) -> dict[str, object]:
    """`ignore_eos` makes the output as long as the trace says; `return_token_ids` is vLLM's,
    and lets outputs be compared where different tokens read the same."""
    return {
        "model": tenant,
        "prompt": text,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def _reason(text: str) -> str:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    return error_message(body) if isinstance(body, dict) else " ".join(text.split())[:200]
