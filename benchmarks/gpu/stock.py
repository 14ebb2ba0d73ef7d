"""Cost of MIRAGE while nothing is remapped: a decode step of OPT-13b against stock vLLM's."""

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
"""Engines that each has still before it: what one leaves of its time, the others have."""

Timed = Callable[[], dict[str, float]]


def against(bench: Bench) -> Iterator[Row]:
    """A decode step with nothing remapped against vLLM as it comes, in each way of ours."""
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
    """A row for each way of ours, as soon as it is there; one that fails is a miss.

    Each gives the seconds of a step by the number of requests.
    """
    known, missed = _tried(STOCK, stock)
    if missed:
        yield missed
    for name, way in ways.items():
        times, missed = _tried(name, way)
        yield missed or compared(name, times, known)


def compared(name: str, times: dict[str, float], stock: dict[str, float]) -> Row:
    """One way of ours against stock vLLM, whose times are empty if there are none."""
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
    """Its times, or none and a row that misses."""
    try:
        return timed(), None
    except Exception as error:
        why = str(error) if isinstance(error, Ended) else said(error)
        what = "OPT-13b: a decode step, nothing remapped"
        return {}, Row(f"against stock vLLM, {name}", f"{what}, {name}", why, "", False)


def step_times(engine: Engine, batches: list[int]) -> dict[str, float]:
    """Seconds of a decode step by the number of requests. Raises `Ended`."""
    spec = {"batches": batches, "tokens": STEPS}
    times: dict[str, float] = ran(engine, spec)["times"]
    return times


def plain(model: Path, limit_s: float, **more: str | int | bool) -> Engine:
    """vLLM's server as anybody starts it, of which the engine is taken."""
    from mirage.serve import launcher

    given = {"model": str(model), "load_format": "dummy", "dtype": "bfloat16"}
    limits = {"max_model_len": 2048, "gpu_memory_utilization": 0.5}
    command = [sys.executable, *launcher.SERVER, *launcher.flags(given | limits | more)]
    return Engine(command, large(model, way=EAGERLY), limit_s, stock=True)


def ours(model: Path, limit_s: float, *, way: str) -> Engine:
    """Configuration as it is served on a GPU."""
    return served(large(model, way=way), limit_s)


def large(model: Path, *, way: str, memory: str = "40GiB") -> Config:
    """OPT-13b alone on a device, its KV cache in what its parameters leave of `memory`."""
    from mirage.config import Config

    tenant = {"name": "one", "model": model, "share": 100, "max_model_len": 2048}
    tenant["engine_args"] = {"load_format": "dummy"}
    device = {"kind": "cuda", "memory": memory, "page": "8MiB", **ON_GPU[way]}
    return Config.model_validate({"device": device, "block_tokens": 16, "tenants": [tenant]})
