"""Host time of streamed layers: what the thread that steps spends on enqueuing their copies."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from benchmarks.gpu.bench import Bench, Model, model
from benchmarks.gpu.rows import Row, alternating, at_most, median, timed
from vmm.driver import Event, Stream

CHUNKS = 38
"""Chunks of one layer of OPT-13b at the default `device.copy_chunk`."""
COUNT = 12
"""Layers of the model."""
AWAY = (0, 1, 4, COUNT - 2)
STEPS = 20
LAYER_S = 1e-4
"""Seconds: half the time that a layer of OPT-13b computes in a decode step of one request."""


class Singly(Stream):
    """A stream whose calls share nothing: as layers were enqueued before `Stream.together`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self._stream.copy(dst, src, nbytes)

    def copy_all(self, copies: Iterable[tuple[int, int, int]]) -> None:
        for copy in copies:
            self.copy(*copy)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self._stream.fill(address, byte, nbytes)

    def record(self, event: Event) -> None:
        self._stream.record(event)

    def wait_for(self, event: Event) -> None:
        self._stream.wait_for(event)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def close(self) -> None:
        self._stream.close()


def streamed_layers(bench: Bench) -> Row:
    """Host time of enqueuing layers in one call, and with a call per chunk, measured in turns."""
    chunk = bench.layer_bytes // CHUNKS & -4096
    with model(bench, layers=COUNT, chunk_bytes=chunk) as made:
        found = {alpha: _both(made, alpha) for alpha in AWAY}
        made.streamer.set(0, 1)
    each = {alpha: [_each(alpha, s) for s in both] for alpha, both in found.items() if alpha}
    most = max(now for _, now in each.values())
    told = ", ".join(
        f"{alpha} away: {before * 1e6:.0f} to {now * 1e6:.0f} us a step"
        for alpha, (before, now) in found.items()
    )
    return Row(
        "enqueuing a layer",
        f"host time of streamed layers of {CHUNKS} chunks, a call for each chunk and one for all",
        f"{max(before for before, _ in each.values()) * 1e6:.0f} to {most * 1e6:.0f} us a layer; "
        f"{told}",
        f"<= {LAYER_S * 1e6:.0f} us",
        at_most(most, LAYER_S),
        {"step_s": {alpha: list(both) for alpha, both in found.items()}, "layer_s": each},
    )


def _both(made: Model, alpha: int) -> tuple[float, float]:
    """Median seconds of a step's enqueuing: with single calls, and with shared ones."""
    made.streamer.set(alpha, 2)
    together = made.streamer.copies
    ways = {"singly": Singly(together), "together": together}
    seconds = alternating({name: partial(_step, made, way) for name, way in ways.items()}, STEPS)
    made.streamer.copies = together
    return median(seconds["singly"]), median(seconds["together"])


def _step(made: Model, copies: Stream) -> float:
    made.streamer.copies = copies
    seconds = timed(partial(_enqueue, made))
    made.driver.synchronize()
    return seconds


def _enqueue(made: Model) -> None:
    for index in range(len(made.layers)):
        made.streamer.before(index)
        made.streamer.after(index)


def _each(alpha: int, step_s: float) -> float:
    """Seconds of a streamed layer; two more than are away are streamed, since slots are two."""
    return step_s / (alpha + 2)
