"""Checks of the machine before engines start: the limit of open files, and folders."""

import errno
import resource
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from mirage.config import ConfigError
from mirage.serve.rundir import resources
from mirage.serve.rundir.parent_folders import Places
from mirage.units import MIB

pytestmark = pytest.mark.pure


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """List of (soft, hard) limits of open files: first the present one, then each that the code
    sets.
    """
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    return limits


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder in place of those for temporary files and sockets."""
    here = Places(str(tmp_path), str(tmp_path))
    for module in ("resources", "folders"):
        monkeypatch.setattr(f"mirage.serve.rundir.{module}.places", lambda: here)
    return tmp_path


def test_the_soft_limit_is_raised_where_that_is_allowed(limits: list[tuple[int, int]]) -> None:
    limits[0] = (64, 4096)
    resources.check_files()
    assert limits[1:] == [(4096, 4096)]


def test_the_limit_is_never_lowered(limits: list[tuple[int, int]]) -> None:
    assert resources.raise_limit(200) == 1024 and len(limits) == 1
    assert resources.raise_limit(1 << 40) == 4096


def test_a_hard_limit_that_is_too_low_is_told(limits: list[tuple[int, int]]) -> None:
    limits[0] = (64, 511)
    with pytest.raises(ConfigError, match="may open 511 files here, 512 are needed: raise the lim"):
        resources.check_files()


def test_nothing_is_left_of_a_look_at_the_folders(base: Path) -> None:
    logs = base / "x" / "logs"
    resources.check_folders(logs)
    assert [each.name for each in base.iterdir()] == ["x"]
    assert not list(logs.iterdir())


def test_a_full_folder_is_told(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(3 * MIB))
    with pytest.raises(ConfigError) as raised:
        resources.check_folders()
    assert str(raised.value) == (
        f"{base} has 3.0 MiB left, 64.0 MiB are needed: make room there, or let TMPDIR name "
        "another folder"
    )


@pytest.mark.parametrize("fails", ["make", "write"])
def test_a_folder_that_cannot_be_written_is_told(
    base: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def full(*args: object, **kwargs: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", str(base))

    if fails == "make":
        monkeypatch.setattr(tempfile, "mkdtemp", full)
    else:
        monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ConfigError, match=f"cannot be written \\({base}: No space left on device"):
        resources.check_folders()
    assert not list(base.iterdir())


def test_a_machine_without_any_such_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(ConfigError, match="No usable temporary directory found"):
        resources.check_folders()
