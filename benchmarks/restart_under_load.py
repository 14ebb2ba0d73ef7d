"""Cost of a killed engine's restart for the other tenants of a server, and its seconds.

python -m benchmarks.restart_under_load [--rounds 3] [--clients 1] [--tokens 64] [--kinds warm,cold]

A round is a server of the demonstration's three models. The first one's engine core is killed
(SIGKILL) without any load, which gives the seconds of a restart of an idle server; then all three
get streams without a pause, and the core is killed again. Seconds of a restart are those of the
server's own line, without the pause before it. Of the other tenants the program prints the requests
that failed from the kill until the engine serves again, and median and P99 of the time per output
token, of streams that lie wholly in that time and of those in the calm seconds before. The last
lines have, for warm and for cold starts, the failed requests of all rounds, and medians over the
rounds, beside the aims: no failed request, a median time per output token of at most 1.5 times that
of the calm seconds, and 10 s for a restart of the idle server.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import aiohttp

from benchmarks.starts import StartedServer, core_of, written

NAMES = ("llama", "opt", "qwen3")
"""Tenants; the first is killed."""
CALM_S, AFTER_S, PATIENCE_S = 10.0, 1.0, 600.0
OK = "200"
AIM, RESTART_S = 1.5, 10.0


class TimedStream(NamedTuple):
    """One stream; times of the monotonic clock, in seconds."""

    tenant: str
    begun: float
    ended: float
    token_s: float
    """Seconds per output token after the first."""
    kind: str


class Streams:
    """Clients of all tenants, each with one stream after the other and no pause between them."""

    def __init__(self, url: str, tokens: int) -> None:
        self._url, self._tokens = url, tokens
        self.ended: list[TimedStream] = []
        self._work: list[asyncio.Task[None]] = []

    def begin(self, clients: int) -> None:
        """Start `clients` clients of each tenant."""
        each = [name for name in NAMES for _ in range(clients)]
        self._work = [asyncio.create_task(self._client(name)) for name in each]

    async def stop(self) -> None:
        """End all clients and their requests."""
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    async def _client(self, tenant: str) -> None:
        timeout = aiohttp.ClientTimeout(PATIENCE_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                begun, token_s = time.monotonic(), 0.0
                try:
                    kind, token_s = await self._stream(session, tenant)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    kind = type(error).__name__
                ended = time.monotonic()
                self.ended.append(TimedStream(tenant, begun, ended, token_s, kind))

    async def _stream(self, session: aiohttp.ClientSession, tenant: str) -> tuple[str, float]:
        body = {"model": tenant, "prompt": [5, 6, 7], "max_tokens": self._tokens}
        more = {"ignore_eos": True, "temperature": 0, "stream": True}
        url, times, last = f"{self._url}/v1/completions", [], b""
        async with session.post(url, json=body | more) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    times.append(time.monotonic())
                last = line.strip() or last
            if answer.status != 200:
                return str(answer.status), 0.0
            if last != b"data: [DONE]":
                return "broken", 0.0
        return OK, (times[-1] - times[0]) / (self._tokens - 1)

    def between(self, begin: float, end: float) -> list[TimedStream]:
        """Streams of the tenants whose engine is not killed, from `begin` to `end`: those that lie
        wholly between, and those that failed there.
        """
        others = (one for one in self.ended if one.tenant != NAMES[0] and begin <= one.ended <= end)
        return [one for one in others if one.begun >= begin or one.kind != OK]


class Cost(NamedTuple):
    """Outcome of one round: seconds of both restarts, failed requests of the other tenants, and
    their times.
    """

    idle_s: float
    loaded_s: float
    failed: int
    calm: list[float]
    """Seconds per output token of each stream before the kill."""
    meanwhile: list[float]
    """The same from the kill until the engine serves again."""

    @property
    def ratio(self) -> float:
        return statistics.median(self.meanwhile) / statistics.median(self.calm)

    def __str__(self) -> str:
        spans = " to ".join(
            f"{1e3 * statistics.median(times):.1f} (P99 {1e3 * late(times):.1f})"
            for times in (self.calm, self.meanwhile)
        )
        return (
            f"restart idle {self.idle_s:.1f} s, under load {self.loaded_s:.1f} s; others: "
            f"{self.failed} failed, TPOT {spans} ms, ratio {self.ratio:.2f}, "
            f"P99 {late(self.meanwhile) / late(self.calm):.2f}, {len(self.meanwhile)} streams"
        )


def late(times: list[float]) -> float:
    """99th percentile of some times."""
    return sorted(times)[min(len(times) - 1, int(0.99 * len(times)))]


async def suffer(folder: Path, kind: str, clients: int, tokens: int) -> Cost:
    """Measure one round: a restart while idle, one under load, and the streams that fail meanwhile.
    The restarted engine starts `kind`: "warm" (as a fork) or "cold".
    """
    config = written(folder, list(NAMES), warm=kind == "warm")
    with StartedServer(folder, config) as server:
        await asyncio.to_thread(server.wait_ready)
        await killed(server, 1)
        idle_s = server.seconds_of_starts(NAMES[0])[1]
        streams = Streams(server.url, tokens)
        streams.begin(clients)
        try:
            await asyncio.sleep(CALM_S)
            at = time.monotonic()
            await killed(server, 2)
            again = time.monotonic()
            await asyncio.sleep(AFTER_S)
        finally:
            await streams.stop()
        calm = streams.between(at - CALM_S, at)
        meanwhile = streams.between(at, again)
        failed = sum(one.kind != OK for one in meanwhile)
        times = [[one.token_s for one in part if one.kind == OK] for part in (calm, meanwhile)]
        return Cost(idle_s, server.seconds_of_starts(NAMES[0])[2], failed, *times)


async def killed(server: StartedServer, before: int) -> None:
    """Kill the first tenant's core, which has started `before` times, and wait until it is ready
    again.
    """
    core_of(server.process.pid, NAMES[0]).kill()
    await asyncio.to_thread(server.wait_started, NAMES[0], before + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=1, help="streams at once of each tenant")
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--kinds", default="warm,cold")
    told = parser.parse_args()
    costs: dict[str, list[Cost]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="mirage-restarts-") as folder:
        for number in range(told.rounds):
            for kind in told.kinds.split(","):
                cost = asyncio.run(suffer(Path(folder), kind, told.clients, told.tokens))
                costs[kind].append(cost)
                print(f"{number} {kind}: {cost}", flush=True)
    for kind, all_of_it in costs.items():
        ratio = statistics.median(cost.ratio for cost in all_of_it)
        idle_s, loaded_s = (
            statistics.median(times)
            for times in zip(*((c.idle_s, c.loaded_s) for c in all_of_it), strict=True)
        )
        print(
            f"{kind}, medians: {sum(cost.failed for cost in all_of_it)} requests of others failed "
            f"(aim 0), TPOT ratio {ratio:.2f} (aim {AIM:g}), restart idle {idle_s:.1f} s (aim "
            f"{RESTART_S:g} s), under load {loaded_s:.1f} s"
        )


if __name__ == "__main__":
    main()
