"""Software that is nearest to MIRAGE, on the same model and device: figures without aims."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu import small, stock
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_child import Ended, Engine, need_vllm, ran, served
from benchmarks.gpu.rows import Row, Skipped, ms
from benchmarks.gpu.ways import COMPILED, EAGERLY

GROUP, AWAY = 10, 4
"""vLLM's offloader takes the last layer of each ten: four of OPT-13b's forty."""
PREFETCH = {
    "offload_backend": "prefetch",
    "offload_group_size": GROUP,
    "offload_num_in_group": 1,
    "offload_prefetch_step": 1,
}
BATCHES = [16, 64]
KVCACHED = {"ENABLE_KVCACHED": "true", "KVCACHED_AUTOPATCH": "1"}
GIB = 1 << 30


def prefetch(bench: Bench) -> Row:
    """Row on a decode step with four layers away, with vLLM's own prefetch
    offloader and with ours.
    """
    need_vllm()
    bench.need_kernels()
    model = _model()
    asked = {"batches": BATCHES, "tokens": stock.STEPS}
    name, what = "vLLM's prefetch offloader", f"OPT-13b: a decode step, {AWAY} of 40 layers away"
    try:
        theirs = ran(stock.plain(model, bench.share(2), **PREFETCH), asked)["times"]
        ours = ran(stock.ours(model, bench.share(), way=COMPILED), asked | {"away": AWAY})["times"]
    except Ended as error:
        return Row(name, what, str(error), "", False)
    return Row(
        name,
        what,
        ", ".join(
            f"{ms(theirs[batch])} against {ms(ours[batch])} of ours at {batch}" for batch in ours
        ),
        details={"theirs_s": theirs, "ours_s": ours},
    )


def sleep_mode(bench: Bench) -> Row:
    """Row on moving a model's parameters off the device and back, with vLLM's sleep mode and layer
    by layer with ours.
    """
    need_vllm()
    name, what = "vLLM's sleep mode", "parameters away from the device and back"
    try:
        ours = ran(_ours(bench), {"switch": "layers"})
        theirs = None if bench.dry else ran(_asleep(bench), {"switch": "sleep"})
    except Ended as error:
        return Row(name, what, str(error), "", False)
    slept = _said(theirs) if theirs else "skipped: vLLM on a host has none"
    return Row(
        name,
        what,
        f"{slept}; our layers but one, requests going on: {_said(ours)}",
        details={"theirs": theirs, "ours": ours},
    )


def kvcached(bench: Bench) -> Row:
    """Row on a decode step of stock vLLM with kvcached's elastic KV cache, which moves no
    parameters. Raises `Skipped` if kvcached is not installed.
    """
    need_vllm()
    if find_spec("kvcached") is None:
        raise Skipped("kvcached is not installed")
    bench.need_kernels()
    name, what = "kvcached", "OPT-13b: a decode step of stock vLLM with kvcached's KV cache"
    engine = stock.plain(_model(), bench.share())
    try:
        times = stock.step_times(with_variables(engine, KVCACHED), BATCHES)
    except Ended as error:
        return Row(name, what, str(error), "", False)
    shown = ", ".join(f"{ms(seconds)} at {batch}" for batch, seconds in times.items())
    return Row(name, what, shown, details={"seconds": times})


def with_variables(engine: Engine, more: dict[str, str]) -> Engine:
    return replace(engine, more=engine.more | more)


def _said(found: dict[str, Any]) -> str:
    return f"{found['bytes'] / GIB:.2f} GiB in {ms(found['away_s'])}, back in {ms(found['back_s'])}"


def _ours(bench: Bench) -> Engine:
    limit_s = bench.share(2)
    if bench.dry:
        return served(small.config(True, way=EAGERLY), limit_s)
    return stock.ours(_model(), limit_s, way=EAGERLY)


def _asleep(bench: Bench) -> Engine:
    return stock.plain(_model(), bench.share(), enable_sleep_mode=True, enforce_eager=True)


def _model() -> Path:
    from benchmarks.gpu import dummies

    return dummies.hollow(small.MODELS / "opt-13b")
