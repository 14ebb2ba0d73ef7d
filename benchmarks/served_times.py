"""What serving adds to the steps of the engines: the second half of `crosscheck.py`'s measuring.

python benchmarks/served_times.py CONFIG OUT.json

All engines of the configuration are served, policy pooled. One request at a time tells what
HTTP and vLLM's front end take before an engine sees it; many at once, how much processor time
each costs there, and how long they take to get through while all engines compute; two at a time,
to one engine or to several at once, how much more processor time a request costs when several
engines compute and share caches; and many at a time, what of that is for each step and what for
each token.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations, count
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import psutil
from host_loads import FEW, MANY, Load

from mirage import config as configuration
from mirage.replay import client
from mirage.replay.child import Server
from mirage.replay.client import Journal, Outcome
from mirage.workload.dealing import Call

ALONE = 12
"""Requests to each tenant, one at a time."""
SHORT = (16, 2)
"""Tokens of a prompt and of its output."""
BURST = 48
"""Short requests to one tenant at the same moment."""
BURSTS = 3
SETTLE_S = 1.0
"""Seconds of load before a burst."""
LOAD_S = 6.0
PASSES = 2
SEED = 1

_numbers = count()


class Spent:
    """Processor seconds in a `with` block: of the engines, and of all else that serves."""

    def __enter__(self) -> Spent:
        self._before = _processor_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        engines, front = _processor_seconds()
        self.engines_s, self.front_s = engines - self._before[0], front - self._before[1]


def _processor_seconds() -> tuple[float, float]:
    """(engines, all else) of this process and all below it."""
    me = psutil.Process()
    engines = front = 0.0
    for process in (me, *me.children(recursive=True)):
        times = process.cpu_times()
        if "EngineCore" in " ".join(process.cmdline()):
            engines += times.user + times.system
        else:
            front += times.user + times.system
    return engines, front


async def measure(url: str, most: Mapping[str, int]) -> dict[str, Any]:
    """Seconds, by tenant or by number of engines under load; `most` requests that each runs."""
    tenants = list(most)
    async with client.session(url, 60.0) as http:
        await client.warm_up(http, tenants)
        alone = {name: await _one_by_one(http, name) for name in tenants}
        bursts = {name: await _burst(http, name) for name in tenants}
        beside = {name: await _burst_beside(http, name, tenants) for name in tenants}
        loads = {
            size: [
                await _least_disturbed(http, group, FEW) for group in combinations(tenants, size)
            ]
            for size in range(1, len(tenants) + 1)
        }
        crowded = {n: await _least_disturbed(http, [n], MANY.limited(most[n])) for n in tenants}
    return {
        "prompt_tokens": SHORT[0],
        "first_token_s": alone,
        "front_s": bursts,
        "burst_s": beside,
        "loads": loads,
        "crowded": crowded,
    }


async def _one_by_one(http: aiohttp.ClientSession, tenant: str) -> float:
    """Median seconds to the first token of a short request that is alone."""
    journal = Journal()
    for _ in range(ALONE):
        await _send(http, tenant, SHORT, journal)
    return statistics.median(outcome.ttft_s for outcome in _good(journal))


async def _burst(http: aiohttp.ClientSession, tenant: str) -> float:
    """Processor seconds before the engine, of each of many requests that come at once."""
    journal = Journal()
    with Spent() as spent:
        calls = [_call(tenant, (SHORT[0], 1)) for _ in range(BURST)]
        await client.send_all(http, calls, SEED, journal)
    return spent.front_s / len(_good(journal))


async def _burst_beside(http: aiohttp.ClientSession, tenant: str, tenants: Sequence[str]) -> float:
    """Seconds from one request of a burst to the next, where all engines compute."""
    return statistics.median([await _one_burst(http, tenant, tenants) for _ in range(BURSTS)])


async def _one_burst(http: aiohttp.ClientSession, tenant: str, tenants: Sequence[str]) -> float:
    over = False
    journal = Journal()

    async def keep_busy(name: str) -> None:
        while not over:
            await _send(http, name, (FEW.prompt, FEW.output), Journal())

    async with asyncio.TaskGroup() as tasks:
        for name in tenants:
            for _ in range(FEW.at_once):
                tasks.create_task(keep_busy(name))
        await asyncio.sleep(SETTLE_S)
        calls = [_call(tenant, (SHORT[0], 1)) for _ in range(BURST)]
        await client.send_all(http, calls, SEED, journal)
        over = True
    # All get through together, and the first step then computes the first of them.
    return statistics.median(outcome.ttft_s for outcome in _good(journal)) / BURST


async def _least_disturbed(
    http: aiohttp.ClientSession, group: Sequence[str], load: Load
) -> dict[str, Any]:
    passes = [await _under_load(http, group, load) for _ in range(PASSES)]
    return min(passes, key=lambda found: float(found["engine_s"]))


async def _under_load(
    http: aiohttp.ClientSession, group: Sequence[str], load: Load
) -> dict[str, Any]:
    """What a request takes while all engines of `group` are kept busy."""
    until = perf_counter() + LOAD_S

    async def keep_busy(tenant: str, journal: Journal) -> None:
        while perf_counter() < until:
            await _send(http, tenant, (load.prompt, load.output), journal)

    journals = {tenant: Journal() for tenant in group}
    with Spent() as spent:
        async with asyncio.TaskGroup() as tasks:
            for tenant, journal in journals.items():
                for _ in range(load.at_once):
                    tasks.create_task(keep_busy(tenant, journal))
    done = sum(len(_good(journal)) for journal in journals.values())
    return {
        "tenants": list(group),
        "engine_s": spent.engines_s / done,
        "front_s": spent.front_s / done,
        "e2el_s": {
            tenant: statistics.median(outcome.e2el_s for outcome in journal.outcomes)
            for tenant, journal in journals.items()
        },
    }


async def _send(
    http: aiohttp.ClientSession, tenant: str, lengths: tuple[int, int], journal: Journal
) -> None:
    await client.send_all(http, [_call(tenant, lengths)], SEED, journal)


def _call(tenant: str, lengths: tuple[int, int]) -> Call:
    """At once; its number makes its prompt a new one."""
    return Call(next(_numbers), 0.0, tenant, *lengths, clipped=False)


def _good(journal: Journal) -> list[Outcome]:
    if journal.failed:
        raise RuntimeError(f"{journal.failed} requests failed: {journal.outcomes[-1].error}")
    return journal.outcomes


async def _serve_and_measure(config: Path, log: Path) -> dict[str, Any]:
    most = {tenant.name: tenant.max_num_seqs for tenant in configuration.load(config).tenants}
    with Server(config, "pooled", log) as server:
        url = await server.ready(lambda seconds: None)
        return await measure(url, most)


def main() -> None:
    config, out = map(Path, sys.argv[1:])
    found = asyncio.run(_serve_and_measure(config, out.with_suffix(".log")))
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
