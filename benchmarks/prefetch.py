"""Gain of loading blocks from a disk while their request waits for a slot.

    .venv/bin/python benchmarks/prefetch.py [--disk-ms 30] [--tokens 400] [--rounds 7]

A real engine with one slot uses the real pool and a real folder, from which two blocks are read at
a time; each read is made `--disk-ms` longer. One request has the slot, and the blocks of the next
one's prompt are on the disk. With prefetch they are loaded while that request waits; without, when
the scheduler reaches it. The program prints medians of the time from the free slot to the first
token, in rounds that alternate, and the same with nothing stored.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

from tier_prefetch import EXTENTS, TOKENS, add, make

BUSY_TOKENS = 250
"""Tokens of the request that has the slot."""


def first_token_s(engine: Any, prompt: list[int], seed: int) -> float:
    """Seconds from the end of a request in the only slot to the first token of the prompt that
    waits for it.
    """
    core = engine.llm.llm_engine
    (busy,) = engine.prompts(1, 20, seed=seed)
    add(engine, "busy", busy, BUSY_TOKENS)
    core.step()
    add(engine, "next", prompt, TOKENS)
    free = first = None
    while core.has_unfinished_requests():
        for out in core.step():
            name = out.request_id.split("-")[0]
            if name == "busy" and out.finished:
                free = time.monotonic()
            if name == "next" and first is None and out.outputs[0].token_ids:
                first = time.monotonic()
            if name == "next" and out.finished:
                assert list(out.outputs[0].token_ids) == engine.circuit.generate(prompt, TOKENS)
    engine.settle()
    assert free is not None and first is not None
    return first - free


def reached_only(engine: Any) -> Iterable[str]:
    """Names of fetches whose requests the scheduler has reached. As the tiers' queue this begins no
    other load, so nothing is prefetched.
    """
    fetches = engine.tiers.manager._fetches
    return [name for name, fetch in fetches.items() if fetch.asked_s is not None]


def one_round(engine: Any, prompt: list[int], seed: int) -> dict[str, float]:
    """Seconds to the prompt's first token with prefetch, without it, and if the
    prompt is computed.
    """
    pool, ahead = engine.pool, engine.tiers.queue
    found = {}
    for name, queue in (("prefetch", ahead), ("without", lambda: reached_only(engine))):
        engine.sleep_and_wake(EXTENTS)
        pool.sink_all()
        engine.tiers.queue = queue
        before = pool.disk.counts.loaded
        found[name] = first_token_s(engine, prompt, seed)
        assert pool.disk.counts.loaded > before
    engine.tiers.queue = ahead
    engine.sleep_and_wake(EXTENTS)
    read_s, pool.disk.has = pool.disk.read_s, lambda name, nbytes: False
    pool.resize(0)
    pool.resize(pool._shared.core.span // 2)
    found["computed"] = first_token_s(engine, prompt, seed)
    del pool.disk.has
    pool.disk.read_s = read_s
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--disk-ms", type=float, default=30.0)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mirage-prefetch-") as models:
        engine = make(Path(models))
        (prompt,) = engine.prompts(1, args.tokens, seed=1)
        engine.pool.disk.read_s = args.disk_ms / 1000
        engine.run([prompt], TOKENS)
        engine.tiers.manager._patience._coming_s = 60.0
        rounds = [one_round(engine, prompt, seed) for seed in range(10, 10 + args.rounds)]
        engine.tiers.close()
    print(f"{args.tokens} tokens on a disk of {args.disk_ms:.0f} ms a block, {args.rounds} rounds")
    medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    for name, seconds in medians.items():
        print(f"{name:10} {1000 * seconds:7.1f} ms from the free slot to the first token")
    print(f"prefetch / without = {medians['prefetch'] / medians['without']:.2f}")


if __name__ == "__main__":
    main()
