"""Seconds from an engine's request for KV memory until it can use it, with and without streams.

python -m benchmarks.growth_latency [--rounds 5] [--seconds 10] [--chunks 20000] [--streams 20]

`mirage serve` runs as a command, with light engines (`growth_engine.py`) that ask, map and answer
as vLLM's do. Two of them grow alternately beyond their shares: one asks for a piece, the other
gives it up, and it is granted and mapped. Engines run on the second processor; the router and the
load run on the first. Rounds with and without chunks alternate. The program prints P50 and P99 of
each kind, the rate at which chunks came through, the ratio of the two P99, and the part of the time
in which host memory is mapped and unmapped, which the kernel clears.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.growth_engine import EVENT

ROOT = Path(__file__).parents[1]
ENGINE = str(Path(__file__).with_name("growth_engine.py"))
SERVE = f"""
import sys
from mirage.cli import main
from mirage.serve.launch.programs import Means
from tests.e2e.with_fakes import HERE
probe = (str(HERE / "fake_probe.py"),)
main(sys.argv[1:], Means(server=({ENGINE!r},), probe=probe))
"""
AIM_S = 0.005
NAMES = ("first", "second")
READY_S = 120
WARM_S = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--chunks", type=int, default=20_000, help="chunks a second")
    parser.add_argument("--streams", type=int, default=20)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("it takes two processors, one of them for the engines")
    os.sched_setaffinity(0, {cores[0]})
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        found = Path(name) / "growth"
        found.touch()
        with served(Path(name), found, cores[1]) as url:
            time.sleep(WARM_S)
            windows = asyncio.run(rounds(url, options))
        show(windows, found, options.chunks)


@contextmanager
def served(folder: Path, found: Path, core: int) -> Iterator[str]:
    """Run a server whose engines run on the processor `core` while the block runs; gives its
    address.
    """
    sys.path.insert(0, str(ROOT / "tests" / "pure"))
    from model_folder import make_folder

    make_folder(folder / "model")
    own = {"model": "model", "share": 50, "max_model_len": 128}
    tenants = [{"name": each, **own} for each in NAMES]
    content = {"device": {"memory": "64MiB"}, "dtype": "float32", "tenants": tenants}
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    ready = folder / "ready.json"
    words = ["serve", "config.yaml", "--port", "0", "--ready-file", str(ready)]
    around = {"PYTHONPATH": str(ROOT), "GROWTH_FILE": str(found), "GROWTH_CORE": str(core)}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, *words, "--log-level", "error"],
        cwd=folder,
        env=os.environ | around,
    )
    try:
        until = time.monotonic() + READY_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the server did not get ready")
            time.sleep(0.1)
        yield json.loads(ready.read_text())["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


Window = tuple[float, float, int]
"""Begin and end of a round on the clock of all processes, and chunks that came."""


async def rounds(url: str, options: argparse.Namespace) -> dict[bool, list[Window]]:
    """Rounds without and with chunks, alternated."""
    windows: dict[bool, list[Window]] = {False: [], True: []}
    for number in range(2 * options.rounds):
        talks = number % 2 == 1
        begun = time.monotonic()
        if talks:
            pace = options.chunks / options.streams
            each = int(pace * options.seconds)
            asked = {"model": NAMES[0], "prompt": "x", "stream": True, "max_tokens": each}
            body = json.dumps(asked | {"best_of": pace}).encode()
            came = sum(await asyncio.gather(*(read(url, body) for _ in range(options.streams))))
        else:
            await asyncio.sleep(options.seconds)
            came = 0
        windows[talks].append((begun, time.monotonic(), came))
    return windows


async def read(url: str, body: bytes) -> int:
    """Read one stream to its end; return the number of its events."""
    headers = {"Content-Type": "application/json"}
    count = 0
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
        http.post(f"{url}/v1/completions", data=body, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        async for piece in answer.content.iter_any():
            count += len(piece)
    return count // len(EVENT)


def _numbers(lines: Iterable[list[str]]) -> NDArray[np.float64]:
    return np.array([[float(number) for number in line] for line in lines]).reshape(-1, 2)


def show(windows: dict[bool, list[Window]], found: Path, chunks: int) -> None:
    """Print a line for each kind of round, and their comparison."""
    lines = [line.split() for line in found.read_text().splitlines()]
    grown = _numbers(line for line in lines if line[0] != "maps")
    mapped = _numbers(line[1:] for line in lines if line[0] == "maps")
    mapped = mapped[np.argsort(mapped[:, 0])]
    p99 = {}
    for talks, some in windows.items():
        inside = [(begin <= grown[:, 0]) & (grown[:, 0] < end) for begin, end, _ in some]
        each = [grown[mask, 1] * 1e3 for mask in inside]
        took = np.concatenate(each)
        if not len(took):
            raise SystemExit("nothing has grown: see what the server says")
        p50, p99[talks] = np.percentile(took, (50, 99))
        spread = [float(np.percentile(one, 99)) for one in each if len(one)]
        seconds = sum(end - begin for begin, end, _ in some)
        rate = sum(came for *_, came in some) / seconds
        name = f"{rate:>7,.0f} of {chunks:,} chunks/s" if talks else "no chunks"
        print(
            f"{name:<28} {len(took):>6} times  P50 {p50:6.2f} ms  P99 {p99[talks]:6.2f} ms  "
            f"(of rounds {min(spread):.2f} to {max(spread):.2f})"
        )
    begins = np.searchsorted(mapped[:, 0], grown[:, 0])
    ends = np.searchsorted(mapped[:, 0], grown.sum(axis=1))
    total = np.concatenate([[0.0], mapped[:, 1].cumsum()])
    maps = (total[ends] - total[begins]) * 1e3
    rest = grown[:, 1] * 1e3 - maps
    for words, each in (("mapping, of both engines", maps), ("the rest", rest)):
        p50, last = np.percentile(each, (50, 99))
        print(f"{words:<28} {'':>12} P50 {p50:6.2f} ms  P99 {last:6.2f} ms")
    print(f"P99 with chunks is {p99[True] / p99[False]:.2f} of P99 without; aim {AIM_S * 1e3:g} ms")


if __name__ == "__main__":
    main()
