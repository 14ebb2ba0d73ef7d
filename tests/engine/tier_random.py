"""Child process: requests come, end and are aborted while memory and pool change at random.

python tier_random.py MODELS FAMILY SEED REQUESTS

Two steps are in flight. Prints facts as JSON.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from deferred import schedule_asynchronously
from tiered import Tiered

BASE = 48


def random_run(engine: Tiered, seed: int, count: int) -> dict[str, Any]:
    from vllm import SamplingParams

    rng = random.Random(seed)
    core = engine.llm.llm_engine
    shared = [engine.prompts(1, 100, seed=100 + i)[0] for i in range(4)]
    sent: dict[str, tuple[list[int], int]] = {}
    right = aborted = 0
    number = 0
    while number < count or core.has_unfinished_requests():
        if number < count and rng.random() < 0.3:
            own = [rng.randrange(3, 90) for _ in range(rng.randrange(1, 90))]
            prompt = [*rng.choice(shared)[: rng.randrange(0, 101)], *own]
            tokens = rng.randrange(1, 70)
            params = SamplingParams(
                max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False
            )
            core.add_request(str(number), {"prompt_token_ids": prompt}, params)
            sent[str(number)] = (prompt, tokens)
            number += 1
        if sent and rng.random() < 0.02:
            victim = rng.choice(sorted(sent))
            core.abort_request([victim])
            del sent[victim]
            aborted += 1
        for out in core.step():
            if out.finished and (asked := sent.pop(out.request_id.split("-")[0], None)):
                prompt, tokens = asked
                assert list(out.outputs[0].token_ids) == engine.circuit.generate(prompt, tokens)
                right += 1
        disturb(engine, rng)
    calm(engine)
    engine.settle()
    counts = engine.counts
    return {
        "right": right,
        "aborted": aborted,
        "hits": sum(counts.hits.values()),
        "stored": counts.stored_blocks,
        "failed_loads": counts.failed_loads,
        "pool_evicted": engine.pool.evicted,
        "preemptions": engine.scheduler.counts.preemptions,
    }


def disturb(engine: Tiered, rng: random.Random) -> None:
    """Change something at random: extents and layers go or come; the pool shrinks, is slow or
    silent, or loses blocks.
    """
    pool: Any = engine.pool
    if rng.random() < 0.1:
        remapped = rng.choice((0, 0, 1, 2)) if engine.scheduler.worker.memory.streamer else 0
        engine.allot(rng.randrange(18, BASE), remapped)
    if rng.random() < 0.03:
        pool.shrink(rng.choice((0, 20, 60, 4000)))
    pool.slow = rng.choice((0, 0, 3))
    pool.deep = rng.random() < 0.5
    pool.silent = rng.random() < 0.02
    pool.loses = rng.random() < 0.02


def calm(engine: Tiered) -> None:
    pool: Any = engine.pool
    pool.silent = pool.loses = False
    engine.allot(BASE)


def main(models: str, family: str, seed: str, count: str) -> None:
    schedule_asynchronously()
    engine = Tiered(Path(models), blocks=BASE, family=family)
    core = engine.llm.llm_engine.engine_core.engine_core
    assert core.batch_queue_size == 2
    print(json.dumps(random_run(engine, int(seed), int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
