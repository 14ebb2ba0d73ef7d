"""An engine above a pool of the test, with known texts, and commands to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tiny

from mirage.engine.tiers import present
from mirage.protocol import Allotment
from mirage.tools.demo.models import circuit_of, make_models

WORKER = "tests.tampered.cpu_worker.TieredWorker"
Batch = Sequence[list[int]]


class Above:
    """An engine above a pool of the test, stepped by the test."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.scheduler = tiny.scheduler_of(llm)
        tiers = present.tiers()
        assert tiers is not None and tiers.stores is not None
        self.tiers, self.counts = tiers, tiers.counts
        self.pool: Any = tiers.pool
        self._revision = 0

    def settle(self) -> None:
        """Step until all copies have ended, and check all books."""
        while self.scheduler.has_requests():
            self.llm.llm_engine.step()
        self.check()

    def check(self) -> None:
        """Check the books of blocks, pages and pool, and that no copy is under way."""
        self.scheduler.kv.blocks.check_integrity()
        self.scheduler.worker.memory.check_integrity()
        assert self.pool.idle and not self.scheduler.kv.blocks.pinned

    def allot(self, extents: int, remapped: int = 0, *, recall: bool = False) -> None:
        """Send an allotment between two steps: KV extents, and layers remapped."""
        self._revision += 1
        memory = self.scheduler.worker.memory
        slots = 1 if remapped else 0
        shape = self.scheduler.shape
        layers = (shape.layers - remapped) * shape.layer_bytes
        grant = memory.outside_bytes + layers + (extents + 2) * shape.extent_bytes + (1 << 24)
        self.scheduler.mailbox.post(
            Allotment(self._revision, remapped, slots, extents, grant, recall=recall)
        )


class Tiered(Above):
    """Engine with a demo model; every text is compared with what the model says by itself."""

    def __init__(
        self,
        folder: Path,
        *,
        blocks: int,
        family: str = "llama",
        worker: str = WORKER,
        arguments: dict[str, Any] | None = None,
        **mirage: Any,
    ) -> None:
        path = make_models(folder / "demo", which=(family,), layers=4)[family]
        settings = {"base_blocks": blocks, "tier_socket": "the tests'", **mirage}
        llm = tiny.make_llm(
            path,
            mirage=settings,
            dtype="float32",
            worker_cls=worker,
            blocks=256,
            **(arguments or {}),
        )
        super().__init__(llm)
        self.circuit = circuit_of(path)

    def prompts(self, count: int, length: int, seed: int) -> list[list[int]]:
        rng = random.Random(seed)
        return [[rng.randrange(3, 90) for _ in range(length + 5 * i)] for i in range(count)]

    def run(
        self, batch: Batch, tokens: int, before: Callable[[int], None] = lambda step: None
    ) -> int:
        """Compute a batch, and check its texts; return the number of tokens that were scheduled for
        it.
        """
        begun = self.scheduler.counts.tokens
        said = tiny.run(self.llm, list(batch), tokens, before, logprobs=None)
        assert [s[0] for s in said] == [self.circuit.generate(b, tokens) for b in batch]
        computed = int(self.scheduler.counts.tokens - begun)
        self.settle()
        return computed

    def sleep_and_wake(self, extents: int) -> None:
        """Take nearly all KV memory and give it back, so that all cached blocks
        leave the device.
        """
        self.allot(1)
        self.allot(extents)
        assert self.scheduler.kv.blocks.book.backed_extents() == extents
        blocks = self.scheduler.kv_cache_manager.block_pool.blocks
        assert not any(block.block_hash for block in blocks)
