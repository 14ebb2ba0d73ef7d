"""Commands that run each test, and tests of an older list that none runs.

python -m tests.ids [LIST...]

A LIST has the ids that ``pytest --collect-only -q`` printed. Prints how many tests each command has
of each layer; ends with exit code 1 and their ids if some are run by no command, or are gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import pytest

from tests.commands import CHOICE, COMMANDS, commands_of

ID = re.compile(r"^tests/\S+\.py::.+$", re.MULTILINE)
LAYERS = {
    "test": ("pure", "lab", "vmm", "engine", "e2e"),
    "slow": ("pure", "lab", "vmm", "engine", "e2e"),
    "long": ("pure", "lab", "vmm", "engine", "e2e", "long"),
}
"""Layers that the Makefile has each command look through."""


class Collector:
    """Plugin of pytest that records the commands of each collected test."""

    def __init__(self) -> None:
        self.found: dict[str, frozenset[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marks = {mark.name for mark in item.iter_markers()}
            layer = layer_of(item.nodeid)
            self.found[item.nodeid] = frozenset(
                command for command in commands_of(marks) if layer in LAYERS[command]
            )


def collected() -> Mapping[str, frozenset[str]]:
    """Commands of every test, by its id. Ends the process if tests cannot be collected."""
    os.environ.pop(CHOICE, None)
    collector, said = Collector(), StringIO()
    with contextlib.redirect_stdout(said):
        status = pytest.main(["--collect-only", "-q", str(Path(__file__).parent)], [collector])
    if status != pytest.ExitCode.OK:
        sys.exit(said.getvalue()[-2000:])
    return collector.found


def layer_of(name: str) -> str:
    return name.split("/")[1]


def main(lists: list[str]) -> int:
    tests = collected()
    for command in COMMANDS:
        mine = [name for name, commands in tests.items() if command in commands]
        counts = {layer: sum(layer_of(name) == layer for name in mine) for layer in LAYERS[command]}
        print(f"make {command}: {len(mine)} tests {counts}")
    before = {name for path in lists for name in ID.findall(Path(path).read_text())}
    orphans, gone = {name for name in tests if not tests[name]}, before - tests.keys()
    for what, names in (("run by no command", orphans), ("gone", gone)):
        print(f"{what}: {len(names)}", *sorted(names), sep="\n  ")
    return bool(orphans or gone)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
