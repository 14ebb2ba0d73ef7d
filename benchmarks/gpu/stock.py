"""Cost of MIRAGE while nothing is remapped: a decode step of OPT-13b relative to stock vLLM's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_child import Ended, Engine, need_vllm, ran, served
from benchmarks.gpu.rows import Row, said
from benchmarks.gpu.small import MODELS
from benchmarks.gpu.ways import COMPILED, EAGERLY, GRAPHS, ON_GPU

if TYPE_CHECKING:
    from mirage.config import Config

BATCHES, STEPS, NEAR = [1, 16, 64], 64, 1.02
STOCK = "stock vLLM"
WAYS = (COMPILED, GRAPHS, EAGERLY)
LEFT = range(1 + len(WAYS), 0, -1)
"""For each engine the number of engines that have not run yet, itself included: they share the time
that is left.
"""

Timed = Callable[[], dict[str, float]]


def against(bench: Bench) -> Iterator[Row]:
    """Rows on a decode step with nothing remapped relative to stock vLLM's: eager, with graphs, and
    compiled.
    """
    bench.need_kernels()
    need_vllm()
    from benchmarks.gpu import dummies

    model = dummies.hollow(MODELS / "opt-13b")
    engines = [lambda s: plain(model, s)]
    engines += [lambda s, way=way: ours(model, s, way=way) for way in WAYS]
    times = [partial(_timed, bench, make, left) for make, left in zip(engines, LEFT, strict=True)]
    yield from compared_all(times[0], dict(zip(WAYS, times[1:], strict=True)))


def _timed(bench: Bench, make: Callable[[float], Engine], left: int) -> dict[str, float]:
    return step_times(make(bench.share(left)), BATCHES)


def compared_all(stock: Timed, ways: dict[str, Timed]) -> Iterator[Row]:
    """A row for each way to run steps, as soon as it is measured; one that fails misses its aim.

    `stock` and the functions of `ways`, by name, return the seconds of a decode step by the number
    of requests.
    """
    known, missed = _tried(STOCK, stock)
    if missed:
        yield missed
    for name, way in ways.items():
        times, missed = _tried(name, way)
        yield missed or compared(name, times, known)


def compared(name: str, times: dict[str, float], stock: dict[str, float]) -> Row:
    """Row on a decode step of MIRAGE in the way `name` (a key of `ON_GPU`), relative to stock vLLM,
    whose times are empty if they could not be measured.
    """
    ratios = {batch: seconds / stock[batch] for batch, seconds in times.items() if stock}
    shown = ", ".join(
        f"{f'{ratios[batch]:.3f} ' if stock else ''}at {batch} ({seconds * 1e3:.2f} ms)"
        for batch, seconds in times.items()
    )
    return Row(
        f"against stock vLLM, {name}",
        f"OPT-13b: a decode step, nothing remapped, {name}, over stock vLLM's",
        shown,
        f"<= {NEAR}" if stock else "",
        max(ratios.values()) <= NEAR if stock else None,
        {"seconds": times, "stock": stock},
    )


def _tried(name: str, timed: Timed) -> tuple[dict[str, float], Row | None]:
    """Times of an engine; if it fails, no times, and a row that misses its aim."""
    try:
        return timed(), None
    except Exception as error:
        why = str(error) if isinstance(error, Ended) else said(error)
        what = "OPT-13b: a decode step, nothing remapped"
        return {}, Row(f"against stock vLLM, {name}", f"{what}, {name}", why, "", False)


def step_times(engine: Engine, batches: list[int]) -> dict[str, float]:
    """Seconds of a decode step by the number of requests. Raises `Ended` if the engine fails."""
    spec = {"batches": batches, "tokens": STEPS}
    times: dict[str, float] = ran(engine, spec)["times"]
    return times


def plain(model: Path, limit_s: float, **more: str | int | bool) -> Engine:
    """Engine of stock vLLM, to be started for a measurement."""
    from mirage.serve.launch import launcher

    given = {"model": str(model), "load_format": "dummy", "dtype": "bfloat16"}
    limits = {"max_model_len": 2048, "gpu_memory_utilization": 0.5}
    command = [sys.executable, *launcher.SERVER, *launcher.flags(given | limits | more)]
    return Engine(command, large(model, way=EAGERLY), limit_s, stock=True)


def ours(model: Path, limit_s: float, *, way: str) -> Engine:
    """Engine of MIRAGE, started as `mirage serve` does on a GPU; `way` is a key of `ON_GPU`."""
    return served(large(model, way=way), limit_s)


def large(model: Path, *, way: str, memory: str = "40GiB") -> Config:
    """Configuration of OPT-13b alone on a device, with its KV cache in the memory that its
    parameters leave of `memory`; `way` is a key of `ON_GPU`.
    """
    from mirage.config import Config

    tenant = {"name": "one", "model": model, "share": 100, "max_model_len": 2048}
    tenant["engine_args"] = {"load_format": "dummy"}
    device = {"kind": "cuda", "memory": memory, "page": "8MiB", **ON_GPU[way]}
    return Config.model_validate({"device": device, "block_tokens": 16, "tenants": [tenant]})
