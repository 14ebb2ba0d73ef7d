"""Child process: queued requests whose blocks are on a slow disk. Prints facts as JSON.

python tier_prefetch.py MODELS

One request runs at a time, and priorities reverse the order of arrival.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tiny
from tiered import Tiered

from mirage.tiers.contract import Key

EXTENTS = 60
TOKENS = 8
WORKER = "tests.tampered.cpu_worker.DiskedWorker"


def make(models: Path, **arguments: Any) -> Tiered:
    """An engine that runs one request at a time, above a disk."""
    return Tiered(models, blocks=EXTENTS, worker=WORKER, arguments={"max_num_seqs": 1, **arguments})


def on_disk(engine: Tiered, batch: list[list[int]]) -> None:
    """Compute prompts, after which their blocks are on the disk and nowhere else."""
    engine.run(batch, TOKENS)
    engine.sleep_and_wake(EXTENTS)
    pool: Any = engine.pool
    pool.sink_all()
    pool.disk.risen.clear()


def add(engine: Tiered, name: str, prompt: list[int], tokens: int, priority: int = 0) -> None:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
    engine.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params, priority=priority)


def queued(engine: Tiered, batch: list[list[int]]) -> dict[str, Any]:
    """Scene: requests wait for the only running one, which is long. The last one is the most
    urgent, so its blocks come up first.
    """
    core, pool = engine.llm.llm_engine, engine.pool
    disk: Any = pool.disk
    (busy,) = engine.prompts(1, 20, seed=9)
    add(engine, "busy", busy, 300, priority=-1)
    core.step()
    for number, prompt in enumerate(batch):
        add(engine, str(number), prompt, TOKENS, priority=len(batch) - number)
    owner = keys_of(engine)
    begun = engine.scheduler.counts.tokens
    said: dict[str, list[int]] = {}
    while core.has_unfinished_requests():
        for out in core.step():
            if out.finished:
                said[out.request_id.split("-")[0]] = list(out.outputs[0].token_ids)
    for number, prompt in enumerate(batch):
        assert said[str(number)] == engine.circuit.generate(prompt, TOKENS)
    engine.settle()
    return {
        "order": list(dict.fromkeys(owner[key] for key in disk.risen)),
        "risen": len(disk.risen),
        "blocks": sum(len(prompt) // tiny.BLOCK_TOKENS for prompt in batch),
        "most_under_way": disk.most_under_way,
        "computed": engine.scheduler.counts.tokens - begun - 299,
        "asked": sum(map(len, batch)) + len(batch) * (TOKENS - 1),
        "late": engine.counts.late_loads,
    }


def keys_of(engine: Tiered) -> dict[Key, int]:
    """Number of the queued request that lacks each key."""
    lacks = engine.tiers.manager._prefetch._lacks
    return {key: int(request.split("-")[0]) for request, keys in lacks.items() for key in keys}


def held(engine: Tiered, batch: list[list[int]]) -> int:
    """Number of blocks that come up from the disk for a batch that the device has cached: there
    should be none.
    """
    pool: Any = engine.pool
    pool.sink_all()
    pool.disk.risen.clear()
    engine.run(batch, TOKENS)
    return len(pool.disk.risen)


def main(models: str) -> None:
    engine = make(Path(models), scheduling_policy="priority")
    pool: Any = engine.pool
    batch = engine.prompts(6, 150, seed=1)
    on_disk(engine, batch)
    engine.tiers.manager._patience._coming_s = 60.0  # on a slow machine as well
    pool.disk.read_s = 0.002
    facts = queued(engine, batch)
    facts["risen_of_the_device"] = held(engine, batch)
    print(json.dumps(facts))
    engine.tiers.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
