"""Runs cases of `argued.py` within a time limit each, and compares MIRAGE's outcome to plain
vLLM's.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import nursery

from tests.processor import lacks_kernel

HERE = Path(__file__).parent
DEADLINE_S = 300.0
"""Seconds for one case, the start of the process included; it takes some five where nobody else
computes.
"""
POLL_S = 0.2
ENDED = "its process ended"
NO_KERNEL = "no kernel"

Case = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case: its kind (`refused`, `text`, `died`, or `hung` if nothing came until the
    deadline) and its message.
    """

    kind: str
    said: Any


def outcomes(models: Path, cases: list[Case], mode: str) -> list[Outcome]:
    """Outcomes of all cases, in few processes. A case whose process dies is repeated in a process
    of its own.
    """
    with tempfile.TemporaryDirectory(prefix="mirage-test-") as folder:
        said: list[Outcome] = []
        while len(said) < len(cases):
            # An engine that shares vLLM's modules with others may die of what they left there.
            batch = _spawned(Path(folder), models, cases, mode, len(said))
            if not batch or (batch[0].kind != "died" and batch[-1].kind == "died"):
                batch = batch[:-1] or [Outcome("hung", "no word until the deadline")]
            said += batch[: len(cases) - len(said)]
        return said


def _spawned(folder: Path, models: Path, cases: list[Case], mode: str, first: int) -> list[Outcome]:
    """Outcomes from case `first` on, up to the first case whose process dies or hangs."""
    listed, out = folder / "cases.json", folder / f"{mode}-{first}-{time.monotonic_ns()}.jsonl"
    listed.write_text(json.dumps(cases))
    words = [str(word) for word in (models, listed, out, mode, first)]
    log = folder / f"{out.stem}.log"
    child = nursery.begin(
        HERE / "argued.py", words, out=log, err=log, environment={"TMPDIR": str(folder)}
    )
    try:
        said = _watched(child, out)
        if said and (said[-1].kind == "hung" or said[-1].said == ENDED):
            said[-1] = Outcome(said[-1].kind, log.read_text()[-3000:])
        return said
    finally:
        child.kill()
        child.join()


def _watched(child: ForkServerProcess, out: Path) -> list[Outcome]:
    said: list[Outcome] = []
    heard = time.monotonic()
    while True:
        status = child.exitcode
        ended = status is not None
        lines = [json.loads(x) for x in out.read_text().splitlines()] if out.exists() else []
        if len(lines) > len(said):
            said, heard = [Outcome(x["outcome"], x["said"]) for x in lines], time.monotonic()
        if status:
            return [*said, Outcome("died", ENDED)]
        if ended or (said and said[-1].kind == "died"):
            return said
        if time.monotonic() - heard > DEADLINE_S:
            return [*said, Outcome("hung", "no word until the deadline")]
        time.sleep(POLL_S)


def judgement(plain: Outcome, ours: Outcome) -> str:
    """Verdict on two outcomes: equal, refused by us, no kernel on this processor for either, or a
    fault.
    """
    ended = plain.kind == "died" and ours.kind in ("died", "refused")
    if ended and lacks_kernel(plain.said) and lacks_kernel(ours.said):
        return NO_KERNEL
    if ours.kind == "refused":
        return "refused"
    if ours.kind == "text":
        if plain.kind != "text":
            return "only ours says a text"
        return "equal" if plain.said["rounds"] == ours.said["rounds"] else "WRONG TEXT"
    return f"{ours.kind} after a yes"
