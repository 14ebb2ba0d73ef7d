"""Resources that a run needs: open files, and folders that can be written."""

from __future__ import annotations

import resource
import shutil
import tempfile
from pathlib import Path

from mirage.config import ConfigError
from mirage.serve.rundir.folders import RunDir
from mirage.serve.rundir.parent_folders import places
from mirage.tiers.ssd.files import existing
from mirage.units import MIB, size

LEAST_FILES = 512
"""Open files that a process needs at least: the router has two for each request, an engine one."""
WANTED_FILES = 65536
LEAST_ROOM = 64 * MIB
"""Bytes that the folder for temporary files needs at least, for logs, sockets and caches."""


def check_files() -> None:
    """Raise the soft limit of open files for this process and its engines.

    Raises `ConfigError` if the limit is still below `LEAST_FILES`.
    """
    if (most := raise_limit()) < LEAST_FILES:
        raise ConfigError(
            f"a process may open {most} files here, {LEAST_FILES} are needed: "
            f"raise the limit (ulimit -n {LEAST_FILES}, or LimitNOFILE of the service)"
        )


def raise_limit(wanted: int = WANTED_FILES) -> int:
    """Raise the soft limit of open files to `wanted`, or to the hard limit if that is lower, also
    for child processes; return the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def check_folders(log_dir: Path | None = None) -> None:
    """Raise `ConfigError` if a run could not write its folder, or its logs into `log_dir`, or if
    the folder for temporary files has less than `LEAST_ROOM` bytes free."""
    _check_temporary()
    if log_dir is None:
        return
    try:
        with RunDir(log_dir) as rundir, tempfile.TemporaryFile(dir=rundir.logs) as file:
            file.write(b"x")
    except OSError as error:
        raise ConfigError(
            f"--log-dir {log_dir}: it cannot be written ({_why(error)}): name another folder"
        ) from None


def unwritable(folder: Path) -> str | None:
    """Return the reason why nothing can be written in `folder`, or why it cannot be made; None if
    it can.

    A file is made there, or in the nearest folder above it that exists, and removed: permissions
    alone do not tell, as of root, of a file system that is read-only or of one like /proc.
    """
    try:
        there = existing(folder)
        if not there.is_dir():
            return f"{there} is no folder"
        with tempfile.TemporaryDirectory(prefix=".mirage-", dir=there) as made:
            (Path(made) / "room").write_bytes(b"x")
    except OSError as error:
        return f"{error.filename or folder}: {_why(error)}"
    return None


def _check_temporary() -> None:
    named = "TMPDIR"
    try:
        named = places().named
        with RunDir() as rundir:
            (rundir.temporary / "room").write_bytes(bytes(MIB))
            base, free = rundir.path.parent, shutil.disk_usage(rundir.path).free
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ConfigError(
            f"the folder for temporary files cannot be written ({where}{_why(error)}): "
            f"{_advice(named)}"
        ) from None
    if free < LEAST_ROOM:
        raise ConfigError(
            f"{base} has {size(free)} left, {size(LEAST_ROOM)} are needed: {_advice(named)}"
        )


def _advice(named: str) -> str:
    return f"make room there, or let {named} name another folder"


def _why(error: OSError) -> str:
    return error.strerror or str(error)
