"""Child process: blocks behind a sliding window lose their memory while requests run.

python window_rows.py MODELS [async]   Prints facts as JSON.

A kernel may read blocks that it does not need, as parts of a tile. So rows of block tables must
name only blocks that have memory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tiny
from deferred import schedule_asynchronously

from mirage.engine import runtime
from mirage.protocol import Allotment
from tests.zoo import FAMILIES, make

TOKENS = 150
ENOUGH = 64


class Watched:
    """Engine whose block tables are checked in each step, just before they go to the device."""

    def __init__(self, llm: Any) -> None:
        self.llm, self.scheduler = llm, tiny.scheduler_of(llm)
        self.memory = runtime.worker().memory
        self.named = self.without_memory = self.revision = 0
        self.unmapped, self.mapped = 0, set[int]()
        executor = llm.llm_engine.engine_core.engine_core.model_executor
        worker = executor.driver_worker
        self.batch = getattr(worker, "worker", worker).model_runner.input_batch
        self.commit = self.batch.block_table.commit_block_table
        self.batch.block_table.commit_block_table = self.look

    def look(self, requests: int) -> None:
        kv = self.memory.kv
        assert kv is not None
        for table in self.batch.block_table.block_tables:
            for row, count in enumerate(table.num_blocks_per_row[:requests]):
                names = table.block_table.np[row, :count] // kv.extents.blocks_per_extent
                self.named += len(names)
                self.without_memory += sum(int(name) not in kv.extents.mapped for name in names)
        self.commit(requests)

    def allot(self, extents: int) -> None:
        self.revision += 1
        shape = self.scheduler.shape
        grant = self.memory.outside_bytes + (extents + 2) * shape.extent_bytes + (1 << 24)
        self.scheduler.mailbox.post(
            Allotment(self.revision, 0, 0, extents, grant + shape.layers * shape.layer_bytes)
        )
        assert self.memory.kv is not None
        mapped = set(self.memory.kv.extents.mapped)
        self.unmapped += len(self.mapped - mapped)
        self.mapped = mapped

    def before(self, step: int) -> None:
        """Change the KV memory before some steps: sometimes little more than is in use, sometimes
        enough.
        """
        few = max(2, self.scheduler.kv.blocks.book.busy_extents() + 1)
        self.allot(ENOUGH if step < 4 or step % 6 > 2 else few)


def main(models: str, *how: str) -> None:
    if "async" in how:
        schedule_asynchronously()
    llm = tiny.make_llm(
        make(FAMILIES["mistral-window"], Path(models)),
        mirage={"policy": "pooled", "base_blocks": ENOUGH},
        dtype="float32",
        enable_prefix_caching=False,
    )
    batch = tiny.prompts(3, 200, seed=1)
    anew = tiny.run(llm, batch, TOKENS, logprobs=None)
    watched = Watched(llm)
    again = tiny.run(llm, batch, TOKENS, watched.before, logprobs=None)
    watched.scheduler.kv.blocks.check_integrity()
    print(
        json.dumps(
            {
                "same": again == anew,
                "named": watched.named,
                "without_memory": watched.without_memory,
                "unmapped": watched.unmapped,
                "asynchronous": llm.llm_engine.vllm_config.scheduler_config.async_scheduling,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
