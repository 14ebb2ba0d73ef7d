"""``python -m benchmarks.gpu WHAT [--dry]``: rows, one after the other.

Each finished row is printed, written to DIR/<date>-<gpu>.json and put into docs/results.md, so
that a run which is cut off keeps what it has. Exit code 1 if a row misses its aim.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu import (
    backends,
    contract,
    decode,
    engines,
    enqueuing,
    graphs,
    memory,
    peers,
    processes,
    report,
    serving,
)
from benchmarks.gpu.bench import Bench, dry, real
from benchmarks.gpu.rows import Row, Skipped, said
from vmm.driver import VmmError

Measured = Callable[[Bench], "Row | Iterable[Row]"]
SMOKE: tuple[Measured, ...] = (
    decode.streamed_is_right,
    graphs.replayed,
    engines.checked,
    engines.eagerly,
    engines.with_graphs,
    engines.compiled,
)
TEST: tuple[Measured, ...] = (
    contract.kept,
    decode.streamed_is_right,
    graphs.replayed,
    graphs.failed,
    processes.passing,
    peers.lent,
    engines.alike_eagerly,
    engines.alike_with_graphs,
    engines.alike_compiled,
    backends.eagerly,
    backends.with_graphs,
)
BENCH: tuple[Measured, ...] = (
    memory.layer_load,
    enqueuing.streamed_layers,
    memory.small_beside_a_layer,
    memory.handover,
    memory.one_more,
    memory.between_processes,
    processes.exported,
    memory.batched_copies,
    memory.locking,
    decode.at_the_cap,
    engines.against_stock,
)
ROWS = {
    "smoke": SMOKE,
    "test": TEST,
    "bench": BENCH,
    "serve": (serving.compiled,),
    "serve-graphs": (serving.with_graphs,),
}
SECONDS = 400
"""No row is begun after that."""
ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("what", choices=[*ROWS])
    parser.add_argument("--dry", action="store_true", help="over the stand-in, without kernels")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "gpu")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "results.md")
    options = parser.parse_args(arguments)
    try:
        bench = dry() if options.dry else real()
        page = report.begin(options.what, bench, options.results, options.docs)
    except (VmmError, ImportError, RuntimeError, AssertionError) as error:
        print(f"no GPU to measure: {error}", file=sys.stderr)
        return 2
    if not options.what.startswith("serve") and find_spec("vllm") is None:
        print("     vLLM is not installed: what it would serve is skipped (make gpu-serve)")
    for row in _rows(ROWS[options.what], bench):
        print(f"{_mark(row)} {row.name}: {row.value}{f' (aim {row.aim})' if row.aim else ''}")
        page.add(row)
    print(f"Written: {page.path}" + ("" if bench.dry else f", {options.docs}"))
    return 1 if page.missed else 0


def _rows(measured: Iterable[Measured], bench: Bench) -> Iterable[Row]:
    end = time.monotonic() + SECONDS
    for measure in measured:
        name = f"{measure.__module__.rsplit('.', 1)[-1]}.{measure.__name__}"
        if time.monotonic() > end:
            yield Row(name, "", f"not begun: {SECONDS} s had passed")
            continue
        try:
            made = measure(bench)
            yield from [made] if isinstance(made, Row) else made
        except Skipped as why:
            yield Row(name, "", f"skipped: {why}")
        except Exception as error:  # the other rows shall have their turn
            traceback.print_exc()
            yield Row(name, "", f"failed: {said(error)}", holds=False)


def _mark(row: Row) -> str:
    return {True: "ok  ", False: "MISS", None: "    "}[row.holds]
