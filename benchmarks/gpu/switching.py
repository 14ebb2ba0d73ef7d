"""Times of giving an engine's parameters away and taking them back, in the engine's process."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.decoding import Decoding, say
from benchmarks.gpu.engine_memory import ALL_BUT_ONE, Memory
from benchmarks.gpu.rows import timed

ROUNDS = 3


def measured(engine: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Times of vLLM's sleep mode (`switch` is "sleep"), or of giving away all layers but one.

    They are median seconds of both directions, with the bytes of device memory that this freed in
    between.
    """
    away, back, nbytes = _sleeping(engine) if spec["switch"] == "sleep" else _layers(engine)
    decoding, out, home = Decoding(engine), [], []
    decoding.steps(1, 2)
    for _ in range(ROUNDS):
        say(f"{spec['switch']}: away and back")
        out.append(timed(away))
        gone = nbytes()
        home.append(timed(back))
        decoding.steps(1, 2)  # it computes again
    return {"away_s": statistics.median(out), "back_s": statistics.median(home), "bytes": gone}


Switch = tuple[Callable[[], object], Callable[[], object], Callable[[], int]]
"""Functions that take parameters off the device and back, and one that gives the bytes that this
has freed.
"""


def _sleeping(engine: Any) -> Switch:
    """Functions of vLLM's sleep mode: away, back, and bytes freed. Parameters go to host memory,
    and the KV cache is discarded.
    """
    import torch

    before = torch.cuda.mem_get_info()[0]

    def gone() -> int:
        return int(torch.cuda.mem_get_info()[0] - before)

    return lambda: engine.sleep(1), engine.wake_up, gone


def _layers(engine: Any) -> Switch:
    """Functions that give all layers but one away and take them back, and bytes freed. Host memory
    has the parameters all the time, and requests go on.
    """
    memory = Memory(engine.engine_core.engine_core.scheduler)

    def hold(remapped: int) -> None:
        memory.hold(remapped, memory.base)
        memory.settle()

    most = memory.layers(ALL_BUT_ONE)
    return lambda: hold(most), lambda: hold(0), lambda: most * memory.shape.layer_bytes
