"""The command `mirage doctor`: it runs all tests, prints the findings, and says from which memory a
server can run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from mirage.config import load
from mirage.doctor import disk, engine, gpu, host, node
from mirage.doctor.finding import Finding, FindingState
from mirage.errors import InputRefused
from mirage.machines.ray.node import NodeFolder
from mirage.options import JsonOption
from mirage.printed import json_object
from mirage.processes.exits import exits

STYLES = {FindingState.WORKS: "green", FindingState.LIMITED: "yellow", FindingState.MISSING: "red"}
NOTHING_CAN_SERVE = 1
SCHEMA_VERSION = 1


def doctor_command(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]", help="Configuration whose tiers.ssd.directory is tested."
        ),
    ] = None,
    device: Annotated[int, typer.Option(min=0, help="Number of the GPU, as in nvidia-smi.")] = 0,
    folder: Annotated[
        Path | None,
        typer.Option("--disk", metavar="DIR", help="Test this folder for an SSD tier."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Test host memory, GPU, link, disk and vLLM: what works here, what does not, what to do.

    Exit code 0 if `mirage serve` can run from some memory here, 1 if not.
    """
    console = Console(stderr=True)
    tried = [folder] if folder else _of(config)
    with console.status("Looking at memory, GPU, disk and vLLM ..."):
        found = [*host.findings(), *gpu.findings(device)]
        found += [finding for path in tried for finding in disk.findings(path)]
        found += [*engine.findings(), *node.findings(NodeFolder())]
    able = served_from(found)
    if as_json:
        content = {"findings": [asdict(f) for f in found], "serves_from": able}
        typer.echo(json_object(SCHEMA_VERSION, content))
    else:
        show(found, able)
    sys.exit(0 if able else NOTHING_CAN_SERVE)


def _of(path: Path | None) -> list[Path]:
    """Folder of the SSD tier of the configuration at `path`; empty if `path` is None. Ends the
    process with one line of error if the configuration has no SSD tier or cannot be read.
    """
    if path is None:
        return []
    with exits():
        ssd = load(path).tiers.ssd
        if ssd is None:
            raise InputRefused(f"{path}: it has no tiers.ssd.directory to try: name a --disk DIR")
    return [ssd.directory]


def served_from(found: Iterable[Finding]) -> list[str]:
    """Values of `device.kind` from which a server can run here, by the findings."""
    stopped = {f.topic for f in found if f.state is FindingState.MISSING}
    absent = {
        f.what for f in found if f.topic == engine.TOPIC and f.state is not FindingState.WORKS
    }
    return [
        kind
        for kind, topic in (("host", host.TOPIC), ("cuda", gpu.TOPIC))
        if not stopped & {topic, engine.TOPIC} and engine.worker(kind) not in absent
    ]


def show(found: Iterable[Finding], able: list[str]) -> None:
    """Print the table, what to do, and what can be served from; nothing is cut off."""
    columns = [Column(), Column(), Column(), Column(overflow="fold")]  # paths have no blanks
    table = Table(*columns, box=None, pad_edge=False, show_header=False)
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
