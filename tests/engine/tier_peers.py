"""Child process: peers revoke their memory and lend it again while requests run.

python tier_peers.py MODELS FAMILY SEED REQUESTS

Every text is compared with what the model says by itself. Prints facts as JSON.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from deferred import schedule_asynchronously
from tiered import Tiered

from mirage.tiers.contract import Medium
from tests.tampered.peer_pool import HOST_BLOCKS, PEER_BLOCKS

BASE = 32
WORKER = "tests.tampered.cpu_worker.PeeredWorker"


def run(engine: Tiered, seed: int, count: int) -> dict[str, Any]:
    from vllm import SamplingParams

    rng, core = random.Random(seed), engine.llm.llm_engine
    shared = [engine.prompts(1, 130, seed=100 + i)[0] for i in range(8)]
    sent: dict[str, tuple[list[int], int]] = {}
    right = number = 0
    while number < count or core.has_unfinished_requests():
        if number < count and rng.random() < 0.3:
            own = [rng.randrange(3, 90) for _ in range(rng.randrange(1, 40))]
            prompt, tokens = [*rng.choice(shared), *own], rng.randrange(1, 20)
            params = SamplingParams(
                max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False
            )
            core.add_request(str(number), {"prompt_token_ids": prompt}, params)
            sent[str(number)] = (prompt, tokens)
            number += 1
        for out in core.step():
            if out.finished:
                prompt, tokens = sent.pop(out.request_id.split("-")[0])
                assert list(out.outputs[0].token_ids) == engine.circuit.generate(prompt, tokens)
                right += 1
        disturb(engine, rng)
    engine.allot(BASE)
    engine.settle()
    return {"right": right, **facts(engine), "rescued": rescued(engine, shared[0])}


def disturb(engine: Tiered, rng: random.Random) -> None:
    pool: Any = engine.pool
    if rng.random() < 0.05:
        device, blocks = rng.choice(("near", "far")), rng.choice((0, 8, PEER_BLOCKS))
        pool.lend(device, blocks)
    if rng.random() < 0.02:
        pool.shrink(rng.choice((20, HOST_BLOCKS)))
    if rng.random() < 0.05:
        engine.allot(rng.randrange(18, BASE))


def rescued(engine: Tiered, prompt: list[int]) -> int:
    """Number of a prompt's blocks that come from host memory after all peers have revoked their
    memory.
    """
    pool: Any = engine.pool
    lend_all(pool, PEER_BLOCKS)
    engine.run([prompt], 1)
    engine.sleep_and_wake(BASE)
    lend_all(pool, 0)
    engine.settle()
    before = engine.counts.hits[Medium.HOST]
    engine.run([prompt], 1)
    return int(engine.counts.hits[Medium.HOST] - before)


def lend_all(pool: Any, blocks: int) -> None:
    for device in ("near", "far"):
        pool.lend(device, blocks)


def facts(engine: Tiered) -> dict[str, int]:
    pool: Any = engine.pool
    state = pool._shared.core.state()
    hits = engine.counts.hits
    return {
        "from_peers": hits[Medium.PEER],
        "revocations": state.peers.revocations,
        "failed_loads": engine.counts.failed_loads,
        "peer_loaded_bytes": state.peers.held.tenants["t"].counts.loaded_bytes,
        "block_bytes": engine.tiers.block_bytes,
    }


def main(models: str, family: str, seed: str, count: str) -> None:
    schedule_asynchronously()
    engine = Tiered(Path(models), blocks=BASE, family=family, worker=WORKER)
    print(json.dumps(run(engine, int(seed), int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
