"""A memory file that is written through a mapping, sealed, and only read from then on."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator

import pytest
import torch

from mirage.keeper import memfds
from vmm import OutOfMemory
from vmm.host_file import HostFile

pytestmark = pytest.mark.vmm

SIZE = 3 << 20


@pytest.fixture
def fd() -> Iterator[int]:
    made = memfds.new_file(SIZE)
    yield made
    os.close(made)


def ends_by(what: Callable[[], object]) -> int | None:
    """Exit code of a fork of this process that calls `what`."""
    child = multiprocessing.get_context("fork").Process(target=what)
    child.start()
    child.join()
    return child.exitcode


def test_it_keeps_its_address_and_its_bytes(fd: int) -> None:
    file = HostFile.grown(fd, SIZE - 5)
    address = file.address
    file.tensor()[:] = torch.arange(file.nbytes, dtype=torch.uint8)
    file.leave()
    assert memfds.seal(fd) >= SIZE
    file.read()
    assert (file.address, file.nbytes) == (address, SIZE)
    other = HostFile(fd)
    assert torch.equal(file.tensor(), other.tensor())
    assert int(file.tensor()[1000]) == 1000 % 256
    other.close()
    file.close()
    file.close()


def test_it_grows_and_keeps_what_was_written(fd: int) -> None:
    first = HostFile.grown(fd, 5000)
    first.tensor().fill_(4)
    size = first.nbytes
    first.close()
    second = HostFile.grown(fd, SIZE)
    assert set(second.tensor()[:size].tolist()) == {4}
    assert set(second.tensor()[size:].tolist()) == {0}
    second.close()


def test_no_seal_while_somebody_could_write(fd: int) -> None:
    file = HostFile.grown(fd, SIZE)
    with pytest.raises(OSError, match="busy"):
        memfds.seal(fd)
    file.close()


def test_who_writes_where_it_is_only_read_ends(fd: int) -> None:
    HostFile.grown(fd, SIZE).close()
    memfds.seal(fd)

    def write() -> None:
        ctypes.memset(HostFile(fd).address, 1, 1)

    assert ends_by(write) == -signal.SIGSEGV
    with pytest.raises(OutOfMemory, match="not permitted"):
        HostFile(fd, writable=True)


def test_a_fork_has_no_part_in_it(fd: int) -> None:
    file = HostFile.grown(fd, SIZE)

    def read() -> None:
        ctypes.string_at(file.address, 1)

    assert ends_by(read) == -signal.SIGSEGV
    file.close()


def test_huge_pages_are_told_as_linux_has_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    meminfo = tmp_path_factory.mktemp("proc") / "meminfo"
    meminfo.write_text("HugePages_Total: 10\nHugePages_Free: 4\nHugepagesize: 2048 kB\n")
    assert memfds.huge_pages(meminfo) == (2 << 20, 8 << 20, 20 << 20)
    assert memfds.huge_pages(meminfo.with_name("none")) == (0, 0, 0)
