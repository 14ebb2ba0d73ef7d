"""Child process: extents are unmapped while slow copies read them, and nothing keeps them mapped.

python tier_guard.py MODELS

A copy then reads unmapped memory: a segmentation fault here, an illegal address on a GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tiered import Tiered

LEAST, MOST = 8, 48
BYTES_PER_S = 2e7


def slow_copies(engine: Tiered) -> dict[str, Any]:
    """Scene: extents are taken back in the middle of requests, while copies of their blocks to the
    tier are under way.
    """
    driver = engine.scheduler.worker.memory.driver
    # The driver looks whether a copy's memory is mapped, which no device does.
    driver._check_copy = lambda *copy: None
    driver._copy_bytes_per_s = BYTES_PER_S
    waited = 0

    def squeeze(step: int) -> None:
        nonlocal waited
        if step == 3:
            engine.allot(LEAST)
        pool, book = engine.scheduler.kv.blocks, engine.scheduler.kv.blocks.book
        waited += any(block // book.extent_blocks in book.retiring for block in pool.pinned)

    engine.pool.forget()
    engine.allot(MOST)
    engine.run(engine.prompts(6, 100, 31), 4)
    engine.run(engine.prompts(1, 60, 32), 30, squeeze)
    assert engine.scheduler.kv.blocks.book.backed_extents() == LEAST
    driver._copy_bytes_per_s = None
    return {"waited": waited, "stored": engine.counts.stored_blocks}


def main(models: str) -> None:
    engine = Tiered(Path(models), blocks=MOST)
    engine.scheduler.kv.blocks.pin = lambda blocks: None
    engine.scheduler.kv.blocks.unpin = lambda blocks: None
    slow_copies(engine)


if __name__ == "__main__":
    main(*sys.argv[1:])
