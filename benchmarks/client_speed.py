"""Streamed tokens a second that the replay's client can count on one core, and its added latency.

python benchmarks/client_speed.py [--rates 1000,2500,5000,7500,10000] [--seconds 10]

A server on a core of its own writes the time into every token just before it sends it. The client
of `mirage replay` runs on another core. The time from then until the client counts the token is the
latency that client and kernel add. On a busy machine it includes the waits for a core.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Iterator
from time import perf_counter

import numpy as np
from aiohttp import web
from answering import DONE, answering, event, streamed

from mirage.tools.replay import client
from mirage.tools.replay.client import Habits, Journal, Outcome
from mirage.workload.dealing import TenantRequest

STREAM_TOKENS_PER_S = 50
"""Tokens a second of one stream; there are as many streams as the rate needs."""
STAMP = 16
"""Characters of a token: nanoseconds of the monotonic clock, as `perf_counter` counts."""
PROMPT_TOKENS = 100
ABOUT = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "echo"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="1000,2500,5000,7500,10000")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    print(
        f"{'tokens/s asked':>15} {'had':>8} {'added P50, ms':>14} {'P99, ms':>9} {'core busy':>10}"
    )
    for rate in map(int, options.rates.split(",")):
        print(measured(rate, options.seconds, cores))


def measured(rate: int, seconds: float, cores: list[int]) -> str:
    """Measure one rate of tokens, and return its line of the table."""
    with answering(stream, core=cores[0]) as url:
        os.sched_setaffinity(0, {cores[-1]})
        try:
            return asyncio.run(_measured(url, rate, seconds))
        finally:
            os.sched_setaffinity(0, cores)


async def _measured(url: str, rate: int, seconds: float) -> str:
    streams, tokens = max(1, rate // STREAM_TOKENS_PER_S), round(seconds * STREAM_TOKENS_PER_S)
    # Spread over a token's time: many at one instant would wait for each other.
    gap = 1 / STREAM_TOKENS_PER_S / streams
    calls = [
        TenantRequest(n, n * gap, "echo", PROMPT_TOKENS, tokens, clipped=False)
        for n in range(streams)
    ]
    journal = Journal()
    async with client.session(url, seconds * 10 + 60) as http:
        start, busy = perf_counter(), time.process_time()
        await client.send_all(http, calls, 0, journal, Habits(keep_texts=True))
        wall, busy = perf_counter() - start, time.process_time() - busy
    assert not journal.failed, [outcome.error for outcome in journal.outcomes if outcome.error][:1]
    added = np.array([ms for one in journal.outcomes for ms in added_ms(one, start)])
    p50, p99 = np.percentile(added, (50, 99))
    return f"{rate:>15,} {len(added) / wall:>8,.0f} {p50:>14.2f} {p99:>9.2f} {busy / wall:>10.0%}"


def added_ms(outcome: Outcome, start: float) -> Iterator[float]:
    """Milliseconds from the sending of each token to its counting by the client."""
    came = np.cumsum([start + outcome.sent_s + outcome.ttft_s, *outcome.itl_s])
    said = outcome.text or ""
    texts = [said[at : at + STAMP] for at in range(0, len(said), STAMP)]
    for when, text in zip(came, texts, strict=True):
        yield float(when - int(text) / 1e9) * 1e3


async def stream(request: web.Request) -> web.StreamResponse:
    """Stream tokens as vLLM does, each with the time at which it is sent."""
    body = await request.json()
    response = await streamed(request)
    start = perf_counter()
    for number in range(body["max_tokens"]):
        await asyncio.sleep(start + (number + 1) / STREAM_TOKENS_PER_S - perf_counter())
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None}
        choice |= {"stop_reason": None, "token_ids": [number], "prompt_token_ids": None}
        choice["text"] = f"{round(perf_counter() * 1e9):0{STAMP}d}"
        await response.write(event(**ABOUT, choices=[choice]))
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": body["max_tokens"]}
    await response.write(event(choices=[], usage=usage))
    await response.write(DONE)
    return response


if __name__ == "__main__":
    main()
