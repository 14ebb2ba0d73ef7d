"""Large memory is allocated and copied by several threads, with the same result as by one."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import vmm.at_once
import vmm.file_memory
from vmm import HostDriver, OutOfMemory, host_buffer, libc
from vmm.at_once import at_once, cut, populate
from vmm.copy_out import copy_out
from vmm.driver import Driver
from vmm.host_file import HostFile

pytestmark = pytest.mark.vmm
PIECE = 1 << 16
SELF = Path("/proc/self")


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmm.at_once, "PIECE_BYTES", PIECE)
    monkeypatch.setattr("vmm.copy_out.PIECE_BYTES", PIECE)


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("at-once")
    yield made
    os.close(made)


def resident_bytes(address: int) -> int:
    """Resident bytes (Rss) of the mapping that begins at `address`, as the kernel counts them."""
    told = (SELF / "smaps").read_text().partition(f"{address:x}-")[2]
    return int(told.partition("Rss:")[2].split()[0]) * 1024


def test_two_pieces_are_worked_on_at_one_time() -> None:
    both, done = threading.Barrier(2), set()

    def work(number: int) -> None:
        both.wait(10)
        done.add(number)

    at_once(work, [(number,) for number in range(6)])
    assert done == set(range(6))


def test_one_piece_or_one_processor_takes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    work = lambda: threads.append(threading.current_thread())  # noqa: E731
    at_once(work, [()])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    at_once(work, [(), ()])
    assert set(threads) == {threading.current_thread()} and len(threads) == 3


def test_the_first_error_is_raised_when_nobody_works_any_more() -> None:
    working, ended = threading.Event(), threading.Event()

    def work(number: int) -> None:
        if number == 0:
            working.wait(10)
            raise OSError(errno.ENOSPC, "full")
        working.set()
        ended.set()

    with pytest.raises(OSError, match="full"):
        at_once(work, [(0,), (1,)])
    assert ended.is_set()


@pytest.mark.parametrize("nbytes", [0, 1, PIECE, PIECE + 1, 3 * PIECE - 1])
def test_pieces_are_all_of_it(nbytes: int, small_pieces: None) -> None:
    at = 0
    for offset, size in cut(nbytes):
        assert offset == at and 0 < size <= PIECE
        at += size
    assert at == nbytes


def test_memory_is_there_before_it_is_touched(fd: int, small_pieces: None) -> None:
    size = 3 * PIECE + 5000
    buffer = host_buffer(size)
    assert resident_bytes(buffer.address) >= size
    buffer.close()
    file = HostFile.grown(fd, size)
    assert os.fstat(fd).st_blocks * 512 >= size
    file.close()
    again = HostFile(fd)
    assert resident_bytes(again.address) >= size
    again.close()


def test_what_memory_is_to_be_is_said_before_there_is_any(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is advised about huge pages and the NUMA node while the file has no memory yet,
    because the advice takes effect at the first touch or never.
    """
    advise, had = libc.advise, []

    def advised(*args: int) -> None:
        had.append(os.fstat(fd).st_blocks)
        advise(*args)

    monkeypatch.setattr(libc, "advise", advised)
    HostFile.grown(fd, 4 * PIECE).close()
    assert had == [0]


def test_a_kernel_that_cannot_be_asked_has_memory_later(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libc, "POPULATE_WRITE", 1000)
    file = HostFile.grown(fd, PIECE)
    file.tensor().fill_(3)
    assert ctypes.string_at(file.address + PIECE - 1, 1) == b"\x03"
    file.close()


def test_memory_that_is_short_is_told_and_nothing_of_it_stays(
    fd: int, monkeypatch: pytest.MonkeyPatch, small_pieces: None
) -> None:
    real, asked = libc.populate, []

    def short(address: int, nbytes: int, *, writable: bool) -> None:
        asked.append(address)
        if len(asked) > 1:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        real(address, nbytes, writable=writable)

    monkeypatch.setattr(libc, "populate", short)
    with pytest.raises(OutOfMemory, match="memory is short"):
        HostFile.grown(fd, 4 * PIECE)
    assert str((SELF / f"fd/{fd}").readlink()) not in (SELF / "maps").read_text()
    asked.clear()
    with pytest.raises(OutOfMemory, match="of host memory"):
        host_buffer(4 * PIECE)
    assert f"{min(asked):x}-" not in (SELF / "maps").read_text()


def test_memory_where_nothing_is_mapped_cannot_be_had() -> None:
    address = libc.reserve(2 * PIECE, PIECE)
    libc.free(address + PIECE, PIECE)
    with pytest.raises(OSError, match="madvise"):
        populate(address + PIECE, PIECE)
    libc.free(address, PIECE)


def test_memory_of_several_files_is_allocated_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files are allocated by two threads at the same time. For a single file the kernel works
    with one thread at a time.
    """
    monkeypatch.setattr(vmm.file_memory, "WINDOW_BYTES", 4 * PIECE)
    allocate, both, threads = os.posix_fallocate, threading.Barrier(2), {}

    def together(fd: int, offset: int, nbytes: int) -> None:
        both.wait(10)
        assert threads.setdefault(fd, threading.current_thread()) is threading.current_thread()
        allocate(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", together)
    monkeypatch.setattr(vmm.file_memory, "huge_pages_allowed", lambda: False)
    with HostDriver(PIECE) as driver:
        driver.create(16)
        driver.check_integrity()


def test_files_of_which_one_is_full_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmm.file_memory, "WINDOW_BYTES", 4 * PIECE)
    monkeypatch.setattr(vmm.file_memory, "huge_pages_allowed", lambda: False)
    allocate = os.posix_fallocate

    def full(fd: int, offset: int, nbytes: int) -> None:
        if offset == 8 * PIECE:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with HostDriver(PIECE) as driver:
        with pytest.raises(OutOfMemory, match="16 pages"):
            driver.create(16)
        assert driver.used_bytes() == 0
        driver.check_integrity()


@pytest.mark.parametrize("locked", [True, False])
def test_layers_are_copied_to_where_they_belong(
    driver: Driver, locked: bool, monkeypatch: pytest.MonkeyPatch, small_pieces: None
) -> None:
    """Layers of different sizes are copied in pieces by several threads. Each arrives at its place,
    and bytes between them do not change.
    """
    sizes, page = (3 * driver.page_bytes - 100, 1, driver.page_bytes), driver.page_bytes
    buffer = host_buffer(12 * page)
    out = buffer.tensor().fill_(255)
    if locked:
        driver.pin(buffer.address, buffer.nbytes)
    copies, wanted = [], out.clone()
    for number, size in enumerate(sizes):
        address = driver.reserve(3 * page)
        driver.map(address, driver.create(3))
        content = torch.arange(size, dtype=torch.int64).mul(7 + number).remainder(251).byte()
        driver.tensor(address, size).copy_(content)
        at = 4 * page * number
        wanted[at : at + size] = content
        copies.append((out.data_ptr() + at, address, size))
    pinned: list[int] = []
    pin, unpin = driver.pin, driver.unpin
    monkeypatch.setattr(driver, "pin", lambda at, size: (pinned.append(at), pin(at, size)))
    monkeypatch.setattr(driver, "unpin", lambda at: (pinned.remove(at), unpin(at)))
    copied: list[tuple[bool, bool]] = []
    copy = driver.copy

    def noted(dst: int, src: int, nbytes: int) -> None:
        copied.append((dst in pinned, nbytes <= PIECE))
        copy(dst, src, nbytes)

    monkeypatch.setattr(driver, "copy", noted)
    copy_out(driver, copies, locked=locked)
    assert torch.equal(out, wanted)
    by_locked_memory = driver.locks_memory and not locked
    assert set(copied) == {(by_locked_memory, True)} and not pinned
    monkeypatch.undo()
    driver.unpin(buffer.address)
