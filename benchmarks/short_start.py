"""Restart of an engine whose share is lent: with its whole share and hollow, alternated.

python -m benchmarks.short_start [--rounds 3] [--streams 12] [--tokens 600]

Two of the demonstration's models have half of a device each. One of them gets more streams than the
device has KV cache for, which takes layers of the other, an idle one. Then the core of the idle
model's engine is killed (SIGKILL), and the model immediately gets a request. "whole" waits until
its share is free, as where a start needs all parameters in memory; "hollow" starts once the least
is free with which the engine serves. The program prints the seconds from the kill to the text, the
seconds of the start itself, the time per output token of streams that ended before the kill and of
those that ran at it, whether all texts are the same, and the server's line about the start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import aiohttp
import yaml

from benchmarks.starts import StartedServer, core_of
from mirage.tools.demo.models import make_models

KILLED, BUSY = "llama", "qwen3"
LAYERS, MEMORY = 8, "60MiB"
SETTLED_S, PATIENCE_S = 3.0, 600.0
WHOLE = (
    "import mirage.serve.engines.command as command; command.hollow_start = lambda *given: None; "
    "from mirage.cli import main; import sys; main(sys.argv[1:])"
)
"""The `mirage` command whose engines never start hollow."""
PROGRAMS = {"whole": ("-c", WHOLE), "hollow": ("-m", "mirage")}


class BusyStream(NamedTuple):
    """One request of the tenant whose engine is not killed. `begun` and `ended` are seconds of the
    monotonic clock; `token_s` is the seconds per output token."""

    begun: float
    ended: float
    token_s: float
    text: str


class ShortStart(NamedTuple):
    """Outcome of one round: `text_s` is the seconds from the kill of the idle model's engine until
    the model's next request is answered, `start_s` the seconds of the engine's start alone."""

    text_s: float
    start_s: float
    before: float
    """Median seconds per output token of streams that ended before the kill."""
    meanwhile: float
    """Median seconds per output token of streams that ran when the engine was killed."""
    same: bool
    how: str
    """Line of the server about the engine's start after the kill."""


async def complete(session: aiohttp.ClientSession, url: str, name: str, tokens: int) -> str:
    """Send one request and return its text."""
    body = {"model": name, "prompt": "a number", "max_tokens": tokens, "temperature": 0}
    async with session.post(f"{url}/v1/completions", json=body | {"ignore_eos": True}) as answer:
        told = json.loads(await answer.read())
        assert answer.status == 200, told
        return str(told["choices"][0]["text"])


async def round_of(folder: Path, kind: str, streams: int, tokens: int) -> ShortStart:
    """Measure one round: one server and one restart, of a `kind` in `PROGRAMS`."""
    config = written(folder, tokens)
    with StartedServer(folder, config, PROGRAMS[kind]) as server:
        await asyncio.to_thread(server.wait_ready)
        timeout = aiohttp.ClientTimeout(PATIENCE_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            alone = await complete(session, server.url, KILLED, 20)
            other = await complete(session, server.url, BUSY, tokens)
            ended: list[BusyStream] = []

            async def busy() -> None:
                while True:
                    begun = time.monotonic()
                    text, now = await complete(session, server.url, BUSY, tokens), time.monotonic()
                    ended.append(BusyStream(begun, now, (now - begun) / tokens, text))

            work = [asyncio.create_task(busy()) for _ in range(streams)]
            try:
                while len(ended) < streams:
                    await asyncio.sleep(0.1)
                await asyncio.sleep(SETTLED_S)  # those that ended together took little with them
                while not await lent(session, server.url):
                    await asyncio.sleep(0.1)
                core_of(server.process.pid, KILLED).kill()
                at = time.monotonic()
                again = ""
                while not again:
                    try:
                        again = await complete(session, server.url, KILLED, 20)
                    except (AssertionError, aiohttp.ClientError):  # it has not been noticed yet
                        await asyncio.sleep(0.05)
                text_at = time.monotonic()
                while not ran(ended, at):
                    await asyncio.sleep(0.1)
            finally:
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
        return ShortStart(
            text_at - at,
            server.seconds_of_starts(KILLED)[1],
            statistics.median(one.token_s for one in ended if one.ended < at),
            statistics.median(ran(ended, at)),
            again == alone and {one.text for one in ended} == {other},
            [line for line in server.lines(f"{KILLED}: starting") if " for " not in line][-1],
        )


def ran(ended: list[BusyStream], at: float) -> list[float]:
    """Seconds per output token of each stream that ran at the time `at`, by the monotonic clock."""
    return [one.token_s for one in ended if one.begun < at < one.ended]


async def lent(session: aiohttp.ClientSession, url: str) -> bool:
    """True if the idle tenant has lent at least two layers."""
    async with session.get(f"{url}/mirage/state") as answer:
        return bool(json.loads(await answer.read())["tenants"][KILLED]["layers_remapped"] >= 2)


def written(folder: Path, tokens: int) -> Path:
    """Write the configuration of both tenants, and return its path."""
    paths = make_models(folder, which=[KILLED, BUSY], layers=LAYERS)
    tenants = [
        {"name": name, "model": str(path), "share": 50, "max_model_len": tokens + 100}
        for name, path in paths.items()
    ]
    config = folder / "config.yaml"
    content = {"device": {"memory": MEMORY}, "dtype": "float32", "tenants": tenants}
    config.write_text(yaml.safe_dump(content))
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=12, help="at once, of the one that goes on")
    parser.add_argument("--tokens", type=int, default=600, help="of each stream")
    told = parser.parse_args()
    rounds: dict[str, list[ShortStart]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="mirage-short-") as name:
        for number in range(told.rounds):
            for kind in PROGRAMS:
                one = asyncio.run(round_of(Path(name), kind, told.streams, told.tokens))
                rounds[kind].append(one)
                print(
                    f"{number} {kind}: text {one.text_s:.1f} s after the kill, start "
                    f"{one.start_s:.1f} s; TPOT of streams {1e3 * one.before:.1f}, then "
                    f"{1e3 * one.meanwhile:.1f} ms; texts {'same' if one.same else 'DIFFER'}; "
                    f"{one.how}",
                    flush=True,
                )
    medians = {kind: statistics.median(r.text_s for r in some) for kind, some in rounds.items()}
    ratio = medians["hollow"] / medians["whole"]
    print(f"medians: {medians} s from the kill to the text, ratio {ratio:.2f}")
    if not all(one.same for some in rounds.values() for one in some):
        sys.exit("texts differ")


if __name__ == "__main__":
    main()
