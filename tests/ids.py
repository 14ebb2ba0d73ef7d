"""Which command runs which test, and whether one of an older list is run by none.

python -m tests.ids [LIST...]

A LIST has the ids that ``pytest --collect-only -q`` printed. Prints how many tests each command has
of each layer; ends with exit code 1 and their ids if some are run by no command, or are gone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.commands import CHOICE, COMMANDS

ROOT = Path(__file__).parents[1]
ID = re.compile(r"^tests/\S+\.py::.+$", re.MULTILINE)
LAYERS = {
    "test": ("pure", "vmm", "engine", "e2e"),
    "slow": ("pure", "vmm", "engine", "e2e"),
    "long": ("pure", "vmm", "engine", "e2e", "long"),
}
"""What the Makefile has each command look through."""


def collected(layers: Iterable[str], command: str | None) -> set[str]:
    """Ids of what the command runs, of all tests without one. Raises if they cannot be read."""
    environment = {name: value for name, value in os.environ.items() if name != CHOICE}
    ids = set()
    for layer in layers:  # one at a time: helpers of different layers have equal names
        words = [sys.executable, "-m", "pytest", "--collect-only", "-q", f"tests/{layer}"]
        done = subprocess.run(
            words,
            env=environment | ({CHOICE: command} if command else {}),
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode not in (0, 5):
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        ids |= set(ID.findall(done.stdout))
    return ids


def layer_of(name: str) -> str:
    return name.split("/")[1]


def main(lists: list[str]) -> int:
    run = {command: collected(LAYERS[command], command) for command in COMMANDS}
    every = collected(LAYERS["long"], None)
    for command, ids in run.items():
        counts = {layer: sum(layer_of(name) == layer for name in ids) for layer in LAYERS["long"]}
        print(f"make {command}: {len(ids)} tests {counts}")
    orphans = every - set().union(*run.values())
    before = {name for path in lists for name in ID.findall(Path(path).read_text())}
    for what, ids in (("run by no command", orphans), ("gone", before - every)):
        print(f"{what}: {len(ids)}", *sorted(ids), sep="\n  ")
    return bool(orphans or before - every)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
