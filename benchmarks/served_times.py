"""What serving adds to the steps of the engines: the second half of `crosscheck.py`'s measuring.

python benchmarks/served_times.py CONFIG OUT.json

All engines of the configuration are served, policy static. One request at a time tells what
HTTP and vLLM's front end take before an engine sees it; many at once, how fast they come
through; two at a time, to one engine or to several at once, how much longer everything takes
when several engines compute.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from itertools import combinations, count
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp

from mirage import config as configuration
from mirage.replay import client
from mirage.replay.child import Server
from mirage.replay.client import Journal, Outcome
from mirage.replay.workload import Call

ALONE = 12
"""Requests to each tenant, one at a time."""
SHORT = (16, 2)
MIDDLE = (160, 40)
"""Tokens of a prompt and of its output."""
BURST = 48
"""Short requests to one tenant at the same moment."""
AT_ONCE = 2
"""Requests to each engine under load."""
LOAD_S = 8.0
SEED = 1

_numbers = count()


async def measure(url: str, tenants: Sequence[str]) -> dict[str, Any]:
    """Seconds. `crowds[k]` are medians of end-to-end times with k engines under load."""
    async with client.session(url, 60.0) as http:
        await client.warm_up(http, tenants)
        alone = {name: await _one_by_one(http, name) for name in tenants}
        bursts = {name: await _burst(http, name) for name in tenants}
        crowds: dict[str, dict[str, list[float]]] = {}
        for size in range(1, len(tenants) + 1):
            found: dict[str, list[float]] = {name: [] for name in tenants}
            for group in combinations(tenants, size):
                for name, seconds in (await _under_load(http, group)).items():
                    found[name].append(seconds)
            crowds[str(size)] = found
    return {"prompt": SHORT[0], "first_token_s": alone, "burst_s": bursts, "crowds": crowds}


async def _one_by_one(http: aiohttp.ClientSession, tenant: str) -> float:
    """Median seconds to the first token of a short request that is alone."""
    journal = Journal()
    for _ in range(ALONE):
        await _send(http, tenant, SHORT, journal)
    return statistics.median(outcome.ttft_s for outcome in _good(journal))


async def _burst(http: aiohttp.ClientSession, tenant: str) -> float:
    """Seconds from one first token to the next, of requests that were sent together."""
    journal = Journal()
    await client.send_all(http, [_call(tenant, (SHORT[0], 1)) for _ in range(BURST)], SEED, journal)
    times = sorted(outcome.sent_s + outcome.ttft_s for outcome in _good(journal))
    return (times[-1] - times[0]) / (BURST - 1)


async def _under_load(http: aiohttp.ClientSession, group: Sequence[str]) -> dict[str, float]:
    """Median end-to-end seconds of each tenant while all of `group` are kept busy."""
    until = perf_counter() + LOAD_S

    async def keep_busy(tenant: str, journal: Journal) -> None:
        while perf_counter() < until:
            await _send(http, tenant, MIDDLE, journal)

    journals = {tenant: Journal() for tenant in group}
    async with asyncio.TaskGroup() as tasks:
        for tenant, journal in journals.items():
            for _ in range(AT_ONCE):
                tasks.create_task(keep_busy(tenant, journal))
    return {
        tenant: statistics.median(outcome.e2el_s for outcome in _good(journal))
        for tenant, journal in journals.items()
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
    names = [tenant.name for tenant in configuration.load(config).tenants]
    with Server(config, "static", log) as server:
        url = await server.ready(lambda seconds: None)
        return await measure(url, names)


def main() -> None:
    config, out = map(Path, sys.argv[1:])
    found = asyncio.run(_serve_and_measure(config, out.with_suffix(".log")))
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
