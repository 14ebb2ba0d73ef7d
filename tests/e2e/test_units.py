"""The units in deploy/systemd, checked by systemd itself."""

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
    """Output of `systemd-analyze`, whose exit code must be 0."""
    assert ANALYZE is not None
    done = subprocess.run([ANALYZE, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@by_systemd
def test_the_units_are_right(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say about the units. Their program, which is not
    installed here, is replaced by Python's.
    """
    for unit in UNITS.glob("mirage*.s[eo]*"):
        text = unit.read_text().replace(INSTALLED, sys.executable)
        (tmp_path / unit.name).write_text(text)
    units = sorted(tmp_path.glob("mirage*.s*"))
    services = ["mirage-cluster.service", "mirage-node.service", "mirage.service"]
    assert [unit.name for unit in units] == [*services, "mirage.socket"]
    assert analyze("verify", "--man=no", *units) == ""


@by_systemd
def test_the_service_is_not_exposed() -> None:
    said = analyze("security", "--offline=yes", "--no-pager", UNITS / "mirage.service")
    found = re.search(r"Overall exposure level for mirage.service: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= MOST_EXPOSED


def settings(unit: str = "mirage.service") -> dict[str, list[str]]:
    lines = (UNITS / unit).read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if re.match(r"\w+=", line)]
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def test_engines_outlive_a_supervisor_that_is_killed() -> None:
    """The settings of the unit must be these. With others systemd would end the engines, or remove
    their sockets, before the next supervisor adopts them.
    """
    told = settings()
    assert told["KillMode"] == ["process"]
    assert told["RuntimeDirectoryPreserve"] == ["restart"]
    assert told["Restart"] == ["on-failure"]
    assert told["OOMPolicy"] == ["continue"], "an engine that the kernel ends is started again"
    assert "RemoveIPC" not in told and "PrivateUsers" not in told


def test_device_servers_outlive_their_node() -> None:
    """The settings of the node's unit must be these. With others systemd would end device servers,
    which are in its control group, or start a node again that has left.
    """
    told = settings("mirage-node.service")
    assert told["KillMode"] == ["process"]
    assert told["RuntimeDirectoryPreserve"] == ["yes"], "also while the node is stopped"
    assert told["Restart"] == ["on-failure"], "a node that leaves ends with 0"
    assert told["OOMPolicy"] == ["continue"], "an engine that the kernel ends is started again"
    assert told["RuntimeDirectory"] == settings()["RuntimeDirectory"]
    assert "RemoveIPC" not in told and "PrivateUsers" not in told


def test_a_controller_is_started_again_for_ever() -> None:
    told = settings("mirage-cluster.service")
    assert (told["Restart"], told["RestartSec"]) == (["always"], ["30"])
    assert told["StartLimitIntervalSec"] == ["0"]
    assert "RestartPreventExitStatus" not in told, "it ends with 2 while a node has no secret yet"


@pytest.mark.parametrize("unit", ["mirage-node.service", "mirage-cluster.service"])
def test_a_node_and_its_controller_share_folders(unit: str) -> None:
    """Both use the folder of the node in the user's home, and the sockets of Ray in /tmp."""
    told = settings(unit)
    assert (told["User"], told["StateDirectory"]) == (["mirage"], ["mirage"])
    assert "PrivateTmp" not in told and "strict" not in told["ProtectSystem"]
    assert not [one for one in told["Environment"] if "MIRAGE_NODE_FOLDER" in one]
