"""Host time of streamed layers: what the thread that runs steps spends on enqueuing copies."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu.bench import CHUNK, MIB, Bench, Model, model
from benchmarks.gpu.rows import Row, alternating, at_most, medians, timed

CHUNKS = {"16 MiB": 16 * MIB, f"{CHUNK // MIB} MiB": CHUNK, "whole": None}
"""Bytes of a layer that are copied at a time, by name; the second is the default."""
DEFAULT = list(CHUNKS)[1]
COUNT = 12
"""Layers of the model."""
AWAY = (1, 4, COUNT - 2)
STEPS = 20
LAYER_S = 1e-4
"""Seconds: half the time that a layer of OPT-13b computes in a decode step of one request."""


def streamed_layers(bench: Bench) -> Row:
    """Row on the host time to enqueue a streamed layer, by the bytes of one copy;
    sizes alternate.
    """
    with model(bench, layers=COUNT) as made:
        found = {remapped: _by_chunk(bench, made, remapped) for remapped in AWAY}
        made.streamer.set(0, 1)
    most = max(each[DEFAULT] for each in found.values())
    return Row(
        "enqueuing a layer",
        "host time of a streamed layer, by the bytes of a copy",
        "; ".join(f"{remapped} away: {_told(each)}" for remapped, each in found.items()),
        f"<= {LAYER_S * 1e6:.0f} us at {DEFAULT}",
        at_most(most, LAYER_S),
        {"layer_s": found},
    )


def _told(each: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in each.items())


def _by_chunk(bench: Bench, made: Model, remapped: int) -> dict[str, float]:
    """Median seconds of host time for a streamed layer, by the name of a chunk size.

    There are two slots, so two more layers are streamed than are away.
    """
    made.streamer.set(remapped, 2)
    ways = {name: partial(_step, bench, made, nbytes) for name, nbytes in CHUNKS.items()}
    middle = medians(alternating(ways, STEPS))
    return {name: seconds / (remapped + 2) for name, seconds in middle.items()}


def _step(bench: Bench, made: Model, chunk_bytes: int | None) -> float:
    made.streamer.chunk_bytes = chunk_bytes and min(chunk_bytes, bench.layer_bytes)
    seconds = timed(partial(_enqueue, made))
    made.driver.synchronize()
    return seconds


def _enqueue(made: Model) -> None:
    for index in range(len(made.layers)):
        made.streamer.before(index)
        made.streamer.after(index)
