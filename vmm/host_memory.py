"""Memory and addresses that this process may use: those of the machine, within all limits on it.

A container's memory is limited by its control group, which the machine's own figures do not show;
the kernel kills a process that takes more. A file of Linux that is absent sets no limit.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vmm import libc

PROC = Path("/proc")
LIMITS = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}
"""File with a control group's limit in bytes, by the type of its file system; version 2 writes
``max`` for no limit.
"""
STRICT = 2
"""Value of vm.overcommit_memory with which Linux enforces its commit limit."""


class HostMemory(NamedTuple):
    """Host memory in bytes; `whose` names its source in a message, in front of the size."""

    bytes: int
    whose: str = "this machine has"


def host_memory(proc: Path = PROC) -> HostMemory:
    """Host memory that this process may use: the least of the machine's memory and the limits of
    this process's control groups. `proc` is the folder of the proc file system."""
    machine = HostMemory(_machine_bytes(proc))
    limits = (
        HostMemory(most, f"the control group's {file} allows") for file, most in _limits(proc)
    )
    return min([machine, *limits], key=lambda memory: memory.bytes)


def promised_bytes(proc: Path = PROC) -> int | None:
    """Bytes of Linux's commit limit that are not committed yet. `proc` is the folder of the proc
    file system.

    None unless `vm.overcommit_memory` is 2, because otherwise Linux enforces no limit, or if the
    figures cannot be read.
    """
    try:
        if int((proc / "sys/vm/overcommit_memory").read_text()) != STRICT:
            return None
        known = _meminfo(proc)
        return max(0, known["CommitLimit"] - known["Committed_AS"])
    except (OSError, ValueError, KeyError):
        return None


def address_bytes() -> int | None:
    """Bytes of addresses that this process may have (``ulimit -v``); None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def limit_files(groups: str, mounts: str) -> Iterator[Path]:
    """Files that may limit the memory of a process: of its own control group and of all above it.

    `groups` is the text of ``/proc/self/cgroup``, `mounts` that of ``/proc/self/mountinfo``. Pure.
    """
    paths = dict(_memory_groups(groups))
    for line in mounts.splitlines():
        fields, _, system = line.partition(" - ")
        kind, _, options = system.split(" ", 2) if system.count(" ") > 1 else ("", "", "")
        if kind not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        root, at = map(_unescaped, fields.split()[3:5])
        inside = _below(paths[kind], root)
        for folder in (inside, *inside.parents):
            yield Path(at) / folder / LIMITS[kind]


def _memory_groups(groups: str) -> Iterator[tuple[str, str]]:
    """Type of each control-group file system that limits memory, and the process's path in it."""
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            yield "cgroup", path
        elif number == "0" and not controllers:
            yield "cgroup2", path


def _below(path: str, root: str) -> PurePosixPath:
    """`path` relative to `root`, which a container has mounted; the root itself if it lies
    elsewhere.
    """
    with suppress(ValueError):
        inside = PurePosixPath(path).relative_to(root)
        if ".." not in inside.parts:
            return inside
    return PurePosixPath()


def _unescaped(field: str) -> str:
    """A field of mountinfo with its octal escapes decoded, as `\\040` for a blank."""
    return field.encode().decode("unicode_escape") if "\\" in field else field


def _limits(proc: Path) -> Iterator[tuple[Path, int]]:
    try:
        groups, mounts = ((proc / "self" / name).read_text() for name in ("cgroup", "mountinfo"))
    except OSError:
        return
    for file in limit_files(groups, mounts):
        with suppress(OSError, ValueError):  # no such file, or no limit
            yield file, int(file.read_text())


def _machine_bytes(proc: Path) -> int:
    """Bytes of the machine's memory: the kernel's figure, or a lower one in ``/proc/meminfo``."""
    kernels = os.sysconf("SC_PHYS_PAGES") * libc.OS_PAGE_BYTES
    return min(kernels, _meminfo(proc).get("MemTotal", kernels))


def _meminfo(proc: Path) -> dict[str, int]:
    """Figures of ``/proc/meminfo`` in bytes, by name; empty if it cannot be read."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, _, value in pairs}
