"""Time that serving adds to the engines' steps: a child process of `mirage profile`.

All engines of the configuration are served, under policy pooled. One request at a time shows the
time in HTTP and vLLM's front end before an engine has it. A burst shows the processor time of a
request in each process, and its time to the first token while all engines compute. A few requests
at a time, to one or several engines, show how much more processor time a request costs when several
engines compute and share caches. Many at a time show which of this is per step and which per token.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, count, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import psutil

from mirage.config import Policy
from mirage.processes.answering import answer
from mirage.serve.launch.launcher import SERVER
from mirage.tools.profile.serving import ReadingCost
from mirage.tools.replay import client
from mirage.tools.replay.child import Server
from mirage.tools.replay.client import Journal, Outcome
from mirage.tools.replay.policies import ReplayVariant
from mirage.workload.dealing import TenantRequest

SETTLE_S = 1.0
"""Seconds of load before a burst."""
SEED = 1
PATIENCE_S = 120.0
"""Most seconds of one request."""

_numbers = count()


class Spent:
    """Processor seconds spent in a `with` block, by field of `ReadingCost`; `front_s` is the sum
    of those in front of the engines.
    """

    def __enter__(self) -> Spent:
        self._before = _processor_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        spent = {part: s - self._before[part] for part, s in _processor_seconds().items()}
        self.parts = spent
        self.front_s = sum(spent.values()) - spent["engine"]


def _processor_seconds() -> dict[str, float]:
    """Processor seconds so far of this process, which is the client, and of its descendants, by
    field of `ReadingCost`.
    """
    me, spent = psutil.Process(), dict.fromkeys(ReadingCost._fields, 0.0)
    for process in (me, *me.children(recursive=True)):
        times = process.cpu_times()
        spent[part(" ".join(process.cmdline()), is_client=process == me)] += (
            times.user + times.system
        )
    return spent


def part(command: str, *, is_client: bool) -> str:
    """Field of `ReadingCost` that a process's time belongs to, by its command line and whether it
    is the client."""
    if is_client:
        return "client"
    if "EngineCore" in command:
        return "engine"
    return "server" if SERVER[-1] in command else "router"


@dataclass(frozen=True)
class ServedPlan:
    """Loads to measure, and numbers of repeats. `few` and `many` have a load for each tenant:
    requests at a time, and the tokens of prompt and output of each.
    """

    config: str
    log: str
    vllm: str
    """Socket of the process that is asked about the models."""
    prompt: int
    """Tokens of a short prompt."""
    alone: int
    """Requests to each tenant, one at a time."""
    burst: int
    """Short requests that are sent to one tenant at the same moment."""
    bursts: int
    load_s: float
    repetitions: int
    groups: int
    """Most groups of engines that compute at the same time, for each group size from 2 on."""
    few: dict[str, tuple[int, int, int]]
    many: dict[str, tuple[int, int, int]]


async def measured(url: str, asked: ServedPlan) -> dict[str, Any]:
    """Measured seconds, by tenant or by the number of engines under load. Raises `RuntimeError` if
    a request fails.
    """
    tenants = list(asked.few)
    async with client.session(url, PATIENCE_S) as http:
        await client.warm_up(http, tenants)
        alone = {name: await _one_by_one(http, name, asked) for name in tenants}
        bursts = {name: await _burst(http, name, asked) for name in tenants}
        beside = {name: await _burst_beside(http, name, asked) for name in tenants}
        loads = {
            size: [
                await _least_disturbed(http, {n: asked.few[n] for n in group}, asked)
                for group in islice(combinations(tenants, size), _most(size, asked))
            ]
            for size in range(1, len(tenants) + 1)
        }
        crowded = {n: await _least_disturbed(http, {n: asked.many[n]}, asked) for n in tenants}
    return {
        "prompt_tokens": asked.prompt,
        "first_token_s": alone,
        "spent_s": bursts,
        "burst_s": beside,
        "loads": loads,
        "crowded": crowded,
    }


def _most(size: int, asked: ServedPlan) -> int:
    """Number of groups of that size: every engine alone, and `groups` choices of several."""
    return len(asked.few) if size == 1 else asked.groups


async def _one_by_one(http: aiohttp.ClientSession, tenant: str, asked: ServedPlan) -> list[float]:
    """Seconds to the first token of short requests that run alone."""
    journal = Journal()
    for _ in range(asked.alone):
        await _send(http, tenant, (asked.prompt, 2), journal)
    return [outcome.ttft_s for outcome in _good(journal)]


async def _burst(http: aiohttp.ClientSession, tenant: str, asked: ServedPlan) -> dict[str, float]:
    """Processor seconds of one request of a burst, by field of `ReadingCost`; those of the engine
    include the computation of the request's prompt.
    """
    journal = Journal()
    with Spent() as spent:
        calls = [_call(tenant, (asked.prompt, 1)) for _ in range(asked.burst)]
        await client.send_all(http, calls, SEED, journal)
    requests = len(_good(journal))
    return {part: seconds / requests for part, seconds in spent.parts.items()}


async def _burst_beside(http: aiohttp.ClientSession, tenant: str, asked: ServedPlan) -> float:
    """Median TTFT in seconds of the requests of a burst, over the number of these requests, while
    all engines compute; median of the bursts.
    """
    times = [await _one_burst(http, tenant, asked) for _ in range(asked.bursts)]
    return statistics.median(times)


async def _one_burst(http: aiohttp.ClientSession, tenant: str, asked: ServedPlan) -> float:
    over = False
    journal = Journal()

    async def keep_busy(name: str, lengths: tuple[int, int]) -> None:
        while not over:
            await _send(http, name, lengths, Journal())

    async with asyncio.TaskGroup() as tasks:
        for name, (at_once, *lengths) in asked.few.items():
            for _ in range(at_once):
                tasks.create_task(keep_busy(name, (lengths[0], lengths[1])))
        await asyncio.sleep(SETTLE_S)
        calls = [_call(tenant, (asked.prompt, 1)) for _ in range(asked.burst)]
        await client.send_all(http, calls, SEED, journal)
        over = True
    # All get through together, and the first step then computes the first of them.
    return statistics.median(outcome.ttft_s for outcome in _good(journal)) / asked.burst


async def _least_disturbed(
    http: aiohttp.ClientSession, group: Mapping[str, tuple[int, int, int]], asked: ServedPlan
) -> dict[str, Any]:
    repetitions = [await _under_load(http, group, asked.load_s) for _ in range(asked.repetitions)]
    return min(repetitions, key=lambda found: float(found["engine_s"]))


async def _under_load(
    http: aiohttp.ClientSession, group: Mapping[str, tuple[int, int, int]], load_s: float
) -> dict[str, Any]:
    """Processor and end-to-end seconds of single requests while all engines of `group` are kept
    busy.
    """
    until = perf_counter() + load_s

    async def keep_busy(tenant: str, lengths: tuple[int, int], journal: Journal) -> None:
        while perf_counter() < until:
            await _send(http, tenant, lengths, journal)

    journals = {tenant: Journal() for tenant in group}
    with Spent() as spent:
        async with asyncio.TaskGroup() as tasks:
            for tenant, (at_once, prompt, output) in group.items():
                for _ in range(at_once):
                    tasks.create_task(keep_busy(tenant, (prompt, output), journals[tenant]))
    done = sum(len(_good(journal)) for journal in journals.values())
    return {
        "tenants": list(group),
        "engine_s": spent.parts["engine"] / done,
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


def _call(tenant: str, lengths: tuple[int, int]) -> TenantRequest:
    """A request that is sent immediately; its number is new, which makes its prompt unique."""
    return TenantRequest(next(_numbers), 0.0, tenant, *lengths, clipped=False)


def _good(journal: Journal) -> list[Outcome]:
    if journal.failed:
        raise RuntimeError(f"{journal.failed} requests failed: {journal.outcomes[-1].error}")
    return journal.outcomes


async def _serve_and_measure(asked: ServedPlan) -> dict[str, Any]:
    variant, more = ReplayVariant(Policy.POOLED, tiers=True), ["--ask-socket", asked.vllm]
    with Server(Path(asked.config), variant, Path(asked.log), more=more) as server:
        url = await server.ready(lambda seconds: None)
        return await measured(url, asked)


def measure(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Serve the configuration under policy pooled, and return the result of `measured`. `asked` has
    the fields of `ServedPlan`.

    Raises `ServerError` if the server does not start, and `RuntimeError` if a request fails.
    """
    return asyncio.run(_serve_and_measure(ServedPlan(**asked)))


if __name__ == "__main__":
    answer({"measure": measure})
