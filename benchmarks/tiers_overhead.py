"""Overhead of tiers whose blocks are never found again: throughput over that of an engine without.

python benchmarks/tiers_overhead.py [--rounds N]

Two engines of the same model have a process each. One of them uses a host pool, which this process
serves as `mirage serve` does. They alternate with the same prompts, of which no two share a
beginning. KV memory is so small that each block that leaves it is copied down, and the pool evicts
as it goes. Only one engine computes at a time, and the one that is first changes, so that a drift
of the machine affects both. The program prints tokens a second of each, and the median of the
ratios of neighbouring turns with its quartiles; then the same by processor time, the pool's
included. A busy machine disturbs processor time less, and it counts copies that run beside the
computing as well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

REQUESTS, PROMPT, ANSWER = 12, 320, 64
BLOCKS, AT_ONCE = 120, 6
"""Blocks of the device's KV memory, and requests that run at the same time: they use most of it."""
POOL_BYTES = 48 << 20
"""Bytes of the host pool: less than a few turns store."""
OFF, ON = "tiers off", "tiers on"


def engine(folder: str, pool: str | None) -> None:
    """Child process: compute a batch for each seed that is read, and write its
    seconds and counts.
    """
    import tiny

    from mirage.tools.demo.models import make_models

    path = make_models(Path(folder), which=("llama",))["llama"]
    settings: dict[str, Any] = {"policy": "mirage", "page": 65536, "base_blocks": BLOCKS}
    llm = tiny.make_llm(
        path,
        mirage=settings | {"tier_socket": pool},
        dtype="float32",
        max_num_seqs=AT_ONCE,
        max_num_batched_tokens=1024,
    )
    for line in sys.stdin:
        batch = prompts(int(line))
        wall, processor = time.perf_counter(), time.process_time()
        tiny.run(llm, batch, ANSWER, logprobs=None)
        took = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
        print(json.dumps({**took, **counts()}), flush=True)


def prompts(seed: int) -> list[list[int]]:
    """Prompts of one batch: nothing in common with those of any other."""
    rng = random.Random(seed)
    return [[rng.randrange(3, 90) for _ in range(PROMPT)] for _ in range(REQUESTS)]


def counts() -> dict[str, int]:
    """Blocks stored and tokens loaded by this process's tiers so far; empty if it has none."""
    from mirage.engine.tiers import present

    tiers = present.tiers()
    if tiers is None:
        return {}
    return {"stored": tiers.counts.stored_blocks, "loaded": tiers.counts.tokens_saved}


class Engine:
    """Parent's side of an engine in a child process, which computes a batch for each seed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def turn(self, seed: int) -> dict[str, Any]:
        """Let the engine compute a batch; returns its seconds and counts. The processor time
        includes this process's.
        """
        own = time.process_time()
        told = self._ask(seed)
        return told | {"processor": told["processor"] + time.process_time() - own}

    def _ask(self, seed: int) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise SystemExit("an engine ended: see above")


@contextmanager
def started(folder: Path, pool: Path | None) -> Iterator[Engine]:
    """Run an engine while the block runs."""
    words = [sys.executable, __file__, "--engine", str(folder), *([str(pool)] if pool else [])]
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    ) as process:
        try:
            yield Engine(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


@contextmanager
def pool(socket: Path) -> Iterator[Path]:
    """Serve a host pool from this process while the block runs, as `mirage serve` does."""
    from mirage.tiers.core import Core
    from mirage.tiers.ledger import Due
    from mirage.tiers.server import PoolServer

    server = PoolServer(socket, Core(POOL_BYTES), {"t": Due()})
    server.start()
    try:
        yield socket
    finally:
        server.stop()


def measure(folder: Path, rounds: int) -> None:
    """Measure both engines, and print the table."""
    with ExitStack() as stack:
        off = stack.enter_context(started(folder, None))
        on = stack.enter_context(started(folder, stack.enter_context(pool(folder / "pool"))))
        for seed in (rounds, rounds + 1):  # what is used for the first time, memory that fills
            off.turn(seed), on.turn(seed)
        told: dict[str, list[dict[str, Any]]] = {OFF: [], ON: []}
        for number in range(rounds):
            order = ((OFF, off), (ON, on)) if number % 2 == 0 else ((ON, on), (OFF, off))
            for name, one in order:
                told[name].append(one.turn(number))
    show(told)


def show(told: dict[str, list[dict[str, Any]]]) -> None:
    """Print tokens a second of both engines, and their ratios by both clocks."""
    tokens = REQUESTS * (PROMPT + ANSWER)
    for name, turns in told.items():
        rate = tokens / statistics.median(turn["wall"] for turn in turns)
        print(f"{name:>10} {rate:>8.0f} tokens a second")
    for clock in ("wall", "processor"):
        pairs = zip(told[OFF], told[ON], strict=True)
        ratios = [off[clock] / on[clock] for off, on in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"with tiers over without, by {clock} time: {middle:.3f}, "
            f"quartiles {low:.3f} to {high:.3f}"
        )
    last = told[ON][-1]
    print(f"rounds {len(told[ON])}, blocks stored {last['stored']}, tokens loaded {last['loaded']}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput with tiers and nothing to reuse.")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each engine")
    parser.add_argument("--engine", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.engine:
        engine(asked.engine[0], *(asked.engine[1:] or [None]))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), asked.rounds)


if __name__ == "__main__":
    main()
