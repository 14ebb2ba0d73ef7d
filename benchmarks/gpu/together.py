"""Time of a step of two engines that decode at the same time, with MPS and without.

Without MPS a GPU gives processes time slices of about two milliseconds. With it their kernels run
beside each other, and a fault of one ends both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu import small, stock
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_child import Ended, Engine, need_vllm, ran, served
from benchmarks.gpu.rows import Row, Skipped, ms
from benchmarks.gpu.tied import tied
from benchmarks.gpu.ways import EAGERLY, GRAPHS

NUMBER = 2
ASKED = {True: {"batch": 2, "tokens": 10}, False: {"batch": 32, "tokens": 200}}
"""Requests that decode together and tokens of each, dry (True) and on a GPU (False)."""
CONTROL = "nvidia-cuda-mps-control"
STARTING_S = 15.0


def plain(bench: Bench) -> Row:
    """Row on two engines in two processes that share a GPU without MPS."""
    need_vllm()
    return _row(bench, "two engines at once", {})


def with_mps(bench: Bench) -> Row:
    """Row as `plain`, with NVIDIA's multi-process service (MPS), which the row starts and ends.
    Raises `Skipped` if MPS is not installed."""
    need_vllm()
    if shutil.which(CONTROL) is None:
        raise Skipped(f"{CONTROL} is not installed")
    with mps() as variables:
        return _row(bench, "two engines at once, with MPS", variables)


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Context in which NVIDIA's multi-process service runs; gives its clients' environment
    variables. Raises `RuntimeError` if it does not start.
    """
    with TemporaryDirectory(prefix="mps") as folder:
        variables = {
            "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
        }
        for path in variables.values():
            Path(path).mkdir()
        environment = {**os.environ, **variables}
        control = subprocess.Popen(tied([CONTROL, "-f"]), env=environment)
        try:
            _await(Path(folder) / "pipe" / "control", control)
            yield variables
        finally:
            subprocess.run([CONTROL], input="quit\n", text=True, env=environment, timeout=30)
            control.terminate()
            control.wait(30)


def _await(socket: Path, control: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + STARTING_S
    while not socket.exists():
        if control.poll() is not None:
            raise RuntimeError(f"{CONTROL} ended with {control.returncode}")
        if time.monotonic() > end:
            raise RuntimeError(f"{CONTROL} was not there after {STARTING_S:g} s")
        time.sleep(0.05)


def _row(bench: Bench, name: str, variables: dict[str, str]) -> Row:
    what = f"{name}: a decode step of {'a small model' if bench.dry else 'OPT-13b, with graphs'}"
    try:
        first, second = _found(bench, variables)
    except Ended as error:
        return Row(name, what, str(error), "", False)
    alone, both = first["alone"], [first["at once"], second["at once"]]
    return Row(
        name,
        what,
        f"{_said(alone)} alone; at once {' and '.join(map(_said, both))}: "
        + " and ".join(f"{one['step_s'] / alone['step_s']:.2f}x" for one in both),
        details={"alone": alone, "at once": both},
    )


def _said(one: dict[str, float]) -> str:
    return f"{ms(one['step_s'])} (P99 {ms(one['p99_s'])}, T_c {one['compute_s'] * 1e6:.0f} us)"


def _found(bench: Bench, variables: dict[str, str]) -> list[dict[str, Any]]:
    """Times of both engines. Raises `Ended` if one of them ends, once both have ended."""
    engine = _engine(bench)
    with TemporaryDirectory() as folder, ThreadPoolExecutor(NUMBER) as threads:
        asked = ASKED[bench.dry] | {"folder": folder, "number": NUMBER}
        running = [
            threads.submit(partial(ran, replace(engine, more=variables), asked | {"index": index}))
            for index in range(NUMBER)
        ]
        return [each.result() for each in running]


def _engine(bench: Bench) -> Engine:
    if bench.dry:
        return served(small.config(True, way=EAGERLY), bench.share())
    from benchmarks.gpu import dummies

    model = dummies.hollow(small.MODELS / "opt-13b")
    return served(stock.large(model, way=GRAPHS, memory="34GiB"), bench.share())
