"""The project's claim on an engine: layers can be away, and a step takes as long as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import small, stock
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_child import ROOT, Ended, need_vllm, ran, served
from benchmarks.gpu.rows import Row, median, ms, p99, skipped
from benchmarks.gpu.ways import COMPILED, EAGERLY

if TYPE_CHECKING:
    from mirage.config import Config

BATCHES = {True: [2, 4], False: [64, 256]}
"""Batch sizes, dry (True) and on a GPU (False): a step of few requests is too short for any layer
to hide."""
TOKENS = {True: 10, False: 40}
NEAR = 1.03
"""Largest ratio of a step at the cap to one in pieces with nothing away: that of
`mirage.control.hiding.HIDDEN`."""
TRACE = ROOT / "out" / "gpu" / "steps.json.gz"
TRACE_BYTES = 16 << 20
GIB = 1 << 30


def measured(bench: Bench) -> Iterator[Row]:
    """All rows of one engine, which is started once: OPT-13b, compiled and with graphs."""
    need_vllm()
    try:
        found = _found(bench)
    except Ended as error:
        yield Row("layers away", "a step of OPT-13b with layers away", str(error), "", False)
        return
    model = "a small model" if bench.dry else "OPT-13b, compiled"
    for batch, steps in found["steps"].items():
        yield by_remapped(f"{model}, {batch} requests", batch, steps)
    yield around_moves(model, found["moves"])
    yield beside_the_ledger(model, found["outside"])
    yield trace(found["trace"])


def _found(bench: Bench) -> dict[str, Any]:
    config = _config(bench)
    asked: dict[str, Any] = {"batches": BATCHES[bench.dry], "tokens": TOKENS[bench.dry]}
    asked |= {"moves": True, "trace": str(TRACE)}
    if bench.dry:
        return ran(served(config, bench.share()), asked)
    with bench.open(bench.page_bytes) as driver:  # its context is there before and after
        free = driver.memory_info()[0]
        return ran(served(config, bench.share()), asked | {"free": free})


def _config(bench: Bench) -> Config:
    if bench.dry:
        return small.config(True, way=EAGERLY)
    from benchmarks.gpu import dummies

    return stock.large(dummies.hollow(small.MODELS / "opt-13b"), way=COMPILED, memory="60GiB")


def by_remapped(what: str, batch: str, steps: dict[str, dict[str, float]]) -> Row:
    """Row on a decode step at each number of layers away, for one batch size."""
    pieces, cap = steps["0 in pieces"], steps["cap"]
    ratio = cap["step_s"] / pieces["step_s"]
    hides = cap["layers_remapped"] > 0
    return Row(
        f"layers away, {batch} requests",
        f"{what}: a decode step by layers away",
        "; ".join(f"{_named(name, one)} {_said(one)}" for name, one in steps.items())
        + f"; T_T {ms(pieces['load_s'])}; cap {ratio:.3f} of 0 in pieces",
        f"<= {NEAR} at the cap" if hides else "no layer hides at this size",
        ratio <= NEAR if hides else None,
        steps,
    )


def _named(name: str, one: dict[str, float]) -> str:
    return f"{name} ({one['layers_remapped']:.0f})" if name.startswith("cap") else name


def _said(one: dict[str, float]) -> str:
    return (
        f"{ms(one['step_s'])} (T_c {one['compute_s'] * 1e6:.0f} us, stall {ms(one['stall_s'])}, "
        f"host {ms(one['host_s'])}, of it streaming {one['streaming_host_s'] * 1e6:.0f} us)"
    )


def around_moves(model: str, found: dict[str, Any]) -> Row:
    """Row on the time between two tokens: near moves of memory, and in the other steps of the
    run.
    """
    quiet, moves = found["quiet"], found["moves"]
    around = [seconds for times in moves.values() for seconds in times]
    return Row(
        "ITL around a move",
        f"{model}: from one token to the next, as layers and KV extents go and come",
        f"P99 {ms(p99(around))} around moves, {ms(p99(quiet))} else (median "
        f"{ms(median(quiet))}); longest: "
        + ", ".join(f"{name} {ms(max(times))}" for name, times in moves.items()),
        details=found,
    )


def beside_the_ledger(model: str, found: dict[str, int] | None) -> Row:
    """Row on device memory outside all grants: CUDA context, graphs, workspaces and activations."""
    name = "memory beside the ledger"
    if found is None:
        return skipped(name, "an engine on a host takes it from what all programs share")
    beside = found["gone"] - found["known"]
    return Row(
        name,
        f"{model}: of the device's memory what an engine takes beside its grant, after warm-up",
        f"{beside / GIB:.2f} GiB of {found['gone'] / GIB:.2f} GiB",
        details=found,
    )


def trace(found: dict[str, Any]) -> Row:
    """Row on a trace for chrome://tracing or Perfetto, which shows why another row surprises."""
    small_enough = found["bytes"] < TRACE_BYTES
    return Row(
        "trace",
        f"{found['steps']} steps in torch's profiler",
        f"{Path(found['file']).relative_to(ROOT)}, {found['bytes'] / 2**20:.1f} MiB",
        f"< {TRACE_BYTES >> 20} MiB",
        small_enough,
        found,
    )
