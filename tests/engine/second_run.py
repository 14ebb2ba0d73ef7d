"""Child process: vLLM's second model runner under our GPU worker, with tensors on the CPU.

python second_run.py MODELS OUT MODE...

`first` is plain vLLM with its first runner. The other modes need `second_stubs.ENVIRONMENT` from
the beginning. Each runs in a fork, which leaves OUT/MODE.json: what it found, or how it ended.
`second` is the engine as on a GPU, with memory of the driver's stand-in; the others leave something
out.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import second_graphs
import second_stubs
from tiny import make_llm, make_model, prompts, run, scheduler_of

LAYERS, SEQUENCES, UNIVERSE = 4, 4, 64
BASE = 4
"""KV blocks at the start: the null block, and one for each prompt."""
PAGE, MEMORY = 1 << 16, 1 << 27
LINK = 4e5
"""Bytes a second over which a layer takes longer than some steps."""
GROW, GIVE, BACK, SHRINK = 4, 6, 9, 10
"""Steps before which KV memory grows, a layer is given away and comes back, KV memory shrinks."""
SHRUNK = 8
"""KV blocks then."""
CHANGES = {
    GROW: (0, 0, UNIVERSE),
    GIVE: (1, 1, UNIVERSE),
    BACK: (0, 0, UNIVERSE),
    SHRINK: (0, 0, SHRUNK),
}
"""Layers away, slots and KV extents of one block each."""
TOKENS = 12
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": [SEQUENCES]}
SOUND = ("second", "uncaptured")
WORKER = "mirage.engine.gpu_worker.MirageGPUWorker"
UNAWAITED = "tests.tampered.gpu_worker.UnawaitedWorker"


def make(models: Path, **more: Any) -> Any:
    """An engine with either runner, in float32, where kernels of different origin give the same
    tokens.
    """
    model = make_model("llama", models, layers=LAYERS)
    return make_llm(model, blocks=UNIVERSE, dtype="float32", max_num_seqs=SEQUENCES, **more)


def tokens(llm: Any, before_step: Callable[[int], None] = lambda step: None) -> list[list[int]]:
    """Tokens of the answers to three prompts, which leave their first KV block in the fifth decode
    step or later.
    """
    asked = prompts(3, 18, seed=1, shared=0)
    return [said for said, _ in run(llm, asked, TOKENS, before_step)]


def first(models: Path) -> dict[str, Any]:
    llm = make(models)
    return {"runner": runner_of(llm), "tokens": tokens(llm)}


def runner_of(llm: Any) -> str:
    """Name of the module of an engine's model runner."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    return type(worker.model_runner).__module__


class Moves:
    """Changes memory at fixed steps, and records before each step what the engine holds."""

    def __init__(self, scheduler: Any, *, sound: bool) -> None:
        self.scheduler, self.sound = scheduler, sound
        self.revision = 0
        self.seen: list[dict[str, int]] = []

    def __call__(self, step: int) -> None:
        from tests.vmm.libcuda import StandIn

        memory, pool = self.scheduler.worker.memory, self.scheduler.kv.blocks
        if step in CHANGES:
            self.allot(*CHANGES[step])
        if self.sound:
            memory.check_integrity()
            pool.check_integrity()
        self.seen.append(
            {
                "layers_remapped": memory.layers_remapped,
                "extents": pool.book.backed_extents(),
                "used": pool.book.busy_extents(),
                "streamed": memory.streamer.bytes_streamed,
                "device": StandIn.load().used_bytes,
                "replayed": second_graphs.CUDAGraph.replayed,
            }
        )

    def allot(self, remapped: int, slots: int, extents: int) -> None:
        from mirage.protocol import Allotment

        shape = self.scheduler.shape
        self.revision += 1
        layers = (shape.layers - remapped) * shape.layer_bytes
        grant = shape.fixed_bytes + layers + extents * shape.extent_bytes
        self.scheduler.mailbox.post(Allotment(self.revision, remapped, slots, extents, grant))


def second(models: Path, mode: str) -> dict[str, Any]:
    """Facts of an engine with the second runner. A mode that is not in `SOUND` leaves something
    out.
    """
    from mirage.engine import backend
    from tests.vmm.libcuda.engines import over_standin

    backend._cuda = partial(over_standin, memory_bytes=MEMORY)
    leave_out_before(mode)
    mirage = {"base_blocks": BASE, "page": PAGE, "device": "cuda", "pieces": True}
    mirage |= {"headroom_extents": 0, "lookahead_steps": 0, "kept": "asked"}
    llm = make(
        models,
        mirage=mirage,
        worker_cls=UNAWAITED if mode == "unawaited" else WORKER,
        enforce_eager=False,
        compilation_config=GRAPHS,
    )
    warm = dict(second_graphs.KERNELS)
    scheduler = scheduler_of(llm)
    leave_out(mode, scheduler.worker.memory)
    moves = Moves(scheduler, sound=mode in SOUND)
    said = tokens(llm, moves)
    return {
        "tokens": said,
        "seen": moves.seen,
        "runner": runner_of(llm),
        "warm": warm,
        "kernels": sorted(second_graphs.KERNELS),
        "layer_bytes": scheduler.shape.layer_bytes,
        "extent_bytes": scheduler.shape.extent_bytes,
    }


def leave_out_before(mode: str) -> None:
    """Put the fault of a mode into an engine before it starts."""
    from mirage.engine import gpu_worker

    if mode == "unbounded":  # the warm-up takes blocks that have no memory
        gpu_worker.only_mapped_blocks = lambda runner, kv: nullcontext()
    elif mode == "uncaptured":  # the whole graph, after those of pieces
        second_graphs.CUDAGraph.failing = LAYERS + 2
    elif mode == "ungated":  # whole graphs go on while a layer streams
        gpu_worker.gate = lambda *args: None


def leave_out(mode: str, memory: Any) -> None:
    """Put the fault of a mode into an engine that has started."""
    from tests.vmm.libcuda import StandIn

    if mode == "unawaited":  # no step waits for a layer
        StandIn.load().pace(LINK)
    elif mode == "unloaded":  # no layer is brought back
        memory.streamer.load = lambda layer: None
    elif mode == "ungrown":  # KV blocks are given out, and no memory for them
        memory.map_extents = lambda extents: extents


def forked(mode: str, models: Path, out: Path) -> None:
    """Compute the facts of a mode in a fork; if that fails, write its exit code instead."""

    def find() -> None:
        (out / f"{mode}.json").write_text(json.dumps(second(models, mode)))

    child = multiprocessing.get_context("fork").Process(target=find)
    child.start()
    child.join()
    if child.exitcode:
        (out / f"{mode}.json").write_text(json.dumps({"exitcode": child.exitcode}))


if __name__ == "__main__":
    folder, found, *modes = sys.argv[1:]
    if modes == ["first"]:
        (Path(found) / "first.json").write_text(json.dumps(first(Path(folder))))
    else:
        second_stubs.put()
        for one in modes:
            forked(one, Path(folder), Path(found))
