"""Requests that two readers could understand differently: refused, or read once and
alike by both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from clients import connected
from odd_requests import HIDDEN, OddRequest, corpus, malformed
from raw_engine import ANSWER, RawEngine, raw_engine
from routed import routed

from mirage.config import Policy
from mirage.control.roster.states import LifeState
from mirage.serve.registry.registry import Registry, TenantServer

pytestmark = pytest.mark.e2e

QUIET_S = 1.0
"""Seconds without a byte after which an answer counts as ended."""
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
AT_ONCE = 20


async def said(url: str, odd: OddRequest, mark: bytes = ANSWER) -> bytes:
    """Bytes of all answers on a connection: until its end, until nothing came for `QUIET_S`, or
    until a legal request has all its answers (each ends with `mark`).
    """
    reader, writer = await connected(url, odd.data)
    told = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while not odd.legal or told.count(mark) < odd.most:
            async with asyncio.timeout(QUIET_S):
                if not (more := await reader.read(1 << 16)):
                    break
            told += more
    writer.close()
    return told


def check(odd: OddRequest, told: bytes, seen: Counter[str]) -> list[str]:
    """Faults in the answers to one odd request and in what its engine has `seen`: server errors,
    too many or too few requests, refusals without JSON.
    """
    statuses = [int(each) for each in STATUS.findall(told)]
    wrong = [f"{odd.name}: {status}" for status in statuses if status >= 500]
    if seen[odd.name] > odd.most or (odd.legal and seen[odd.name] < odd.most):
        wrong.append(f"{odd.name}: {seen[odd.name]} of {odd.most} were seen, answers {statuses}")
    if refusals := [each for each in statuses if each >= 400]:
        last = told.rpartition(b"\r\n\r\n")[2]
        if refusals[-1] == statuses[-1] and b"HEAD " not in odd.data:
            try:
                json.loads(last)
            except ValueError:
                wrong.append(f"{odd.name}: {last[:80]!r}")
    return wrong


def run(folder: Path, odd: list[OddRequest]) -> tuple[list[bytes], RawEngine]:
    """Send each odd request to a router; return the answers, and the engine behind the router."""

    async def main() -> tuple[list[bytes], RawEngine]:
        async with raw_engine(folder / "a.sock") as engine:
            tenant = TenantServer("a", folder / "a.sock", 256, LifeState.READY)
            few = asyncio.Semaphore(AT_ONCE)
            async with routed(folder, Registry(Policy.MIRAGE, 1 << 30, {"a": tenant})) as site:

                async def one(each: OddRequest) -> bytes:
                    async with few:
                        return await said(site.url, each)

                return await asyncio.gather(*map(one, odd)), engine

    return asyncio.run(main())


def faults(odd: list[OddRequest], told: list[bytes], seen: Counter[str]) -> list[str]:
    """Faults of all odd requests, as `check` finds them."""
    return [line for each, said in zip(odd, told, strict=True) for line in check(each, said, seen)]


def test_no_request_is_hidden_in_another_one(tmp_path: Path) -> None:
    odd = corpus()
    assert len({each.name for each in odd}) == len(odd)
    told, engine = run(tmp_path, odd)
    assert faults(odd, told, Counter(engine.prompts)) == []
    assert engine.violations == []
    assert HIDDEN not in engine.prompts


def test_what_is_malformed_is_told_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd = [OddRequest(str(n), data, 0) for n, data in enumerate(malformed(1, 300))]
    told, engine = run(tmp_path, odd)
    assert faults(odd, told, Counter()) == []
    assert engine.prompts == []
    assert {int(status) for said in told for status in STATUS.findall(said)} == {400}
    assert len(caplog.records) < 100 and not [each for each in caplog.records if each.exc_info]
