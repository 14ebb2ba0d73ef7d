"""The first import of each library on a fresh machine, which reads gigabytes from its disk."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Row, timed
from benchmarks.gpu.tied import tied

ROOT = Path(__file__).parents[2]
MODULES = ("torch", "vllm", "vllm.v1.engine.llm_engine", "mirage.engine.scheduler")
"""Modules in the order in which they are tried, up to the first that is missing."""


def paid(bench: Bench) -> Row:
    """Row on the first import of each library, each in a process of its own, so that none profits
    from another's modules.
    """
    took, wrong = {}, ""
    for name in MODULES:
        if find_spec(name.partition(".")[0]) is None:
            break
        words = tied([sys.executable, "-c", f"import {name}"])
        ended: list[subprocess.CompletedProcess[str]] = []
        took[name] = timed(lambda words=words, ended=ended: ended.append(_run(words, bench)))
        if ended[0].returncode:
            lines = ended[0].stderr.strip().splitlines()
            wrong = f"; {name}: {lines[-1] if lines else ended[0].returncode}"
            break
    return Row(
        "imports",
        "the first import of each library, which later rows have from the page cache",
        ", ".join(f"{name} {s:.1f} s" for name, s in took.items()) + wrong,
        "they can be imported",
        not wrong,
        took,
    )


def _run(words: list[str], bench: Bench) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=bench.share())
