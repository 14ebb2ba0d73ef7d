"""Child process: generate with every family and write tokens and logprobs as JSON.

python identity.py MODELS OUT MODE FAMILY...   MODE: plain, or mirage, cuda, slow or nowait[-pieces]

`mirage` changes the layers remapped, their slots and the KV size at random between steps,
overwrites given-away frames with NaN and checks all books at every change. `cuda` does so
with the memory of the GPU's driver, over the stand-in for NVIDIA's library; the host computes.
`slow` and `nowait` are `mirage` over a throttled link; `nowait` also drops the wait for streamed
layers. With `-pieces`, what streams is what lies between two attentions.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tiny import POISONING, UNAWAITED, make_llm, make_model, prompts, run, scheduler_of

from mirage.protocol import Allotment

UNIVERSE, BASE = 256, 48
PAGE, MEMORY = 1 << 16, 1 << 28
"""Page size of engines and memory size of the stand-in for a GPU, in bytes."""
MOST_TOKENS = 192
"""Upper bound on the tokens of one request."""
LINK = 40e6
"""Bytes per second of the throttled link: a layer takes several times its compute."""

MODES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "mirage": {"base_blocks": BASE},
    "paced": {"base_blocks": BASE, "move_s": 1e-9},
    "cuda": {"base_blocks": BASE, "page": PAGE, "device": "cuda"},
    "slow": {"base_blocks": BASE, "copy_bytes_per_s": LINK},
    "nowait": {"base_blocks": BASE, "copy_bytes_per_s": LINK},
}
MODES |= {f"{mode}-pieces": {**more, "pieces": True} for mode, more in MODES.items() if more}


def arguments_of(mode: str) -> dict[str, Any]:
    """Arguments of `make_llm` for the mode of an engine."""
    worker = UNAWAITED if mode.startswith("nowait") else POISONING
    return {"mirage": MODES[mode]} | ({"worker_cls": worker} if MODES[mode] is not None else {})


OneRound = Callable[[int, Callable[[int], None]], Any]
"""Function that runs a round, given a seed and the function to call before each step. It returns
the outputs that must be equal.
"""


class Changes:
    """Posts a random allotment every third step, with at least the memory that plain vLLM would
    need.
    """

    def __init__(self, scheduler: Any, seed: int) -> None:
        self.scheduler, self.rng = scheduler, random.Random(seed)
        self.revision = 0
        self.remapped_counts: set[int] = set()
        self.slot_counts: set[int] = set()
        self.backed = scheduler.kv.blocks.book.backed_extents()
        self.grown = self.shrunk = 0

    def __call__(self, step: int) -> None:
        if step % 3:
            return
        scheduler = self.scheduler
        book, memory, shape = scheduler.kv.blocks.book, scheduler.worker.memory, scheduler.shape
        layers_remapped, stream_slots, experts = self.given()
        # Blocks in use and cached ones stay, or prefix hits, and batches, would differ.
        cached = sum(
            b.block_hash is not None and b.ref_cnt == 0
            for b in scheduler.kv_cache_manager.block_pool.blocks
        )
        # Neither may a newcomer wait for memory: it would join another batch than without us.
        coming = 6 * scheduler.groups.blocks(MOST_TOKENS)
        least = book.busy_extents() + -(-(cached + coming) // book.extent_blocks)
        extents = self.rng.randrange(min(least, shape.max_extents), shape.max_extents + 1)
        self.grown += book.backed_extents() > self.backed
        self.shrunk += book.backed_extents() < self.backed
        self.backed = book.backed_extents()
        self.revision += 1
        grant = (
            shape.fixed_bytes
            + (shape.layers - layers_remapped) * shape.layer_bytes
            - experts * max(0, shape.expert_layers - 1) * shape.expert_bytes
            + extents * shape.extent_bytes
        )
        scheduler.mailbox.post(
            Allotment(self.revision, layers_remapped, stream_slots, extents, grant, experts=experts)
        )
        self.remapped_counts.add(memory.layers_remapped)
        self.slot_counts.add(memory.stream_slots)
        memory.check_integrity()
        scheduler.kv.blocks.check_integrity()
        assert memory.held_bytes(0, 0) <= grant or not scheduler.kv.reconciler.reconciled

    def given(self) -> tuple[int, int, int]:
        """Drawn memory to give away: layers, stream slots, experts of each layer."""
        stream_slots = self.rng.choice((1, 2))
        return (
            self.rng.randrange(0, max(self.scheduler.shape.movable_layers - stream_slots, 1)),
            stream_slots,
            0,
        )


def compute_beside_gpu() -> None:
    """Let engines for a GPU use the stand-in for its driver's library, and compute in their own
    thread.
    """
    from mirage.engine import backend
    from tests.vmm.libcuda.engines import over_standin

    backend._cuda = partial(over_standin, memory_bytes=MEMORY)


def gpu_calls() -> dict[str, int]:
    """Number of calls of each function of the stand-in for the driver's library."""
    from tests.vmm.libcuda import StandIn

    return StandIn.load().calls()


def generate(family: str, folder: Path, mode: str) -> dict[str, Any]:
    """Outputs of three rounds of requests (over a slow link, of one). The third round finds
    prefixes of the first in the cache.
    """
    llm = make_llm(make_model(family, folder), blocks=UNIVERSE, **arguments_of(mode))
    throttled = "copy_bytes_per_s" in (MODES[mode] or {})
    return observe(
        llm,
        mode,
        lambda seed, change: run(llm, prompts(6, 40, seed), 40, change),
        seeds=(1,) if throttled else (1, 2, 1),
        chance=len(family),
    )


def observe(
    llm: Any, mode: str, one_round: OneRound, *, seeds: Sequence[int], chance: int
) -> dict[str, Any]:
    """Run a round of requests for each seed, while memory changes at random unless `mode` is plain
    vLLM's.

    Return the outputs, and figures of what moved. The engine is shut down.
    """
    scheduler = scheduler_of(llm)
    changes = Changes(scheduler, chance) if MODES[mode] is not None else None
    rounds = [one_round(seed, changes or (lambda step: None)) for seed in seeds]
    facts: dict[str, Any] = {"rounds": rounds, "prompts": sum(map(len, rounds))}
    if changes is not None:
        facts["changes"] = changes.revision
        facts["remapped_counts"] = sorted(changes.remapped_counts)
        facts["slot_counts"] = sorted(changes.slot_counts)
        facts["t_compute_s"] = scheduler.worker.times.layer_compute_s
        facts["pieces"] = scheduler.worker.memory.pieces
        facts["grown"], facts["shrunk"] = changes.grown, changes.shrunk
        streamer = scheduler.worker.memory.streamer
        facts["bytes_streamed"] = streamer.bytes_streamed if streamer else 0
        facts["movable"] = scheduler.shape.movable_layers
    if mode.startswith("cuda"):
        facts["calls"] = gpu_calls()
    facts["hits"] = sum(m.value for m in llm.get_metrics() if m.name == "vllm:prefix_cache_hits")
    llm.llm_engine.engine_core.shutdown()
    return facts


if __name__ == "__main__":
    models, out, mode, *families = sys.argv[1:]
    results = {}
    if mode.startswith("cuda"):
        compute_beside_gpu()
    for name in families:
        results[name] = generate(name, Path(models), mode)
        gc.collect()
    Path(out).write_text(json.dumps(results))
