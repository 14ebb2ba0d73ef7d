"""Child process: an engine above a pool, scene by scene. Prints facts as JSON.

python tier_scenes.py MODELS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tiny
import vllm
from tier_guard import slow_copies
from tiered import Tiered

from mirage.tiers.patience import COMING_S

EXTENTS = 40
TOKENS = 8


def asked(batch: list[list[int]]) -> int:
    """Number of tokens that a batch computes if nothing is reused."""
    return sum(map(len, batch)) + len(batch) * (TOKENS - 1)


def reused(engine: Tiered) -> dict[str, Any]:
    """Scene: the same prompts come again after all cached blocks have left the device."""
    batch = engine.prompts(4, 150, seed=1)
    first = engine.run(batch, TOKENS)
    stored_before = engine.counts.stored_blocks
    sought = engine.pool.sought
    engine.run(batch, TOKENS)
    sought = engine.pool.sought - sought
    engine.sleep_and_wake(EXTENTS)
    again = engine.run(batch, TOKENS)
    # vLLM computes the last token of a prompt that is held whole.
    held = sum(min(len(p) // tiny.BLOCK_TOKENS * tiny.BLOCK_TOKENS, len(p) - 1) for p in batch)
    return {
        "asked": asked(batch),
        "first": first,
        "again": again,
        "overlap": held,
        "sought_of_the_device": sought,
        "blocks": sum(len(p) // tiny.BLOCK_TOKENS for p in batch),
        "stored_while_all_fits": stored_before,
    }


def turns(engine: Tiered) -> dict[str, Any]:
    """Scene: a prompt continues an earlier answer, whose decoded blocks are found in the pool as
    well.
    """
    (prompt,) = engine.prompts(1, 70, seed=2)
    engine.run([prompt], 64)
    engine.sleep_and_wake(EXTENTS)
    longer = [*prompt, *engine.circuit.generate(prompt, 64), 5, 6, 7]
    return {"asked": asked([longer]), "again": engine.run([longer], TOKENS)}


def evicted(engine: Tiered) -> dict[str, Any]:
    """Scene: more prompts than the device holds come one batch after the other, twice."""
    engine.allot(24)
    batches = [engine.prompts(3, 140, seed=10 + i) for i in range(5)]
    first = sum(engine.run(batch, TOKENS) for batch in batches)
    again = sum(engine.run(batch, TOKENS) for batch in batches)
    return {"asked": sum(map(asked, batches)), "first": first, "again": again}


def preempted(engine: Tiered, *, silent: bool, seed: int) -> dict[str, Any]:
    """Scene: more requests run than there is memory for. With `silent` the pool does not answer."""
    engine.pool.silent = silent
    engine.allot(24)
    before = engine.scheduler.counts.preemptions
    batch = engine.prompts(6, 90, seed=seed)
    computed = engine.run(batch, 90)
    engine.pool.silent = False
    return {
        "preemptions": engine.scheduler.counts.preemptions - before,
        "again": computed - sum(map(len, batch)) - len(batch) * 89,
    }


def misbehaving(engine: Tiered) -> dict[str, Any]:
    """Scene: the pool fails in five ways, one after the other. Only the hit is lost each time."""
    engine.allot(EXTENTS)
    batch = engine.prompts(3, 150, seed=3)
    facts: dict[str, Any] = {"asked": asked(batch)}
    engine.run(batch, TOKENS)
    for what in ("silent", "loses", "late", "unmapped", "dead"):
        engine.sleep_and_wake(EXTENTS)
        spoil(engine, what, True)
        facts[what] = engine.run(batch, TOKENS)
        spoil(engine, what, False)
    engine.sleep_and_wake(EXTENTS)
    counts = engine.counts
    facts["failed_loads"], facts["late_loads"] = counts.failed_loads, counts.late_loads
    facts["after"] = engine.run(batch, TOKENS)
    return facts


def spoil(engine: Tiered, what: str, on: bool) -> None:
    pool: Any = engine.pool
    if what == "late":
        pool.slow = 10**9 if on else 0
    elif what == "unmapped":
        engine.tiers.copier._address = unmapped if on else engine.tiers._places.use
    else:
        setattr(pool, what, on)


def unmapped(place: Any) -> int:
    raise KeyError(place)


def convoy(engine: Tiered) -> dict[str, Any]:
    """Scene: two requests need the same blocks, and the load of the first one does not end. The
    second computes them after a while.
    """
    core = engine.llm.llm_engine
    (prefix,) = engine.prompts(1, 160, seed=7)
    engine.run([prefix], TOKENS)
    engine.sleep_and_wake(EXTENTS)
    patience, copier = engine.tiers.manager._patience, engine.tiers.copier
    patience._coming_s, pump = 0.2, copier.pump
    copier.pump = lambda most_bytes=0.0: None  # type: ignore[method-assign]
    params = vllm.SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
    asked = {"first": [*prefix, 5], "second": [*prefix, 6]}
    for name, prompt in asked.items():
        core.add_request(name, {"prompt_token_ids": prompt}, params)
    order: list[str] = []
    while core.has_unfinished_requests():
        for out in core.step():
            if out.finished:
                order.append(out.request_id.split("-")[0])
                said = list(out.outputs[0].token_ids)
                assert said == engine.circuit.generate(asked[order[-1]], TOKENS)
                copier.pump = pump  # type: ignore[method-assign]
    patience._coming_s = COMING_S
    engine.settle()
    return {"order": order}


def refused_stores(engine: Tiered) -> dict[str, Any]:
    """Scene: copies down to the pool fail; they are given up, and made again later."""
    engine.pool.forget()
    failed, stored = engine.counts.failed_stores, engine.counts.stored_blocks
    spoil(engine, "unmapped", True)
    engine.allot(24)
    engine.run(engine.prompts(8, 150, seed=4), TOKENS)
    engine.sleep_and_wake(EXTENTS)
    spoil(engine, "unmapped", False)
    return {
        "failed": engine.counts.failed_stores - failed,
        "stored": engine.counts.stored_blocks - stored,
        "held": engine.pool.held,
    }


def main(models: str) -> None:
    engine = Tiered(Path(models), blocks=EXTENTS)
    facts = {
        "extent_blocks": engine.scheduler.shape.extent_blocks,
        "reused": reused(engine),
        "turns": turns(engine),
        "evicted": evicted(engine),
        "preempted": preempted(engine, silent=False, seed=5),
        "computed_anew": preempted(engine, silent=True, seed=6),
        "misbehaving": misbehaving(engine),
        "convoy": convoy(engine),
        "refused_stores": refused_stores(engine),
        "guarded": slow_copies(engine),
        "tokens_saved": engine.counts.tokens_saved,
        "saved_s": engine.counts.saved_s,
        "hits": sum(engine.counts.hits.values()),
        "bytes_up": engine.counts.bytes_up,
        "block_bytes": engine.tiers.block_bytes,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
