"""A started program waits until its starter has recorded it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from supervised import assert_gone

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
STARTER = """
import sys
from pathlib import Path
from mirage.processes.child import start_program
command = [sys.executable, "-c", *sys.argv[1:]]
child = start_program(command, {"SAID": "x"}, Path("log"))
print(child.pid, flush=True)
if sys.stdin.readline():
    child.begin()
    print(child.wait(), flush=True)
"""
PROGRAM = """
import os, sys
said = os.getpid(), sys.argv[1:], os.environ["SAID"], sys.stdin.read()
open("there", "w").write(repr(said))
print("done")
sys.exit(7)
"""


def starter(folder: Path) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A process that starts the program, and that program's process."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, PROGRAM, "a b", "--c"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, psutil.Process(int(process.stdout.readline()))


def test_it_is_what_was_asked_for_once_it_begins(tmp_path: Path) -> None:
    process, program = starter(tmp_path)
    said, _ = process.communicate("go\n", timeout=60)
    assert said == "7\n" and (tmp_path / "log").read_text() == "done\n"
    told = program.pid, ["a b", "--c"], "x", ""
    assert (tmp_path / "there").read_text() == repr(told)


def test_it_ends_with_who_started_it_if_nobody_knows_of_it(tmp_path: Path) -> None:
    process, program = starter(tmp_path)
    process.kill()
    process.communicate()
    assert_gone({program})
    assert not (tmp_path / "there").exists()
