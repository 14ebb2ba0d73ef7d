"""The units in deploy/systemd: what systemd itself says of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
INSTALLED = "/opt/mirage/bin/mirage"
MOST_EXPOSED = 4.0
ANALYZE = shutil.which("systemd-analyze")

by_systemd = pytest.mark.skipif(
    ANALYZE is None, reason="systemd-analyze is not there: apt-get install systemd"
)


def analyze(*words: object) -> str:
    """Output of the command. An exit code that is not 0 is an error."""
    assert ANALYZE is not None
    done = subprocess.run([ANALYZE, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@by_systemd
def test_the_units_are_right(tmp_path: Path) -> None:
    """With a program in the place of one that is not installed here."""
    for unit in UNITS.glob("mirage.s[eo]*"):
        text = unit.read_text().replace(INSTALLED, sys.executable)
        (tmp_path / unit.name).write_text(text)
    units = sorted(tmp_path.glob("mirage.s*"))
    assert [unit.suffix for unit in units] == [".service", ".socket"]
    assert analyze("verify", "--man=no", *units) == ""


@by_systemd
def test_the_service_is_not_exposed() -> None:
    said = analyze("security", "--offline=yes", "--no-pager", UNITS / "mirage.service")
    found = re.search(r"Overall exposure level for mirage.service: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= MOST_EXPOSED


def settings() -> dict[str, list[str]]:
    lines = (UNITS / "mirage.service").read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if re.match(r"\w+=", line)]
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def test_engines_outlive_a_supervisor_that_is_killed() -> None:
    """By any other value systemd ends them, or removes their sockets, before another has them."""
    told = settings()
    assert told["KillMode"] == ["process"]
    assert told["RuntimeDirectoryPreserve"] == ["restart"]
    assert told["Restart"] == ["on-failure"]
    assert told["OOMPolicy"] == ["continue"], "an engine that the kernel ends is started again"
    assert "RemoveIPC" not in told and "PrivateUsers" not in told
