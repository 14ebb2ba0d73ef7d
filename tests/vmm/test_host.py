"""The host driver's own promises: the kernel agrees with the page table, refusals
change nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import vmm.file_memory
import vmm.host
from mirage.doctor.host import shared_huge_pages
from vmm import (
    HostDriver,
    Misaligned,
    NotMapped,
    OutOfMemory,
    Range,
    VmmError,
    host_buffer,
    libc,
)
from vmm.driver import DeviceError
from vmm.pages import PagePool

pytestmark = pytest.mark.vmm
PAGE = 65536


@pytest.fixture
def host():
    with HostDriver(PAGE) as driver:
        yield driver


def memfd_bytes() -> int:
    """Bytes of memory in this process's memory files, as the kernel counts them."""
    total = 0
    for fd in Path("/proc/self/fd").iterdir():
        try:
            if "memfd:vmm" in str(fd.readlink()):
                total += fd.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def kernel_mappings() -> int:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum("memfd:vmm" in line for line in maps)


def test_memory_exists_from_create_to_release(host: HostDriver) -> None:
    before = memfd_bytes()
    pages = host.create(16)
    assert memfd_bytes() - before == 16 * PAGE
    host.release(pages[::2])
    assert memfd_bytes() - before == 8 * PAGE
    host.close()
    assert memfd_bytes() == before


def test_new_pages_are_zero_after_dirty_ones_left(host: HostDriver) -> None:
    """Pages that are created after written ones were released read as zeros. The contract does not
    ask for this, and a GPU's driver does not promise it.
    """
    page = host.page_bytes
    address, pages = host.reserve(4 * page), host.create(4)
    host.map(address, pages)
    host.fill(address, 0xFF, 4 * page)
    host.unmap(address, 4 * page)
    host.release(pages)
    host.map(address, host.create(4))
    assert not host.tensor(address, 4 * page).any()


def test_closing_leaves_no_mapping() -> None:
    before = kernel_mappings()
    host = HostDriver(PAGE)
    address = host.reserve(2 * PAGE)
    host.map(address, host.create(2))
    assert kernel_mappings() == before + 1
    host.close()
    assert kernel_mappings() == before


def test_consecutive_pages_are_one_kernel_mapping(host: HostDriver) -> None:
    before = kernel_mappings()
    pool, space = PagePool(host, 64 * PAGE), Range(host, 64 * PAGE)
    first = pool.take(64, "layer")
    pool.give(first[::2])
    pool.give(first[1::2])
    space.back(0, pool.take(64, "kv"))
    assert kernel_mappings() == before + 1


@pytest.mark.parametrize("page_bytes", [0, -4096, 4095, 4097])
def test_page_size_must_suit_the_system(page_bytes: int) -> None:
    with pytest.raises(Misaligned, match=str(page_bytes)):
        HostDriver(page_bytes)


def test_pages_may_be_any_multiple_of_the_systems() -> None:
    with HostDriver(3 * 4096) as host:
        address = host.reserve(5 * 3 * 4096)
        assert address % (3 * 4096) == 0
        host.map(address, host.create(5))
        host.fill(address, 1, 5 * 3 * 4096)
        host.check_integrity()


def test_the_machine_bounds_what_can_be_created(host: HostDriver) -> None:
    count = host.capacity_bytes // PAGE + 1
    with pytest.raises(OutOfMemory, match=str(count * PAGE)):
        host.create(count)


def test_a_refusal_by_the_system_creates_nothing(host, monkeypatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OutOfMemory, match=r"3 pages.*No space"):
            host.create(3)
    host.check_integrity()
    assert host.create(1) and host.used_bytes() == PAGE


def test_a_map_refused_half_way_leaves_nothing_mapped(host, monkeypatch) -> None:
    address, pages, before = host.reserve(4 * PAGE), host.create(4), kernel_mappings()
    real, calls = vmm.libc.map_file, []

    def second_fails(*args: int) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        real(*args)

    scattered = [pages[0], pages[2], pages[1], pages[3]]
    with monkeypatch.context() as patch:
        patch.setattr(vmm.libc, "map_file", second_fails)
        with pytest.raises(OutOfMemory, match="max_map_count"):
            host.map(address, scattered)
    assert kernel_mappings() == before
    host.check_integrity()
    host.map(address, scattered)


def test_copies_may_touch_host_memory_but_not_the_edge_of_a_reservation(host) -> None:
    address = host.reserve(PAGE)
    host.map(address, host.create(1))
    source = torch.arange(256, dtype=torch.uint8)
    target = torch.zeros(256, dtype=torch.uint8)
    host.copy(address, source.data_ptr(), 256)
    host.copy(target.data_ptr(), address, 256)
    assert torch.equal(source, target)
    for start in (address - 1, address + PAGE - 1):
        with pytest.raises(NotMapped):
            host.copy(target.data_ptr(), start, 2)


def test_fill_refuses_host_memory_and_what_is_no_byte(host: HostDriver) -> None:
    target = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(NotMapped):
        host.fill(target.data_ptr(), 1, 8)
    address = host.reserve(PAGE)
    host.map(address, host.create(1))
    with pytest.raises(VmmError, match="256"):
        host.fill(address, 256, 8)


def test_threads_share_one_driver(host: HostDriver) -> None:
    pool, failures = PagePool(host, 40 * PAGE), []

    def churn(byte: int) -> None:
        try:
            space = Range(host, 10 * PAGE)
            for _ in range(50):
                space.back(0, pool.take(10, f"thread {byte}"))
                host.fill(space.address, byte, 10 * PAGE)
                if space.tensor().ne(byte).any():
                    failures.append(f"thread {byte} read another's bytes")
                pool.give(space.unback(0, 10 * PAGE))
            space.close()
        except VmmError as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=churn, args=(byte,)) for byte in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    pool.check_integrity()
    host.check_integrity()
    pool.trim()
    assert host.used_bytes() == 0


class TestHostBuffer:
    def test_is_zeroed_page_aligned_and_writable(self) -> None:
        buffer = host_buffer(5000)
        assert buffer.address % 4096 == 0
        view = buffer.tensor()
        assert view.numel() == 5000 and not view.any()
        view.fill_(3)
        assert ctypes.string_at(buffer.address, 5000) == b"\x03" * 5000
        buffer.close()
        buffer.close()
        with pytest.raises(VmmError):
            buffer.tensor()

    def test_a_large_one_begins_on_a_huge_page_and_is_zeroed_to_its_end(self) -> None:
        huge, size = 2 << 20, (4 << 20) + 5000
        buffer = host_buffer(size, node=0)
        assert buffer.address % huge == 0
        view = buffer.tensor()
        assert view.numel() == size and not view.any()
        view.fill_(5)
        assert ctypes.string_at(buffer.address + size - 1, 1) == b"\x05"
        buffer.close()

    def test_a_forked_child_has_no_part_in_it(self) -> None:
        buffer = host_buffer(5000)
        if not (child := os.fork()):
            ctypes.string_at(buffer.address, 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
        buffer.close()

    def test_is_a_source_for_copies(self, host: HostDriver) -> None:
        buffer, address = host_buffer(PAGE), host.reserve(PAGE)
        buffer.tensor().fill_(4)
        host.map(address, host.create(1))
        host.copy(address, buffer.address, PAGE)
        assert host.tensor(address, PAGE).eq(4).all()
        buffer.close()

    def test_refusals(self) -> None:
        with pytest.raises(Misaligned, match="0 bytes"):
            host_buffer(0)
        with pytest.raises(OutOfMemory, match=str(1 << 60)):
            host_buffer(1 << 60)


def test_a_copy_waits_for_no_change_of_other_memory(host, monkeypatch) -> None:
    """A copy on a stream ends while pages of other memory are created, mapped, unmapped and
    released, which takes the kernel long for much memory.
    """
    page, copied, held = host.page_bytes, threading.Event(), []
    address, source = host.reserve(8 * page), host_buffer(page)
    host.map(address, host.create(1))
    stream = host.stream()

    def beside(call):
        def made(*args: object, **kwargs: object) -> object:
            copied.clear()
            stream.copy(address, source.address, page)
            stream.record(event := host.event())
            threading.Thread(target=lambda: (event.wait(), copied.set()), daemon=True).start()
            held.append(copied.wait(10))
            return call(*args, **kwargs)

        return made

    for place, name in ((os, "posix_fallocate"), (libc, "map_file"), (libc, "unmap_file")):
        monkeypatch.setattr(place, name, beside(getattr(place, name)))
    monkeypatch.setattr(libc, "punch", beside(libc.punch))
    pages = host.create(4)
    host.map(address + page, pages)
    host.unmap(address + page, 4 * page)
    host.release(pages)
    assert held == [True] * 4


def test_memory_that_is_released_beside_other_work_is_free_at_the_end(host, monkeypatch) -> None:
    page, pages = host.page_bytes, host.create(4)
    punched, threads = threading.Event(), []
    punch = libc.punch

    def late(*args: int) -> None:
        threads.append(threading.current_thread())
        punched.wait(10)
        punch(*args)

    monkeypatch.setattr(libc, "punch", late)
    with host.releasing():
        host.release(pages[:2])
        host.release(pages[2:3])
        assert host._memory.used_bytes() == 4 * page, "not yet"
        punched.set()
    assert host._memory.used_bytes() == host.used_bytes() == page
    assert threading.current_thread() not in threads
    host.release(pages[3:])
    assert threads[-1] is threading.current_thread() and host.used_bytes() == 0
    host.check_integrity()


@pytest.fixture
def windows(monkeypatch) -> HostDriver:
    """A driver that begins a new memory file every four pages."""
    monkeypatch.setattr(vmm.file_memory, "WINDOW_BYTES", 4 * PAGE)
    with HostDriver(PAGE) as driver:
        yield driver


def test_memory_of_several_files_is_freed_at_one_time(windows, monkeypatch) -> None:
    """Pages of two memory files are released by two threads at the same time. For a single file the
    kernel works with one thread at a time.
    """
    pages, both = windows.create(8), threading.Barrier(2)
    punch = libc.punch

    def together(*args: int) -> None:
        both.wait(10)
        punch(*args)

    monkeypatch.setattr(libc, "punch", together)
    with windows.releasing():
        windows.release(pages)
    assert windows.used_bytes() == 0
    windows.check_integrity()


def test_pages_of_several_files_are_neighbours_in_memory(windows) -> None:
    address, pages = windows.reserve(10 * PAGE), windows.create(10)
    windows.map(address, pages)
    view = windows.tensor(address, 10 * PAGE).view(torch.int32)
    view.copy_(torch.arange(view.numel()))
    again = windows.reserve(6 * PAGE)
    windows.map(again, pages[2:8])
    there = windows.tensor(again, 6 * PAGE).view(torch.int32)
    assert torch.equal(there, torch.arange(there.numel()) + 2 * PAGE // 4)
    windows.unmap(again, 6 * PAGE)
    windows.unmap(address, 10 * PAGE)
    windows.release(pages[3:9])
    windows.check_integrity()
    windows.map(again, windows.create(6))
    assert not windows.tensor(again, 6 * PAGE).any()


def test_memory_that_one_of_several_files_lacks_is_had_of_none(windows, monkeypatch) -> None:
    allocate, allowed = os.posix_fallocate, iter([True, True, False])

    def third_window_full(fd: int, offset: int, nbytes: int) -> None:
        if not next(allowed):
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(fd, offset, nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", third_window_full)
        with pytest.raises(OutOfMemory, match="10 pages"):
            windows.create(10)
    windows.check_integrity()
    assert windows.used_bytes() == 0


def test_what_is_created_waits_for_what_is_released_before_it(monkeypatch) -> None:
    """All pages are released in the background, and as many are created. The new ones wait until
    the old ones are freed, so the capacity is never exceeded.
    """
    with HostDriver(PAGE, capacity_bytes=4 * PAGE) as host:
        pages, held = host.create(4), []
        allocate = os.posix_fallocate

        def seen(fd: int, offset: int, nbytes: int) -> None:
            allocate(fd, offset, nbytes)
            held.append(os.fstat(fd).st_blocks * 512)

        monkeypatch.setattr(os, "posix_fallocate", seen)
        for _ in range(50):
            with host.releasing():
                host.release(pages)
                pages = host.create(4)
        assert set(held) == {4 * PAGE}


def test_what_another_thread_creates_waits_for_what_is_being_freed(monkeypatch) -> None:
    """One thread waits for the kernel to free its pages. Another thread that creates pages
    meanwhile waits for this too, if the capacity would be exceeded.
    """
    punched, waits = threading.Event(), threading.Event()
    punch = libc.punch

    def late(*args: int) -> None:
        punched.wait(10)
        punch(*args)

    def waited(begun) -> None:
        waits.set()
        wait(begun)

    monkeypatch.setattr(libc, "punch", late)
    monkeypatch.setattr(vmm.file_memory, "wait", waited)
    with HostDriver(PAGE, capacity_bytes=4 * PAGE) as host, ThreadPoolExecutor() as threads:
        pages = host.create(4)

        def release() -> None:
            with host.releasing():
                host.release(pages)

        released = threads.submit(release)
        assert waits.wait(10)
        created = threads.submit(host.create, 4)
        assert not wait([created], timeout=0.2).done, "the device would hold eight"
        punched.set()
        released.result(10)
        assert len(created.result(10)) == 4
        host.check_integrity()


@contextmanager
def hurried() -> Iterator[None]:
    """Context in which Python switches between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_threads_may_release_whether_others_do_or_not(host) -> None:
    """Two threads release pages in the background and one at once, all again and again. Nothing is
    left, and the books are right.
    """

    def beside() -> None:
        for _ in range(200):
            with host.releasing():
                host.release(host.create(2))

    def at_once() -> None:
        for _ in range(400):
            host.release(host.create(2))

    with hurried(), ThreadPoolExecutor() as threads:
        for done in [threads.submit(work) for work in (beside, beside, at_once)]:
            done.result(60)
    assert host.used_bytes() == 0
    host.check_integrity()


def test_memory_that_cannot_be_freed_is_an_error_and_no_want_of_memory(host, monkeypatch) -> None:
    """The kernel cannot free pages. That is a `DeviceError`, not a lack of memory, after which an
    engine would ask again in vain.
    """

    def refused(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    pages = host.create(4)
    monkeypatch.setattr(libc, "punch", refused)
    with pytest.raises(DeviceError, match="releasing pages 3 to 3: Input/output"):
        host.release(pages[3:])
    with pytest.raises(DeviceError, match="releasing pages"), host.releasing():
        host.release(pages[:1])
    for number, create in enumerate((host.create, host.create_most), 1):
        with host.releasing():
            host.release([pages[number]])
            with pytest.raises(DeviceError, match="releasing pages"):
                create(1)


def test_pages_are_blank_until_they_are_mapped(host: HostDriver) -> None:
    page, pages = host.page_bytes, host.create(4)
    address = host.reserve(2 * page)
    assert host.blank == set(pages)
    host.map(address, pages[:2])
    assert host.blank == set(pages[2:])
    host.unmap(address, 2 * page)
    host.release([pages[0], pages[2]])
    assert host.blank == {pages[3]}


@pytest.fixture
def huge(monkeypatch) -> HostDriver:
    """A driver that asks for huge pages; it gets small ones where huge ones are not allowed."""
    monkeypatch.setattr(vmm.file_memory, "huge_pages_allowed", lambda: True)
    with HostDriver(PAGE) as driver:
        yield driver


def test_huge_pages_hold_what_was_created_and_no_more(huge: HostDriver) -> None:
    """Pages are parts of huge pages. Each can be released by itself, while other pages of the same
    huge page stay mapped.
    """
    counts = (32, 33, 7, 100, 64)
    made = [huge.create(count) for count in counts]
    huge.check_integrity()
    assert [pages[0] % 32 for pages in made] == [0, 0, 1, 0, 0], "whole huge pages, where it is one"
    address = huge.reserve(100 * PAGE)
    assert address % (2 << 20) == 0
    huge.map(address, made[3])
    assert not huge.tensor(address, 100 * PAGE).any()
    huge.fill(address, 7, 100 * PAGE)
    for number in range(0, 100, 3):
        huge.unmap(address + number * PAGE, PAGE)
        huge.release([made[3][number]])
        huge.check_integrity()
    assert huge.tensor(address + PAGE, 2 * PAGE).eq(7).all()
    for pages in (made[0], made[1], made[2], made[4]):
        huge.release(pages)
    huge.check_integrity()


def test_memory_that_no_mapping_can_be_filled_with_is_allocated_otherwise(
    huge, monkeypatch
) -> None:
    def refused(address: int, nbytes: int) -> None:
        ctypes.memset(address, 1, PAGE)
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(libc, "populate_huge", refused)
    pages = huge.create(40)
    huge.check_integrity()
    address = huge.reserve(40 * PAGE)
    huge.map(address, pages)
    assert not huge.tensor(address, 40 * PAGE).any()

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutOfMemory, match="40 pages"):
        huge.create(40)
    huge.check_integrity()


@pytest.mark.parametrize(
    ("words", "allowed"),
    [("always [advise] never", True), ("[always] advise never", True), ("advise [never]", False)],
)
def test_huge_pages_are_asked_for_where_the_system_allows_it(
    words: str, allowed: bool, tmp_path, monkeypatch
) -> None:
    (path := tmp_path / "shmem_enabled").write_text(words)
    monkeypatch.setattr(vmm.file_memory, "SHARED_HUGE", path)
    assert vmm.file_memory.huge_pages_allowed() is allowed
    found = shared_huge_pages().found
    assert (found == "allowed") is allowed
    path.unlink()
    assert not vmm.file_memory.huge_pages_allowed()
