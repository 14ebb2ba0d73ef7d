"""Child process: an engine above a pool loses its turn. Prints facts as JSON.

python tier_turns.py MODELS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiered import Tiered

from mirage.protocol import Turn

EXTENTS, SHARE = 48, 12
REQUESTS, LENGTH, TOKENS = 6, 100, 60
BYTES_PER_S = 2e7
PART = 0.6
LOADED = 2


class Suspended(Tiered):
    """Engine whose requests outlive its turn; every text is compared in the end."""

    def begin(self, batch: list[list[int]], steps: int) -> None:
        from vllm import SamplingParams

        self.batch, self.texts = batch, dict[str, list[int]]()
        params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True, detokenize=False)
        for number, prompt in enumerate(batch):
            self.llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        for out in self.llm.llm_engine.step():
            if out.finished:
                self.texts[out.request_id.split("-")[0]] = list(out.outputs[0].token_ids)

    def step_until(self, done: Callable[[], bool], most_s: float = 60.0) -> None:
        until = time.monotonic() + most_s
        while not done():
            assert time.monotonic() < until, self.scheduler.report()
            self.step()

    def turn(self, holds: bool, *, drain: bool = False, spill_bytes: int = 0) -> None:
        self.scheduler.mailbox.post(Turn(holds, drain, spill_bytes))

    def finish(self) -> None:
        """Run until all requests are answered, and check their texts."""
        self.step_until(lambda: len(self.texts) == len(self.batch))
        for number, prompt in enumerate(self.batch):
            assert self.texts[str(number)] == self.circuit.generate(prompt, TOKENS), number
        self.settle()


def spilled(engine: Suspended, *, part: float, seed: int) -> dict[str, Any]:
    """Scene: a turn ends in the middle of requests, which are to give up the part `part` of their
    KV memory.
    """
    scheduler, before = engine.scheduler, engine.scheduler.counts.tokens
    engine.allot(EXTENTS)
    engine.turn(True)
    engine.begin(engine.prompts(REQUESTS, LENGTH, seed), steps=20)
    used = scheduler.report().kv_used_extents
    spill_bytes = int(part * used * scheduler.shape.extent_bytes)
    engine.turn(False, spill_bytes=spill_bytes)
    engine.step_until(lambda: not scheduler.report().holds_turn)
    steps = scheduler.fence.scheduled
    stored = engine.counts.stored_blocks
    for _ in range(3):
        engine.step()
    kept = scheduler.report().kv_used_extents
    engine.allot(SHARE)
    engine.step_until(lambda: scheduler.report().kv_extents <= max(kept, SHARE))
    suspended = scheduler.report()
    assert scheduler.fence.scheduled == steps, "it stepped without the turn"
    engine.allot(EXTENTS)
    engine.turn(True)
    engine.finish()
    asked = sum(map(len, engine.batch)) + REQUESTS * (TOKENS - 1)
    return {
        "used": used,
        "kept": suspended.kv_used_extents,
        "held": suspended.kv_extents,
        "running": suspended.running,
        "stored": engine.counts.stored_blocks - stored,
        "again": scheduler.counts.tokens - before - asked,
        "extent_tokens": scheduler.shape.extent_blocks * scheduler.shape.block_tokens,
        "layers_worth": (used - suspended.kv_used_extents)
        * scheduler.shape.extent_bytes
        / scheduler.shape.layer_bytes,
    }


def drained(engine: Suspended) -> dict[str, Any]:
    """Scene: a turn that drains ends while a request loads blocks. That request waits for the next
    turn.
    """
    scheduler = engine.scheduler
    engine.turn(True)
    engine.allot(EXTENTS)
    (prompt,) = engine.prompts(1, 200, seed=9)
    engine.begin([prompt], 0)
    engine.finish()
    engine.sleep_and_wake(EXTENTS)
    hits = sum(engine.counts.hits.values())
    driver = scheduler.worker.memory.driver
    driver._copy_bytes_per_s = BYTES_PER_S / 100
    engine.begin([prompt], 0)
    engine.step_until(lambda: bool(scheduler.kv_holding_waiting))
    engine.turn(False, drain=True)
    engine.step_until(lambda: not scheduler.report().holds_turn)
    while_loading = len(scheduler.kv_holding_waiting)
    driver._copy_bytes_per_s = None
    steps = scheduler.fence.scheduled
    engine.step_until(lambda: sum(engine.counts.hits.values()) > hits)
    engine.step()
    said = {"while_loading": while_loading, "texts": len(engine.texts)}
    assert scheduler.fence.scheduled == steps
    engine.turn(True)
    engine.finish()
    return {**said, "hits": sum(engine.counts.hits.values()) - hits}


def coming(engine: Suspended, *, seed: int) -> None:
    """Bring the engine into its turn with `LOADED` requests that have blocks and load their
    content.
    """
    scheduler, driver = engine.scheduler, engine.scheduler.worker.memory.driver
    engine.allot(EXTENTS)
    engine.turn(True)
    batch = engine.prompts(LOADED, 200, seed)
    engine.begin(batch, 0)
    engine.finish()
    engine.sleep_and_wake(EXTENTS)
    driver._copy_bytes_per_s = BYTES_PER_S / 100
    engine.begin(batch, 0)
    engine.step_until(lambda: len(scheduler.kv_holding_waiting) == LOADED)


def came_too_late(engine: Suspended) -> dict[str, Any]:
    """Scene: a turn ends while requests load blocks. The blocks that have come are given up as
    well.
    """
    scheduler = engine.scheduler
    coming(engine, seed=11)
    held = scheduler.report().kv_used_extents
    engine.turn(False, spill_bytes=EXTENTS * scheduler.shape.extent_bytes)
    engine.step_until(lambda: not scheduler.report().holds_turn)
    while_coming = scheduler.report().kv_used_extents
    steps = scheduler.fence.scheduled
    scheduler.worker.memory.driver._copy_bytes_per_s = None
    engine.step_until(lambda: not scheduler.report().kv_used_extents)
    assert scheduler.fence.scheduled == steps and scheduler.report().waiting == LOADED
    engine.turn(True)
    engine.finish()
    return {"held": held, "while_coming": while_coming}


def without_room(engine: Suspended) -> dict[str, Any]:
    """Scene: while requests load, the memory that they need beside their loaded blocks is taken
    away. One of them makes way for the others.
    """
    scheduler = engine.scheduler
    coming(engine, seed=12)
    held, preemptions = scheduler.report().kv_used_extents, scheduler.counts.preemptions
    engine.allot(held)
    engine.step_until(lambda: scheduler.report().kv_extents == held)
    scheduler.worker.memory.driver._copy_bytes_per_s = None
    engine.finish()
    return {"held": held, "made_way": scheduler.counts.preemptions - preemptions}


def main(models: str) -> None:
    engine = Suspended(Path(models), blocks=EXTENTS, temporal=True)
    facts = {
        "stayed": spilled(engine, part=0, seed=1),
        "spilled": spilled(engine, part=PART, seed=2),
        "drained": drained(engine),
        "came_too_late": came_too_late(engine),
        "without_room": without_room(engine),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
