"""``python -m benchmarks.gpu WHAT [--dry]``: rows, one after the other.

Each finished row is printed, written to DIR/<date>-<gpu>.json and put into docs/results.md, so
that a run which is cut off keeps what it has. Exit code 1 if a row misses its aim.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu import report
from benchmarks.gpu.plan import COMMAND_S, COMMANDS
from benchmarks.gpu.rows import Row
from benchmarks.gpu.watch import Child, Gone, Late, NoDevice, watched

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit code: 1 if a row misses its aim, 2 without a device that
    answers.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("what", choices=[*COMMANDS])
    parser.add_argument("--dry", action="store_true", help="over the stand-in, without kernels")
    parser.add_argument("--seconds", type=float, default=COMMAND_S, help="for all rows")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "gpu")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "results.md")
    options = parser.parse_args(arguments)
    start, end = partial(Child, dry=options.dry), time.monotonic() + options.seconds
    try:
        child = start()
    except NoDevice as error:
        print(f"no GPU to measure: {error}", file=sys.stderr)
        return 2
    except (Late, Gone) as error:
        print(f"no GPU to measure: the driver does not answer: {error}", file=sys.stderr)
        return 2
    docs = None if options.dry else options.docs
    page = report.begin(options.what, child.about, options.results, docs)
    if not options.what.startswith("serve") and find_spec("vllm") is None:
        print("     vLLM is not installed: what it would serve is skipped", flush=True)
    for row in watched(COMMANDS[options.what], child, start, end - time.monotonic()):
        print(_line(row), flush=True)
        page.add(row)
    print(f"Written: {page.path}" + ("" if options.dry else f", {options.docs}"))
    return 1 if page.missed else 0


def _line(row: Row) -> str:
    mark = {True: "ok  ", False: "MISS", None: "    "}[row.holds]
    return f"{mark} {row.name}: {row.value}{f' (aim {row.aim})' if row.aim else ''}"
