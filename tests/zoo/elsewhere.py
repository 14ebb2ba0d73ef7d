"""Families in processes that are on another class of processor from their beginning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import kinds
from tests.zoo.driving import SCRIPT

MODES = ("plain", "mirage")
LIMIT_S = 1200
ROOT = SCRIPT.parents[2]

Facts = dict[str, Any]


def in_modes(
    processor: str, families: Sequence[str], models: Path, modes: Sequence[str] = MODES
) -> dict[str, dict[str, Facts]]:
    """Facts of all `families` by mode and family. `processor` is a name of `kinds.ORDER`."""
    return {mode: dict(_in_mode(processor, mode, families, models)) for mode in modes}


def probe(processor: str) -> tuple[str, ...]:
    """Arguments of `python` for a process that asks vLLM on that class of processors."""
    return ("-m", "tests.kinds", processor, "mirage.engine.probe")


def _in_mode(
    processor: str, mode: str, families: Sequence[str], models: Path
) -> Iterator[tuple[str, Facts]]:
    """Facts of families in one mode; a family that fails is the last one of its process."""
    todo = list(families)
    while todo:
        for facts in _one_process(processor, mode, todo, models):
            yield todo.pop(0), facts


def _one_process(processor: str, mode: str, families: Sequence[str], models: Path) -> list[Facts]:
    with tempfile.TemporaryDirectory(prefix="mirage-zoo-") as folder:
        out = Path(folder) / "facts"
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(models), str(out), mode, *families],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=ROOT,
            env={**os.environ, **kinds.environment(processor), "TMPDIR": folder},
        )
        if not out.exists():
            return [{"failed": f"status {done.returncode}: {done.stderr[-300:]}"}]
        return [json.loads(line) for line in out.read_text().splitlines()]
