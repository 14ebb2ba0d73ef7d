"""Odd and hostile clients at length, before servers with light engines and with vLLM's.

`MIRAGE_TEST_MINUTES` shortens the ten minutes of what is drawn, and the operations with them;
`MIRAGE_TEST_SEED` repeats a draw.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from mirage.units import MIB
from tests.e2e.clients import connected, counted
from tests.e2e.odd_clients import (
    SLOW_BODY,
    SLOW_HEAD,
    Front,
    Soak,
    Steady,
    after,
    fuzz,
    sent_whole,
    slow,
)
from tests.e2e.odd_requests import HIDDEN, OddRequest, corpus, malformed
from tests.e2e.supervised import Served, serving, write_config, write_demo
from tests.e2e.test_router_odd import STATUS, faults, run, said

pytestmark = pytest.mark.long

MINUTES = float(os.environ.get("MIRAGE_TEST_MINUTES", "10"))
SEED = int(os.environ.get("MIRAGE_TEST_SEED") or time.time())
SLOW = 500
"""Heads, and as many bodies."""
BODIES, BODY_BYTES = 100, 60 * MIB
MALFORMED = 10_000
FAMILIES = ("opt", "llama")
BUDGET = 256 * MIB
SPARE = 64 * MIB
"""Bytes that a process may have more of, whatever is asked of it: buffers of sockets, and what its
allocator keeps."""


def light(folder: Path) -> Path:
    return write_config(folder, "a", "b")


def test_slow_clients_leave_nothing_behind(tmp_path: Path) -> None:
    with serving(light(tmp_path)) as served:
        served.drain()
        asyncio.run(_slow_clients(served))
        assert served.end(signal.SIGTERM)[0] == 0


async def _slow_clients(served: Served) -> None:
    front, steady = Front(served), Steady(served.url)
    await steady.rate(after(3))  # warm
    memory, files = front.memory(), front.files()
    alone = await steady.rate(after(15))
    begins = [SLOW_HEAD, SLOW_BODY] * SLOW
    begun = time.monotonic()
    those = asyncio.gather(*(slow(served.url, begin) for begin in begins))
    beside = await steady.rate(those.done)
    ends = Counter(await those)
    print(
        f"{2 * SLOW} slow clients: others have {beside / alone:.3f} of their rate ({alone:.0f}/s)"
    )
    print(f"all are ended after {time.monotonic() - begun:.0f} s: {dict(ends)}")
    if shutil.which("slowhttptest"):
        for way in ("-H", "-B"):
            tool = _slowhttptest(served.url, way)
            rate = await steady.rate(lambda tool=tool: tool.poll() is not None)
            print(f"slowhttptest {way}: others have {rate / alone:.3f} of their rate")
    await front.has_at_most(files + 8)
    grown = front.memory() - memory
    print(f"memory {grown / MIB:+.1f} MiB, {front.files() - files:+d} descriptors")
    assert ends == {408: 2 * SLOW}
    assert set(steady.statuses) == {200}
    assert grown < SPARE


def _slowhttptest(url: str, way: str) -> subprocess.Popen[bytes]:
    words = f"slowhttptest {way} -c {SLOW} -r 200 -i 2 -l 45 -p 5 -u {url}/v1/completions"
    more = ["-s", "65536", "-x", "10"] if way == "-B" else []
    return subprocess.Popen([*words.split(), *more], stdout=subprocess.DEVNULL)


def test_a_hundred_large_bodies_stay_within_their_budget(tmp_path: Path) -> None:
    with serving(light(tmp_path)) as served:
        served.drain()
        asyncio.run(_large_bodies(served))
        assert served.end(signal.SIGTERM)[0] == 0


async def _large_bodies(served: Served) -> None:
    front = Front(served)
    await Steady(served.url).rate(after(2))
    memory, most = front.memory(), 0
    more = "x" * BODY_BYTES
    data = json.dumps({"model": "a", "prompt": "silent", "more": more}).encode()
    fit, held = BUDGET // len(data), list[None]()
    sent = partial(held.append, None)
    asking = [asyncio.create_task(sent_whole(served.url, data, sent)) for _ in range(BODIES)]
    steady, over = Steady(served.url), asyncio.Event()
    others = asyncio.create_task(steady.rate(over.is_set))
    async with asyncio.timeout(300):
        while len(held) < fit or sum(task.done() for task in asking) < BODIES - fit:
            most = max(most, front.memory())
            await asyncio.sleep(0.05)
    answers = [task.result() for task in asking if task.done()]
    over.set()
    await others
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    print(f"{Counter(status for status, _ in answers)}, {(most - memory) / MIB:.0f} MiB at most")
    assert {status for status, _ in answers} <= {413, 429, 503}
    assert all(headers.get("retry-after") for status, headers in answers if status != 413)
    assert set(steady.statuses) == {200}
    assert most - memory <= 1.2 * BUDGET + SPARE


def test_what_is_malformed_is_told_so_in_few_lines(tmp_path: Path) -> None:
    with serving(light(tmp_path)) as served:
        served.drain()
        statuses = asyncio.run(_malformed(served.url))
        print(dict(statuses))
        assert statuses.keys() <= {400} and statuses.total() >= MALFORMED
        assert len(served.log) <= 200 and not [each for each in served.log if "Traceback" in each]
        assert served.end(signal.SIGTERM)[0] == 0


async def _malformed(url: str) -> Counter[int]:
    """Statuses of all answers; each is read until the connection is closed."""
    few, statuses = asyncio.Semaphore(64), Counter[int]()

    async def one(data: bytes) -> None:
        async with few, asyncio.timeout(60):
            reader, writer = await connected(url, data)
            told = await reader.read()
            writer.close()
            json.loads(told.rpartition(b"\r\n\r\n")[2])
            statuses.update(int(status) for status in STATUS.findall(told))

    await asyncio.gather(*(one(data) for data in malformed(SEED, MALFORMED)))
    return statuses


def test_no_request_is_hidden_in_another_one_before_a_server(tmp_path: Path) -> None:
    odd = corpus()

    async def scenario(url: str) -> tuple[list[bytes], float]:
        few = asyncio.Semaphore(20)

        async def one(each: OddRequest) -> bytes:
            async with few:
                return await said(url, each, b'"server"')

        answers = await asyncio.gather(*map(one, odd))
        async with aiohttp.ClientSession() as http:
            seen = await counted(http, url, "mirage_http_requests_total")
        return answers, sum(n for labels, n in seen.items() if 'tenant="a"' in labels)

    with serving(light(tmp_path)) as served:
        served.drain()
        answers, behind = asyncio.run(scenario(served.url))
        wrong = [each.name for each, told in zip(odd, answers, strict=True) if b" 50" in told[:14]]
        print(f"{len(odd)} kinds, {behind:.0f} requests behind")
        assert wrong == []
        least = sum(each.most for each in odd if each.legal)
        assert least <= behind <= sum(each.most for each in odd)
        assert served.end(signal.SIGTERM)[0] == 0


def test_no_two_kinds_together_hide_a_request(tmp_path: Path) -> None:
    dice, kinds = random.Random(SEED), corpus()
    pairs = [dice.sample(kinds, 2) for _ in range(2000)]
    odd = [OddRequest(str(n), a.data + b.data, a.most + b.most) for n, (a, b) in enumerate(pairs)]
    told, engine = run(tmp_path, odd)
    assert faults(odd, told, Counter()) == []
    assert engine.violations == []
    assert HIDDEN not in engine.prompts
    most = Counter[str]()
    for pair in pairs:
        for each in pair:
            most[each.name] += each.most
    assert Counter(engine.prompts) <= most


@pytest.mark.timeout(60 * MINUTES + 1500)
def test_nothing_in_our_document_is_answered_with_a_fault(tmp_path: Path) -> None:
    print(f"seed {SEED}, {MINUTES:g} minutes")
    with serving(write_demo(tmp_path, FAMILIES, "96MiB"), fake=False) as served:
        served.drain()
        phases = "coverage,fuzzing"
        found = fuzz(served, tmp_path, list(FAMILIES), 60 * MINUTES, SEED, phases)
        engines = served.request("GET", "/mirage/state")[1]["engines"]
        print(dict(found), {name: engine["restarts"] for name, engine in engines.items()})
        assert found and not [status for status in found if status >= 500 and status != 501]
        assert served.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize("fake, operations", [(True, 200_000), (False, 2_000)])
def test_a_soak_leaves_memory_and_descriptors_flat(
    tmp_path: Path, fake: bool, operations: int
) -> None:
    some = int(operations * min(1.0, MINUTES / 10))
    config = light(tmp_path) if fake else write_demo(tmp_path, FAMILIES, "96MiB")
    with serving(config, fake=fake) as served:
        served.drain()
        asyncio.run(_soak(served, ("a", "b") if fake else FAMILIES, some))
        assert served.end(signal.SIGTERM)[0] == 0


async def _soak(served: Served, models: tuple[str, ...], operations: int) -> None:
    front, soak = Front(served), Soak(served.url, models)
    await soak.run(operations // 5, SEED)
    held = [(front.memory(), front.files())]
    begun = time.monotonic()
    for part in range(4):
        await soak.run(operations // 5, SEED + part + 1)
        held.append((front.memory(), front.files()))
    minutes = (time.monotonic() - begun) / 60
    await front.has_at_most(held[0][1] + 16)
    grown = held[-1][0] - held[0][0]
    told = [f"{memory / MIB:.1f} MiB {files}" for memory, files in held]
    print(f"{operations} operations: {dict(soak.count)}; memory and descriptors {told}")
    print(f"{grown / MIB:+.2f} MiB in {minutes:.1f} minutes after a fifth of the operations")
    assert not [status for status in soak.count if status >= 500]
    assert grown < SPARE
