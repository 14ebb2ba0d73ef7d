"""A step with layers away, one move, and a trace of some steps, in an engine's process."""

from __future__ import annotations

import gzip
import shutil
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.gpu.decoding import Decoding, say
from benchmarks.gpu.engine_memory import Memory, in_pieces
from benchmarks.gpu.spans import Spans
from mirage.control.hiding import largest_hidden

PIECES = "0 in pieces"
TRACED = 20
EVERY = 20
"""Steps from one move to the next."""
NEAR = 4
"""Steps from a move on that belong to it: a round moves a few things, and there are several."""


def measured(engine: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Measurements of `layers`: `batches` of requests, each of which decodes `tokens` tokens."""
    core = engine.engine_core.engine_core
    memory, decoding = Memory(core.scheduler), Decoding(engine)
    spans = Spans(core)
    found: dict[str, Any] = {
        "layers": memory.shape.layers,
        "compiled": memory.scheduler.worker.memory.compiled,
    }
    found["outside"] = outside(memory, spec)
    found["steps"] = {
        str(batch): _by_remapped(decoding, memory, spans, batch, spec["tokens"])
        for batch in spec["batches"]
    }
    found["moves"] = _moved(decoding, memory, spec["batches"][0])
    found["trace"] = traced(decoding, Path(spec["trace"]))
    return found


def _by_remapped(
    decoding: Decoding, memory: Memory, spans: Spans, batch: int, tokens: int
) -> dict[str, dict[str, float]]:
    """Times of a decode step of `batch` requests, by the name of each number of layers away."""

    def at(
        remapped: int, stream_slots: int, how: AbstractContextManager[None] | None = None
    ) -> Any:
        say(f"decoding, {batch} requests, {remapped} layers away")
        memory.hold(remapped, memory.base, stream_slots)
        memory.settle()
        with how or nullcontext(), spans.counted() as counts:
            took = decoding.steps(batch, tokens)
        return {
            "layers_remapped": remapped,
            "stream_slots": stream_slots,
            "step_s": statistics.median(took),
        } | counts

    engine, n = memory.scheduler.worker.memory, memory.shape.layers
    decoding.steps(batch, tokens)  # or the first to be measured would load the kernels of this size
    found = {"0": at(0, 1), PIECES: at(0, 1, in_pieces(engine))}
    load_s, compute_s = memory.scheduler.worker.times.layer_load_s, found[PIECES]["compute_s"]
    cap, stream_slots = largest_hidden(n, load_s, compute_s, (1, 2), n) if compute_s else (0, 1)
    most = memory.shape.movable_layers - 2
    for name, remapped, slots in (
        ("1", 1, 1),
        ("2", 2, 1),
        ("cap", min(cap, most), stream_slots),
        ("cap + 2", min(cap + 2, most), 2),
    ):
        found[name] = at(remapped, slots)
    memory.hold(0, memory.base)
    memory.settle()
    return {name: one | {"load_s": load_s} for name, one in found.items()}


def _moved(decoding: Decoding, memory: Memory, batch: int) -> dict[str, Any]:
    """Seconds between two tokens of one run in which memory moves: those around each move, by its
    name, and the others.
    """
    most = min(memory.base + 4, memory.shape.max_extents)
    moves: dict[str, Callable[[], None]] = {
        "a layer away": lambda: memory.hold(1, memory.base),
        "a layer back": lambda: memory.hold(0, memory.base),
        "extents mapped": lambda: memory.hold(0, most),
        "extents unmapped": lambda: memory.hold(0, memory.base),
    }
    at = {EVERY * number: name for number, name in enumerate(moves, 1)}

    def before(step: int) -> None:
        if step in at:
            moves[at[step]]()

    say(f"decoding, {batch} requests, memory moved")
    took = decoding.steps(batch, EVERY * (len(moves) + 2), before)
    memory.hold(0, memory.base)
    memory.settle()
    return apart(took, at)


def apart(took: list[float], at: dict[int, str]) -> dict[str, Any]:
    """Times of steps that belong to a move, by its name, and of all other steps, without the first
    ones, which are prefill.
    """
    near = {step + more: name for step, name in at.items() for more in range(NEAR)}
    found: dict[str, Any] = {name: [] for name in at.values()}
    quiet = []
    for step, seconds in enumerate(took[NEAR:], NEAR):
        (found[near[step]] if step in near else quiet).append(seconds)
    return {"quiet": quiet, "moves": found}


def outside(memory: Memory, spec: dict[str, Any]) -> dict[str, int] | None:
    """Bytes of the device that are gone since before the engine's start, and the part of them that
    the ledger knows.

    None if the device is host memory, which other programs use too.
    """
    import torch

    if spec.get("free") is None or not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    extents = memory.scheduler.kv.blocks.book.backed_extents()
    known = memory.scheduler.worker.memory.held_bytes(extents, memory.shape.extent_bytes)
    return {"gone": spec["free"] - torch.cuda.mem_get_info()[0], "known": known}


def traced(decoding: Decoding, path: Path) -> dict[str, Any]:
    """Write a compressed trace of `TRACED` steps by torch's profiler to `path`;
    return its facts.
    """
    from torch.profiler import ProfilerActivity, profile, supported_activities

    say(f"{TRACED} steps traced")
    decoding.steps(1, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = path.with_suffix("")
    activities = supported_activities() & {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    with profile(activities=activities) as profiler:
        steps = decoding.steps(4, TRACED)
    profiler.export_chrome_trace(str(plain))
    with plain.open("rb") as text, gzip.open(path, "wb") as packed:
        shutil.copyfileobj(text, packed)
    plain.unlink()
    return {"file": str(path), "bytes": path.stat().st_size, "steps": len(steps)}
