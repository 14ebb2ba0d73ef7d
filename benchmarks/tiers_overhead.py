"""Cost of tiers where nothing can be found again: throughput against an engine without them.

python benchmarks/tiers_overhead.py [--rounds N]

Two engines of the same model, each in a process of its own, one of them above a host pool that
this process serves as `mirage serve` does. They take turns with the same prompts, of which no two
share a beginning, in KV memory so small that every block that leaves it is copied down, and the
pool evicts as it goes. Only one of them computes at a time, and who is first changes, so that a
drift of the machine meets both. Printed: tokens a second of each, and the median of the ratios of
neighbouring turns with its quartiles; then the same of processor time, the pool's included, which
a busy machine disturbs less, and which counts copies that run beside the computing as well.
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
"""Blocks of the device's KV memory, and requests that run at once: they use most of it."""
POOL_BYTES = 48 << 20
"""Less than what a few turns store."""
OFF, ON = "tiers off", "tiers on"


def engine(folder: str, pool: str | None) -> None:
    """Child process: compute a batch for each seed that is read, say how long it took."""
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
    """Counts of the tiers so far; empty without tiers."""
    from mirage.engine.tiers import present

    tiers = present.tiers()
    if tiers is None:
        return {}
    return {"stored": tiers.counts.stored_blocks, "loaded": tiers.counts.tokens_saved}


class Engine:
    """A child, asked by seed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def turn(self, seed: int) -> dict[str, Any]:
        """Seconds of a batch, and counts."""
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
    """An engine that is ended afterwards."""
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
    """A host pool in this process, as `mirage serve` has it."""
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
    """The table."""
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
    """Both clocks."""
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
