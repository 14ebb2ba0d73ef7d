"""Engines in processes of their own that wait for each other, and then decode at the same time."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.decoding import Decoding, say
from benchmarks.gpu.rows import p99
from benchmarks.gpu.spans import Spans

POLL_S = 0.005


def meet(folder: Path, what: str, index: int, number: int) -> None:
    """Barrier: return when all `number` processes have called it with `what`.

    The caller's parent limits the wait.
    """
    (folder / f"{what}-{index}").touch()
    while not all((folder / f"{what}-{other}").exists() for other in range(number)):
        time.sleep(POLL_S)


def measured(engine: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Median and P99 of the seconds of this engine's steps while all engines decode (``at once``)
    and, if it is engine 0, while it alone decodes (``alone``).

    Both entries have the times of `Spans.counted` as well.
    """
    folder, index, number = Path(spec["folder"]), spec["index"], spec["number"]
    decoding, spans = Decoding(engine), Spans(engine.engine_core.engine_core)

    def decoded(what: str) -> dict[str, float]:
        say(f"decoding, {what}")
        with spans.counted() as counts:
            took = decoding.steps(spec["batch"], spec["tokens"])
        return {"step_s": statistics.median(took), "p99_s": p99(took)} | counts

    found = {}
    decoding.steps(spec["batch"], 4)  # or the first of its kernels would be loaded meanwhile
    meet(folder, "started", index, number)
    if index == 0:
        found["alone"] = decoded("alone")
    meet(folder, "ready", index, number)
    found["at once"] = decoded(f"{number} engines at once")
    return found
