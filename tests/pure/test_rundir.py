"""Folders of a run: their places, their protection from cleaners, and making them again."""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirage.config import LONGEST_NAME
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.serve.rundir.folders import RunDir, socket_name
from mirage.serve.rundir.parent_folders import LONGEST_BASE, Places, places

pytestmark = pytest.mark.pure

LONGEST_SOCKET = 107
"""Most bytes of a Unix socket's path."""


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with a short name, and an environment that names no other."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        yield Path(folder)


@pytest.fixture
def other(base: Path) -> Path:
    folder = base / "other"
    folder.mkdir(0o700)
    return folder


def test_all_lies_in_the_folder_for_temporary_files(base: Path) -> None:
    assert places() == Places(str(base), str(base))


def test_sockets_alone_lie_in_a_private_folder_of_the_user(
    base: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    assert places() == Places(str(base), str(other))
    with RunDir() as rundir:
        assert rundir.control_socket.parent.parent == rundir.rpc.parent.parent == other
        assert rundir.engine_socket("a").parent == rundir.tier_socket.parent == rundir.sockets
        assert {rundir.temporary, rundir.cache, rundir.logs} <= set(rundir.path.iterdir())
        assert rundir.path.parent == base
        assert rundir.folders == [rundir.path, rundir.sockets]
    assert list(base.iterdir()) == [other] and not list(other.iterdir())


def test_sockets_are_named_so_that_tenants_may_come_and_go(base: Path) -> None:
    names = ["a", "a/", "a-", "A", "control", "tiers", "x" * LONGEST_NAME, "x" * 79 + "y", "o/p/t"]
    with RunDir() as rundir:
        sockets = [rundir.engine_socket(name) for name in names]
        assert rundir.engine_socket("a") == sockets[0], "whoever else is there"
        assert len({*sockets, rundir.control_socket, rundir.tier_socket}) == len(names) + 2
        assert {path.parent for path in sockets} == {rundir.sockets}
        longest = max(len(path.name) for path in sockets)
        assert LONGEST_BASE + len("/mirage-12345678/") + longest <= LONGEST_SOCKET


def test_a_peer_and_a_tenant_of_one_name_have_sockets_of_their_own() -> None:
    assert socket_name("peer", "b") != socket_name("engine", "b")


@pytest.mark.parametrize("kind", ["open", "long", "missing", "relative", "empty"])
def test_one_that_is_not_private_or_too_long_is_not_used(
    base: Path, other: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    other.chmod(0o755 if kind == "open" else 0o700)
    long = base / ("x" * LONGEST_BASE)
    long.mkdir(0o700)
    named = {"long": str(long), "missing": "/nowhere", "relative": "tmp", "empty": ""}
    monkeypatch.setenv("XDG_RUNTIME_DIR", named.get(kind, str(other)))
    assert places() == Places(str(base), str(base))


def test_names_are_measured_in_bytes(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = base / ("\u00e9" * (LONGEST_BASE - len(str(base)) - 1))
    wide.mkdir(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(wide))
    assert places() == Places("/tmp", "/tmp")


def test_a_service_has_all_in_the_first_folder_that_can_be_used(
    base: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"/nowhere:{other}:{base}")
    assert places() == Places(str(other), str(other), "RUNTIME_DIRECTORY")
    with RunDir() as rundir:
        assert rundir.folders == [rundir.path]
        assert rundir.path.parent == other


def test_cleaners_find_a_lock(base: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    with RunDir() as rundir:
        assert all(is_locked(folder) for folder in rundir.folders)
        shutil.rmtree(rundir.path)
        rundir.mend()
        assert all(is_locked(folder) for folder in rundir.folders)


def is_locked(folder: Path) -> bool:
    """True if a folder is locked. systemd-tmpfiles makes the same check before it removes old
    files.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_what_is_missing_is_made_again_and_named(base: Path) -> None:
    with RunDir() as rundir:
        assert rundir.mend() == []
        shutil.rmtree(rundir.temporary)
        shutil.rmtree(rundir.cache)
        assert rundir.mend() == [rundir.temporary, rundir.cache]
        shutil.rmtree(rundir.path)
        assert rundir.mend() == [rundir.path, rundir.logs, rundir.temporary, rundir.cache]
        assert rundir.path.stat().st_mode & 0o777 == 0o700
    assert not list(base.iterdir())


def test_a_folder_for_logs_elsewhere_is_made_again_and_stays(base: Path, other: Path) -> None:
    with RunDir(other / "x" / "logs") as rundir:
        shutil.rmtree(other / "x")
        assert rundir.mend() == [rundir.logs]
    assert list(base.iterdir()) == [other] and rundir.logs.is_dir()


def test_a_folder_that_an_engine_made_anew_is_made_private(base: Path) -> None:
    with RunDir() as rundir:
        shutil.rmtree(rundir.path)
        (rundir.cache / "torch").mkdir(parents=True)
        assert rundir.path in rundir.mend()
        assert rundir.path.stat().st_mode & 0o777 == 0o700
        assert is_locked(rundir.path)


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_somebody_else_put_there_is_not_used(base: Path, other: Path, kind: str) -> None:
    with RunDir() as rundir:
        shutil.rmtree(rundir.path)
        if kind == "link":
            rundir.path.symlink_to(other)
        else:
            rundir.path.write_text("")
        with pytest.raises(OSError):
            rundir.mend()
        assert not list(other.iterdir())
        rundir.path.unlink()


def test_it_is_as_if_just_used(base: Path) -> None:
    with RunDir() as rundir:
        for path in (rundir.path, rundir.temporary):
            os.utime(path, (0, 0))
        rundir.freshen()
        assert min(path.stat().st_mtime for path in (rundir.path, rundir.temporary)) > 1


def test_a_signal_while_they_are_made_leaves_nothing(
    base: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def interrupted(**where: Any) -> str:
        made.append(make(**where))
        signal.raise_signal(signal.SIGTERM)
        return made[-1]

    make = tempfile.mkdtemp
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    monkeypatch.setattr(tempfile, "mkdtemp", interrupted)
    with terminate_like_interrupt(), pytest.raises(KeyboardInterrupt), RunDir():
        raise AssertionError("it was interrupted before")
    assert len(made) == 2
    assert list(base.iterdir()) == [other] and not list(other.iterdir())


def test_what_cannot_be_made_leaves_nothing(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match="no room"):
        RunDir().__enter__()
    assert not list(base.iterdir())
