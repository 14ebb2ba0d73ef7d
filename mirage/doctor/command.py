"""The command: look at everything, print it, and say what can be served from."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mirage.doctor import engine, gpu, host
from mirage.doctor.finding import Finding, State

STYLES = {State.WORKS: "green", State.LIMITED: "yellow", State.MISSING: "red"}
NOTHING_CAN_SERVE = 1


def doctor_command(
    device: Annotated[int, typer.Option(min=0, help="GPU, as nvidia-smi counts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Look at host memory, GPU, link and vLLM: what works here, what not, and what to do.

    Exit code 0 if `mirage serve` can run from some memory here, 1 if not.
    """
    console = Console(stderr=True)
    with console.status("Looking at memory, GPU and vLLM ..."):
        found = [*host.findings(), *gpu.findings(device), *engine.findings()]
    able = served_from(found)
    if as_json:
        print(json.dumps({"findings": [asdict(f) for f in found], "serves_from": able}, indent=2))
    else:
        _print(found, able)
    sys.exit(0 if able else NOTHING_CAN_SERVE)


def served_from(found: Iterable[Finding]) -> list[str]:
    """The values of `device.kind` that work here."""
    stopped = {f.topic for f in found if f.state is State.MISSING}
    absent = {f.what for f in found if f.topic == engine.TOPIC and f.state is not State.WORKS}
    return [
        kind
        for kind, topic in (("host", host.TOPIC), ("cuda", gpu.TOPIC))
        if not stopped & {topic, engine.TOPIC} and engine.worker(kind) not in absent
    ]


def _print(found: Iterable[Finding], able: list[str]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    topic = ""
    for f in found:
        shown = f.topic if f.topic != topic else ""
        table.add_row(shown, f.what, f"[{STYLES[f.state]}]{f.state}[/]", escape(f.found))
        topic = f.topic
    console = Console()
    console.print(table)
    for f in found:
        if f.advice:
            console.print(f"{f.topic}, {f.what}: {f.advice}", markup=False, highlight=False)
    where = f"from device.kind {' or '.join(able)}" if able else "from nothing"
    console.print(f"\n`mirage serve` can run here {where}.")
