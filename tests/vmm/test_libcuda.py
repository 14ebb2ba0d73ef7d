"""Rules of the stand-in for NVIDIA's library: each one is tested to refuse."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")

from tests.vmm.libcuda import SONAME, NoCompiler, RealDriverLoaded, Refused, StandIn, build
from tests.vmm.libcuda import shorthand as short
from tests.vmm.libcuda.importer import FROM_CHILD, FROM_PARENT, traces
from tests.vmm.libcuda.shorthand import cuda, ok

pytestmark = pytest.mark.vmm

LIBC = ctypes.CDLL(None)
ROOT = Path(__file__).parents[2]
KIB = 1024
PAGE = 64 * KIB
TOTAL = 64 * PAGE
KINDS = ("handles", "mappings", "reservations", "streams", "events", "registrations", "contexts")
NOTHING = dict.fromkeys((*KINDS, "allocations"), 0)
INVALID, OOM, UNINITIALIZED, NO_CONTEXT, BAD_HANDLE = 1, 2, 3, 201, 400
NOT_READY, ILLEGAL, UNSUPPORTED = 600, 700, 801
READ_ONLY = 8
LONG_S = 600.0
"""A delay that only its end by the test ends."""


@pytest.fixture(scope="module")
def library() -> StandIn:
    if os.environ.get("MIRAGE_TEST_GPU"):
        pytest.skip("this process is for the real library")
    try:
        return StandIn.load()
    except (NoCompiler, RealDriverLoaded) as why:
        pytest.skip(str(why))


@pytest.fixture
def standin(library: StandIn) -> Iterator[StandIn]:
    """The stand-in with one device of 64 pages, whose context is current in this thread."""
    library.reset(TOTAL, PAGE)
    short.start()
    yield library
    library.reset()


@pytest.fixture
def refused(standin: StandIn) -> Any:
    """Function that checks that a call was refused with this error and these words."""

    def check(result: tuple[Any, ...], error: int, words: str) -> None:
        assert result[0] == error, (result, standin.last_words())
        assert words in standin.last_words()

    return check


@pytest.fixture
def host() -> Iterator[tuple[mmap.mmap, int]]:
    """A page of host memory that is not registered, and its address."""
    memory = mmap.mmap(-1, PAGE)
    yield memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.fixture
def pinned(standin: StandIn, host: tuple[mmap.mmap, int]) -> tuple[mmap.mmap, int]:
    """A page of registered host memory, and its address."""
    ok(cuda.cuMemHostRegister(host[1], PAGE, 0))
    return host


def stream() -> Any:
    return ok(cuda.cuStreamCreate(short.NON_BLOCKING))


def event() -> Any:
    return ok(cuda.cuEventCreate(0))


def read(address: int, nbytes: int = 1) -> bytes:
    return ctypes.string_at(address, nbytes)


def faults(address: int) -> bool:
    """True if touching an address would be a fault. The kernel is asked by a system call, which
    does not touch it.
    """
    reader, writer = os.pipe()
    try:
        return LIBC.write(writer, ctypes.c_void_p(address), ctypes.c_size_t(1)) != 1
    finally:
        os.close(reader)
        os.close(writer)


def anonymous(protection: int) -> int:
    """Address of a page of host memory that was mapped without Python's `mmap`."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    LIBC.mmap.restype = ctypes.c_void_p
    made = LIBC.mmap(None, ctypes.c_size_t(PAGE), protection, flags, -1, ctypes.c_long(0))
    return int(made)


def munmap(address: int) -> None:
    LIBC.munmap(ctypes.c_void_p(address), ctypes.c_size_t(PAGE))


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True
    )


class TestDevice:
    def test_tells_what_it_is(self, standin: StandIn) -> None:
        attribute = cuda.CUdevice_attribute
        device = ok(cuda.cuDeviceGet(0))
        assert ok(cuda.cuDriverGetVersion()) == 13000
        assert ok(cuda.cuDeviceGetCount()) == 1
        assert ok(cuda.cuDeviceGetName(64, device)).rstrip(b"\0 ") == b"MIRAGE stand-in"
        assert ok(cuda.cuDeviceGetUuid(device)).bytes == b"MIRAGE stand-in\0"
        assert ok(cuda.cuDeviceTotalMem(device)) == TOTAL
        expected = {
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
            attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: 1,
            attribute.CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: 2,
            attribute.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: 0,
            attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 1,
            attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: 1,
        }
        for name, value in expected.items():
            assert ok(cuda.cuDeviceGetAttribute(name, device)) == value, name

    def test_errors_have_names(self, standin: StandIn) -> None:
        error = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        assert ok(cuda.cuGetErrorName(error)) == b"CUDA_ERROR_OUT_OF_MEMORY"
        assert ok(cuda.cuGetErrorString(error)) == b"out of memory"

    def test_functions_are_looked_up_by_name_and_version(self, standin: StandIn) -> None:
        found = ctypes.CDLL(SONAME).cuGetProcAddress_v2
        pointer, status = ctypes.c_void_p(), ctypes.c_int()

        def look_up(name: bytes, version: int) -> tuple[int, bool, int]:
            arguments = ctypes.byref(pointer), version, ctypes.c_uint64(0), ctypes.byref(status)
            return found(name, *arguments), bool(pointer), status.value

        assert look_up(b"cuMemCreate", 10020) == (0, True, 0)
        assert look_up(b"cuMemCreate", 10010) == (500, False, 2)
        assert look_up(b"cuMemDream", 13000) == (500, False, 1)

    def test_a_device_without_virtual_memory_management(
        self, standin: StandIn, refused: Any
    ) -> None:
        standin.flags(vmm_supported=False)
        supported = cuda.CUdevice_attribute(102)
        assert ok(cuda.cuDeviceGetAttribute(supported, 0)) == 0
        refused(cuda.cuMemAddressReserve(PAGE, 0, 0, 0), UNSUPPORTED, "no virtual memory")

    def test_no_device(self, standin: StandIn, refused: Any) -> None:
        standin.flags(devices=0)
        refused(cuda.cuInit(0), 100, "no device")
        refused(cuda.cuDeviceGet(0), 101, "no device 0")

    def test_granularity(self, standin: StandIn) -> None:
        for option in cuda.CUmemAllocationGranularity_flags:
            assert ok(cuda.cuMemGetAllocationGranularity(short.prop(), option)) == PAGE
        standin.reset()
        short.start()
        option = cuda.CUmemAllocationGranularity_flags(0)
        assert ok(cuda.cuMemGetAllocationGranularity(short.prop(), option)) == 2048 * KIB


class TestContext:
    def test_before_init(self, library: StandIn) -> None:
        library.reset(TOTAL, PAGE)
        assert cuda.cuDeviceGetCount()[0] == UNINITIALIZED
        assert cuda.cuMemCreate(PAGE, short.prop(), 0)[0] == UNINITIALIZED
        assert "cuInit was not called" in library.last_words()

    def test_a_thread_has_no_context_until_it_sets_one(
        self, standin: StandIn, refused: Any
    ) -> None:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(cuda.cuMemGetInfo()))
        thread.start()
        thread.join()
        refused(answers[0], NO_CONTEXT, "no current context")

    def test_facts_of_a_device_need_no_context(self, standin: StandIn) -> None:
        ok(cuda.cuCtxSetCurrent(0))
        option = cuda.CUmemAllocationGranularity_flags(0)
        assert ok(cuda.cuMemGetAllocationGranularity(short.prop(), option)) == PAGE
        assert ok(cuda.cuDeviceTotalMem(0)) == TOTAL

    def test_push_and_pop(self, standin: StandIn, refused: Any) -> None:
        context = ok(cuda.cuCtxGetCurrent())
        ok(cuda.cuCtxPushCurrent(context))
        assert int(ok(cuda.cuCtxPopCurrent())) == int(context)
        assert int(ok(cuda.cuCtxPopCurrent())) == int(context)
        assert int(ok(cuda.cuCtxGetCurrent())) == 0
        refused(cuda.cuCtxPopCurrent(), NO_CONTEXT, "no current context")
        refused(cuda.cuMemGetInfo(), NO_CONTEXT, "no current context")

    def test_released(self, standin: StandIn, refused: Any) -> None:
        context = ok(cuda.cuDevicePrimaryCtxRetain(0))
        ok(cuda.cuDevicePrimaryCtxRelease(0))
        ok(cuda.cuMemGetInfo())
        ok(cuda.cuDevicePrimaryCtxRelease(0))
        refused(cuda.cuMemGetInfo(), NO_CONTEXT, "was released")
        refused(cuda.cuCtxSetCurrent(context), NO_CONTEXT, "was released")
        refused(cuda.cuDevicePrimaryCtxRelease(0), NO_CONTEXT, "not retained")
        # Retained again it is another one: what kept the old one is found out.
        assert int(ok(cuda.cuDevicePrimaryCtxRetain(0))) != int(context)
        refused(cuda.cuMemGetInfo(), NO_CONTEXT, "was released")

    def test_of_another_device(self, standin: StandIn, refused: Any) -> None:
        standin.flags(devices=2)
        address, handle = short.mapped(PAGE)
        made, marker = stream(), event()
        short.start(device=1)
        refused(cuda.cuMemCreate(PAGE, short.prop(device=0), 0), NO_CONTEXT, "of device 1")
        refused(cuda.cuMemRelease(handle), NO_CONTEXT, "for device 0")
        refused(cuda.cuStreamSynchronize(made), NO_CONTEXT, "another context")
        refused(cuda.cuEventQuery(marker), NO_CONTEXT, "another context")
        refused(cuda.cuMemsetD8Async(address, 0, 1, stream()), INVALID, "no access was set")

    def test_memory_of_devices_is_counted_apart(self, standin: StandIn) -> None:
        standin.flags(devices=2)
        short.create(PAGE)
        short.start(device=1)
        assert ok(cuda.cuMemGetInfo()) == (TOTAL, TOTAL)


class TestMemory:
    def test_one_handle_at_two_addresses(self, standin: StandIn) -> None:
        address, handle = short.reserve(3 * PAGE), short.create(PAGE)
        short.map_at(address, PAGE, handle)
        short.map_at(address + 2 * PAGE, PAGE, handle)
        ctypes.memmove(address, b"alias", 5)
        assert read(address + 2 * PAGE, 5) == b"alias"
        assert faults(address + PAGE)
        ok(cuda.cuMemUnmap(address, PAGE))
        assert faults(address)
        assert read(address + 2 * PAGE, 5) == b"alias"

    def test_new_memory_is_zeroed_and_counted(self, standin: StandIn) -> None:
        address, handle = short.mapped(2 * PAGE)
        ctypes.memset(address, 0xFF, 2 * PAGE)
        assert ok(cuda.cuMemGetInfo()) == (TOTAL - 2 * PAGE, TOTAL)
        assert standin.used_bytes == 2 * PAGE
        short.unmap_and_free(address, 2 * PAGE, handle)
        assert ok(cuda.cuMemGetInfo()) == (TOTAL, TOTAL)
        address, _ = short.mapped(2 * PAGE)
        assert read(address, 2 * PAGE) == bytes(2 * PAGE)

    def test_access_is_needed(self, standin: StandIn) -> None:
        address, handle = short.reserve(PAGE), short.create(PAGE)
        ok(cuda.cuMemMap(address, PAGE, 0, handle, 0))
        assert faults(address)
        ok(cuda.cuMemSetAccess(address, PAGE, [short.access(short.READ)], 1))
        assert not faults(address)
        ok(cuda.cuMemSetAccess(address, PAGE, [short.access(short.NO_ACCESS)], 1))
        assert faults(address)

    def test_alignment_of_a_reservation(self, standin: StandIn) -> None:
        address = int(ok(cuda.cuMemAddressReserve(PAGE, 16 * PAGE, 0, 0)))
        assert address % (16 * PAGE) == 0
        ok(cuda.cuMemAddressFree(address, PAGE))
        assert int(ok(cuda.cuMemAddressReserve(PAGE, 0, address, 0))) == address

    def test_several_mappings_in_one_call(self, standin: StandIn) -> None:
        address = short.reserve(4 * PAGE)
        for place in range(4):
            ok(cuda.cuMemMap(address + place * PAGE, PAGE, 0, short.create(PAGE), 0))
        ok(cuda.cuMemSetAccess(address, 4 * PAGE, [short.access()], 1))
        ctypes.memset(address, 1, 4 * PAGE)
        ok(cuda.cuMemUnmap(address, 4 * PAGE))
        assert standin.leaks()["mappings"] == 0

    def test_allocations(self, standin: StandIn, refused: Any) -> None:
        address = int(ok(cuda.cuMemAlloc(100)))
        assert standin.used_bytes == PAGE
        assert standin.leaks() | {"contexts": 0} == NOTHING | {"allocations": 1}
        ctypes.memset(address, 1, 100)
        refused(cuda.cuMemUnmap(address, PAGE), INVALID, "cuMemAlloc")
        refused(cuda.cuMemFree(address + 1), INVALID, "not the start")
        ok(cuda.cuMemFree(address))
        refused(cuda.cuMemFree(address), INVALID, "not the start")
        assert standin.used_bytes == 0

    def test_everything_given_back_leaks_nothing(
        self, standin: StandIn, host: tuple[mmap.mmap, int]
    ) -> None:
        address, handle = short.mapped(PAGE)
        made, marker = stream(), event()
        ok(cuda.cuMemHostRegister(host[1], PAGE, 0))
        assert standin.leaks() == NOTHING | dict.fromkeys(KINDS, 1)
        short.unmap_and_free(address, PAGE, handle)
        ok(cuda.cuStreamDestroy(made))
        ok(cuda.cuEventDestroy(marker))
        ok(cuda.cuMemHostUnregister(host[1]))
        ok(cuda.cuDevicePrimaryCtxRelease(0))
        assert standin.leaks() == NOTHING
        assert standin.used_bytes == 0


class TestMemoryRules:
    @pytest.mark.parametrize("nbytes", [0, 1, PAGE - 1, PAGE + 4096])
    def test_sizes_are_multiples_of_the_granularity(self, nbytes: int, refused: Any) -> None:
        address, handle = short.mapped(PAGE)
        refused(cuda.cuMemAddressReserve(nbytes, 0, 0, 0), INVALID, "multiples of 65536")
        refused(cuda.cuMemCreate(nbytes, short.prop(), 0), INVALID, "multiples of 65536")
        refused(cuda.cuMemMap(address, nbytes, 0, handle, 0), INVALID, "multiples of 65536")
        refused(cuda.cuMemUnmap(address, nbytes), INVALID, "multiples of 65536")
        described = [short.access()]
        refused(cuda.cuMemSetAccess(address, nbytes, described, 1), INVALID, "multiples of 65536")

    def test_addresses_are_multiples_of_the_granularity(self, refused: Any) -> None:
        address, handle = short.reserve(2 * PAGE), short.create(PAGE)
        odd = address + 4096
        refused(cuda.cuMemMap(odd, PAGE, 0, handle, 0), INVALID, "multiples of 65536")
        refused(cuda.cuMemUnmap(odd, PAGE), INVALID, "multiples of 65536")
        described = [short.access()]
        refused(cuda.cuMemSetAccess(odd, PAGE, described, 1), INVALID, "multiples of 65536")

    def test_beyond_the_budget(self, standin: StandIn, refused: Any) -> None:
        held = short.create(TOTAL - PAGE)
        refused(cuda.cuMemCreate(2 * PAGE, short.prop(), 0), OOM, "are left")
        refused(cuda.cuMemAlloc(PAGE + 1), OOM, "are left")
        ok(cuda.cuMemRelease(held))
        short.create(TOTAL)

    def test_only_pinned_memory_of_a_device(self, refused: Any) -> None:
        refused(cuda.cuMemCreate(PAGE, cuda.CUmemAllocationProp(), 0), INVALID, "pinned")
        absent = short.prop(device=3)
        refused(cuda.cuMemCreate(PAGE, absent, 0), 101, "no device 3")

    def test_mapping_outside_a_reservation(self, refused: Any) -> None:
        address, handle = short.reserve(PAGE), short.create(2 * PAGE)
        refused(cuda.cuMemMap(address, 2 * PAGE, 0, handle, 0), INVALID, "inside one reservation")
        ok(cuda.cuMemAddressFree(address, PAGE))
        small = short.create(PAGE)
        refused(cuda.cuMemMap(address, PAGE, 0, small, 0), INVALID, "inside one reservation")

    def test_mapping_twice(self, refused: Any) -> None:
        address, handle = short.mapped(PAGE)
        refused(cuda.cuMemMap(address, PAGE, 0, handle, 0), INVALID, "something is mapped")

    def test_mapping_a_part_or_more(self, refused: Any) -> None:
        address, handle = short.reserve(4 * PAGE), short.create(2 * PAGE)
        refused(cuda.cuMemMap(address, PAGE, 0, handle, 0), INVALID, "has 131072")
        refused(cuda.cuMemMap(address, 3 * PAGE, 0, handle, 0), INVALID, "has 131072")
        refused(cuda.cuMemMap(address, 2 * PAGE, PAGE, handle, 0), INVALID, "offset")

    def test_unmapping_what_is_not_mapped(self, refused: Any) -> None:
        address = short.reserve(2 * PAGE)
        refused(cuda.cuMemUnmap(address, PAGE), INVALID, "nothing is mapped")
        short.map_at(address, PAGE, short.create(PAGE))
        refused(cuda.cuMemUnmap(address, 2 * PAGE), INVALID, "nothing is mapped")
        assert not faults(address)

    def test_unmapping_a_part(self, refused: Any) -> None:
        address, _ = short.mapped(2 * PAGE)
        refused(cuda.cuMemUnmap(address, PAGE), INVALID, "cuts the mapping")
        refused(cuda.cuMemUnmap(address + PAGE, PAGE), INVALID, "cuts the mapping")

    def test_access_to_what_is_not_mapped(self, refused: Any) -> None:
        address = short.reserve(2 * PAGE)
        described = [short.access()]
        refused(cuda.cuMemSetAccess(address, PAGE, described, 1), INVALID, "nothing is mapped")
        ok(cuda.cuMemMap(address, 2 * PAGE, 0, short.create(2 * PAGE), 0))
        refused(cuda.cuMemSetAccess(address, PAGE, described, 1), INVALID, "cuts the mapping")

    def test_freeing_a_reservation(self, refused: Any) -> None:
        address, _ = short.mapped(2 * PAGE)
        refused(cuda.cuMemAddressFree(address, 2 * PAGE), INVALID, "still mapped")
        ok(cuda.cuMemUnmap(address, 2 * PAGE))
        refused(cuda.cuMemAddressFree(address, PAGE), INVALID, "from start to end")
        refused(cuda.cuMemAddressFree(address + PAGE, PAGE), INVALID, "from start to end")
        ok(cuda.cuMemAddressFree(address, 2 * PAGE))
        refused(cuda.cuMemAddressFree(address, 2 * PAGE), INVALID, "from start to end")

    def test_releasing_a_handle(self, refused: Any) -> None:
        address, handle = short.mapped(PAGE)
        refused(cuda.cuMemRelease(handle), INVALID, "still mapped 1 times")
        ok(cuda.cuMemUnmap(address, PAGE))
        ok(cuda.cuMemRelease(handle))
        refused(cuda.cuMemRelease(handle), INVALID, "was released")
        refused(cuda.cuMemRelease(12345), INVALID, "unknown")
        refused(cuda.cuMemMap(address, PAGE, 0, handle, 0), INVALID, "was released")


class TestCopies:
    def test_there_and_back(self, pinned: tuple[mmap.mmap, int]) -> None:
        memory, near = pinned
        far, _ = short.mapped(PAGE)
        made = stream()
        memory[:5] = b"there"
        ok(cuda.cuMemcpyAsync(far, near, 5, made))
        ok(cuda.cuMemcpyAsync(near + 100, far, 5, made))
        ok(cuda.cuStreamSynchronize(made))
        assert read(far, 5) == memory[100:105] == b"there"

    def test_across_neighbouring_mappings(self, standin: StandIn) -> None:
        address = short.reserve(3 * PAGE)
        for place in range(2):
            short.map_at(address + place * PAGE, PAGE, short.create(PAGE))
        ok(cuda.cuMemsetD8Async(address + 10, 7, 2 * PAGE - 10, 0))
        ok(cuda.cuCtxSynchronize())
        assert read(address, 2 * PAGE) == bytes(10) + b"\7" * (2 * PAGE - 10)

    def test_batch(self, pinned: tuple[mmap.mmap, int]) -> None:
        memory, near = pinned
        far, _ = short.mapped(PAGE)
        memory[:8] = b"abcdefgh"
        made = stream()
        pieces = [(far + 100 * place, near + 2 * place, 2) for place in range(4)]
        ok(short.copy_batch(pieces, made))
        ok(cuda.cuStreamSynchronize(made))
        assert [read(dst, 2) for dst, _, _ in pieces] == [b"ab", b"cd", b"ef", b"gh"]

    def test_a_source_that_is_read_during_the_call(
        self, standin: StandIn, pinned: tuple[mmap.mmap, int]
    ) -> None:
        memory, near = pinned
        far, _ = short.mapped(2 * PAGE)
        made = stream()
        standin.delay(LONG_S)
        memory[:3] = b"old"
        for place, order in enumerate((1, 2)):
            ok(short.copy_batch([(far + place * PAGE, near, 3)], made, order))
        memory[:3] = b"new"
        standin.delay(0)
        ok(cuda.cuStreamSynchronize(made))
        assert read(far, 3) == b"new"
        assert read(far + PAGE, 3) == b"old"

    def test_a_batch_has_no_order(self, refused: Any, pinned: tuple[mmap.mmap, int]) -> None:
        near, (far, _), made = pinned[1], short.mapped(PAGE), stream()
        apart = short.copy_batch([(far, near, 8), (far + 8, near, 8)], made)
        assert apart[0] == 0
        twice = short.copy_batch([(far, near, 8), (far + 7, near, 8)], made)
        refused(twice, INVALID, "copies of one batch meet")
        chained = short.copy_batch([(far, near, 8), (far + 64, far, 8)], made)
        refused(chained, INVALID, "copies of one batch meet")

    def test_malformed_batches(self, refused: Any, pinned: tuple[mmap.mmap, int]) -> None:
        near, (far, _), made = pinned[1], short.mapped(PAGE), stream()
        refused(short.copy_batch([(far, near, 8)], 0), INVALID, "legacy stream")
        refused(short.copy_batch([(far, near, 0)], made), INVALID, "no bytes")
        refused(short.copy_batch([(far, near, 8)], made, order=0), INVALID, "source order 0")

    def test_a_source_still_being_written(
        self, standin: StandIn, refused: Any, pinned: tuple[mmap.mmap, int]
    ) -> None:
        near, (far, _), made = pinned[1], short.mapped(PAGE), stream()
        standin.delay(LONG_S)
        ok(cuda.cuMemsetD8Async(far, 1, 8, made))
        for order in (2, 3):
            refused(short.copy_batch([(near, far, 8)], made, order), INVALID, "writes to it")

    def test_overlap(self, refused: Any) -> None:
        far, _ = short.mapped(PAGE)
        refused(cuda.cuMemcpyAsync(far, far + 4, 8, stream()), INVALID, "overlap")

    def test_memory_that_is_not_mapped(self, refused: Any, pinned: tuple[mmap.mmap, int]) -> None:
        near, far, made = pinned[1], short.reserve(2 * PAGE), stream()
        refused(cuda.cuMemcpyAsync(far, near, 8, made), INVALID, "nothing is mapped")
        refused(cuda.cuMemcpyAsync(near, far, 8, made), INVALID, "nothing is mapped")
        refused(cuda.cuMemsetD8Async(far, 0, 8, made), INVALID, "nothing is mapped")
        refused(short.copy_batch([(far, near, 8)], made), INVALID, "nothing is mapped")
        short.map_at(far, PAGE, short.create(PAGE))
        refused(cuda.cuMemsetD8Async(far, 0, PAGE + 1, made), INVALID, "nothing is mapped")

    def test_memory_without_access(self, refused: Any, pinned: tuple[mmap.mmap, int]) -> None:
        near, far, made = pinned[1], short.reserve(PAGE), stream()
        ok(cuda.cuMemMap(far, PAGE, 0, short.create(PAGE), 0))
        refused(cuda.cuMemcpyAsync(far, near, 8, made), INVALID, "no access was set")
        refused(cuda.cuMemcpyAsync(near, far, 8, made), INVALID, "no access was set")
        refused(cuda.cuMemsetD8Async(far, 0, 8, made), INVALID, "no access was set")
        ok(cuda.cuMemSetAccess(far, PAGE, [short.access(short.READ)], 1))
        refused(cuda.cuMemcpyAsync(far, near, 8, made), INVALID, "no access was set")
        ok(cuda.cuMemcpyAsync(near, far, 8, made))

    def test_nothing_to_do_is_done(self, standin: StandIn) -> None:
        ok(cuda.cuMemcpyAsync(0, 0, 0, stream()))


class TestHostMemory:
    def test_must_be_registered(
        self, standin: StandIn, refused: Any, host: tuple[mmap.mmap, int]
    ) -> None:
        memory, near = host
        (far, _), made = short.mapped(PAGE), stream()
        for dst, src in ((far, near), (near, far)):
            refused(cuda.cuMemcpyAsync(dst, src, 8, made), INVALID, "not registered")
        standin.flags(strict_host=False)
        memory[:2] = b"ok"
        ok(cuda.cuMemcpyAsync(far, near, 2, made))
        assert read(far, 2) == b"ok"  # over when the call returned

    def test_only_registered_bytes(self, refused: Any, host: tuple[mmap.mmap, int]) -> None:
        _, near = host
        (far, _), made = short.mapped(PAGE), stream()
        ok(cuda.cuMemHostRegister(near, 4096, 0))
        ok(cuda.cuMemcpyAsync(far, near, 4096, made))
        refused(cuda.cuMemcpyAsync(far, near, 4097, made), INVALID, "not registered")
        refused(cuda.cuMemsetD8Async(near, 0, 8, made), INVALID, "not device memory")

    def test_twice_or_never(self, refused: Any, pinned: tuple[mmap.mmap, int]) -> None:
        _, near = pinned
        refused(cuda.cuMemHostRegister(near + 4096, 4096, 0), 712, "registered in part")
        refused(cuda.cuMemHostUnregister(near + 4096), 713, "not the start")
        ok(cuda.cuMemHostUnregister(near))
        refused(cuda.cuMemHostUnregister(near), 713, "not the start")

    def test_what_is_no_host_memory(self, refused: Any) -> None:
        address, _ = short.mapped(PAGE)
        refused(cuda.cuMemHostRegister(address, PAGE, 0), INVALID, "of the device")
        refused(cuda.cuMemHostRegister(4096, PAGE, 0), INVALID, "not memory")

    def test_read_only(self, refused: Any) -> None:
        near, (far, _), made = anonymous(mmap.PROT_READ), short.mapped(PAGE), stream()
        refused(cuda.cuMemHostRegister(near, PAGE, 0), INVALID, "read-only")
        ok(cuda.cuMemHostRegister(near, PAGE, READ_ONLY))
        ok(cuda.cuMemcpyAsync(far, near, 8, made))
        refused(cuda.cuMemcpyAsync(near, far, 8, made), INVALID, "read-only")
        ok(cuda.cuStreamSynchronize(made))
        munmap(near)


class TestStreams:
    def test_work_is_asynchronous_and_in_order(self, standin: StandIn) -> None:
        (far, _), made, marker = short.mapped(PAGE), stream(), event()
        standin.delay(LONG_S)
        ok(cuda.cuMemsetD8Async(far, 1, 2, made))
        ok(cuda.cuMemsetD8Async(far, 2, 1, made))
        ok(cuda.cuEventRecord(marker, made))
        assert cuda.cuStreamQuery(made)[0] == NOT_READY
        assert cuda.cuEventQuery(marker)[0] == NOT_READY
        assert read(far, 2) == b"\0\0"
        standin.delay(0)
        ok(cuda.cuEventSynchronize(marker))
        assert read(far, 2) == b"\2\1"
        ok(cuda.cuEventQuery(marker))
        ok(cuda.cuStreamSynchronize(made))
        ok(cuda.cuStreamQuery(made))

    def test_a_missing_wait_shows_and_a_wait_helps(self, standin: StandIn) -> None:
        (far, _), writer, marker = short.mapped(2 * PAGE), stream(), event()
        hasty, patient = stream(), stream()
        standin.pace(1)  # holds copies back, not fills
        ok(cuda.cuMemcpyAsync(far, far + PAGE, PAGE, writer))
        ok(cuda.cuEventRecord(marker, writer))
        ok(cuda.cuMemsetD8Async(far + 100, 1, 1, hasty))
        ok(cuda.cuStreamWaitEvent(patient, marker, 0))
        ok(cuda.cuMemsetD8Async(far + 200, 1, 1, patient))
        ok(cuda.cuStreamSynchronize(hasty))
        assert cuda.cuStreamQuery(patient)[0] == NOT_READY
        assert (read(far + 100), read(far + 200)) == (b"\1", b"\0")
        standin.pace(0)
        ok(cuda.cuStreamSynchronize(patient))
        assert (read(far + 100), read(far + 200)) == (b"\0", b"\1")

    def test_a_wait_is_for_the_recording_that_was_newest_then(self, standin: StandIn) -> None:
        first, second, other, marker = stream(), stream(), stream(), event()
        ok(cuda.cuStreamWaitEvent(other, marker, 0))  # never recorded: complete
        ok(cuda.cuStreamSynchronize(other))
        ok(cuda.cuEventRecord(marker, first))
        ok(cuda.cuStreamWaitEvent(other, marker, 0))
        ok(cuda.cuStreamSynchronize(first))
        standin.delay(LONG_S)
        ok(cuda.cuEventRecord(marker, second))
        ok(cuda.cuStreamSynchronize(other))  # does not wait for the second recording
        assert cuda.cuEventQuery(marker)[0] == NOT_READY

    def test_pace(self, standin: StandIn, pinned: tuple[mmap.mmap, int]) -> None:
        near, (far, _), made = pinned[1], short.mapped(PAGE), stream()
        begin, end = event(), event()
        standin.pace(PAGE / 0.05)
        ok(cuda.cuEventRecord(begin, made))
        ok(cuda.cuMemcpyAsync(far, near, PAGE, made))
        ok(cuda.cuEventRecord(end, made))
        assert cuda.cuEventElapsedTime(begin, end)[0] == NOT_READY
        ok(cuda.cuEventSynchronize(end))
        assert ok(cuda.cuEventElapsedTime(begin, end)) >= 49

    def test_the_pace_of_a_running_copy_changes(self, standin: StandIn) -> None:
        (far, _), made = short.mapped(2 * PAGE), stream()
        standin.pace(1)
        ok(cuda.cuMemcpyAsync(far, far + PAGE, PAGE, made))
        assert ok(cuda.cuMemGetInfo())  # other calls are answered meanwhile
        standin.pace(0)
        ok(cuda.cuStreamSynchronize(made))

    def test_the_legacy_stream_waits_and_is_waited_for(self, standin: StandIn) -> None:
        (far, _), blocking, apart = short.mapped(PAGE), ok(cuda.cuStreamCreate(0)), stream()
        standin.delay(LONG_S)
        ok(cuda.cuMemsetD8Async(far, 1, 1, blocking))
        ok(cuda.cuMemcpyAsync(far + 1, far, 1, 0))
        ok(cuda.cuMemcpyAsync(far + 2, far + 1, 1, blocking))
        assert cuda.cuStreamQuery(0)[0] == NOT_READY
        ok(cuda.cuStreamQuery(apart))
        standin.delay(0)
        ok(cuda.cuStreamSynchronize(blocking))
        assert read(far, 3) == b"\1\1\1"

    def test_a_destroyed_stream_finishes_its_work(self, standin: StandIn) -> None:
        (far, _), made, marker = short.mapped(PAGE), stream(), event()
        standin.delay(LONG_S)
        ok(cuda.cuMemsetD8Async(far, 1, 1, made))
        ok(cuda.cuEventRecord(marker, made))
        ok(cuda.cuStreamDestroy(made))
        standin.delay(0)
        ok(cuda.cuEventSynchronize(marker))
        assert read(far) == b"\1"

    def test_unknown_or_destroyed(self, refused: Any) -> None:
        (far, _), made, marker, other = short.mapped(PAGE), stream(), event(), stream()
        ok(cuda.cuStreamDestroy(made))
        ok(cuda.cuEventDestroy(marker))
        refused(cuda.cuStreamDestroy(made), BAD_HANDLE, "was destroyed")
        refused(cuda.cuStreamSynchronize(made), BAD_HANDLE, "was destroyed")
        refused(cuda.cuStreamQuery(made), BAD_HANDLE, "was destroyed")
        refused(cuda.cuMemsetD8Async(far, 0, 1, made), BAD_HANDLE, "was destroyed")
        refused(cuda.cuMemcpyAsync(far, far + 8, 8, made), BAD_HANDLE, "was destroyed")
        refused(short.copy_batch([(far, far + 8, 8)], made), BAD_HANDLE, "was destroyed")
        refused(cuda.cuEventRecord(event(), made), BAD_HANDLE, "was destroyed")
        refused(cuda.cuEventRecord(marker, other), BAD_HANDLE, "was destroyed")
        refused(cuda.cuStreamWaitEvent(other, marker, 0), BAD_HANDLE, "was destroyed")
        refused(cuda.cuEventQuery(marker), BAD_HANDLE, "was destroyed")
        refused(cuda.cuEventSynchronize(marker), BAD_HANDLE, "was destroyed")
        refused(cuda.cuEventDestroy(marker), BAD_HANDLE, "was destroyed")
        refused(cuda.cuStreamSynchronize(0xBAD), BAD_HANDLE, "unknown")
        refused(cuda.cuEventElapsedTime(event(), event()), BAD_HANDLE, "not recorded")

    def test_memory_of_queued_work_is_kept(
        self, standin: StandIn, refused: Any, pinned: tuple[mmap.mmap, int]
    ) -> None:
        near, (far, _), made = pinned[1], short.mapped(PAGE), stream()
        allocated = ok(cuda.cuMemAlloc(8))
        standin.delay(LONG_S)
        ok(cuda.cuMemcpyAsync(far, near, 8, made))
        ok(cuda.cuMemcpyAsync(near + 8, allocated, 8, made))
        less = [short.access(short.READ)]
        refused(cuda.cuMemUnmap(far, PAGE), INVALID, "still uses")
        refused(cuda.cuMemSetAccess(far, PAGE, less, 1), INVALID, "still uses")
        refused(cuda.cuMemHostUnregister(near), INVALID, "still uses")
        refused(cuda.cuMemFree(allocated), INVALID, "still uses")
        standin.delay(0)
        ok(cuda.cuStreamSynchronize(made))
        ok(cuda.cuMemUnmap(far, PAGE))
        ok(cuda.cuMemHostUnregister(near))
        ok(cuda.cuMemFree(allocated))

    def test_memory_that_went_away_is_an_error_for_good(
        self, standin: StandIn, refused: Any
    ) -> None:
        near = anonymous(mmap.PROT_READ | mmap.PROT_WRITE)
        (far, _), made, marker = short.mapped(PAGE), stream(), event()
        ok(cuda.cuMemHostRegister(near, PAGE, 0))
        standin.delay(LONG_S)
        ok(cuda.cuMemcpyAsync(far, near, PAGE, made))
        ok(cuda.cuEventRecord(marker, made))
        munmap(near)
        standin.delay(0)
        refused(cuda.cuEventSynchronize(marker), ILLEGAL, "memory that is gone")
        for _ in range(2):
            assert cuda.cuMemGetInfo()[0] == ILLEGAL
        standin.reset(TOTAL, PAGE)
        short.start()
        ok(cuda.cuMemGetInfo())


class TestControls:
    def test_fail_by_name(self, standin: StandIn, refused: Any) -> None:
        standin.fail(2, "cuMemCreate")
        held = [short.create(PAGE)]
        refused(cuda.cuMemCreate(PAGE, short.prop(), 0), OOM, "cuMemCreate: failed with 2")
        held.append(short.create(PAGE))
        assert standin.used_bytes == 2 * PAGE

    def test_fail_any(self, standin: StandIn, refused: Any) -> None:
        standin.fail(3, error=999)
        ok(cuda.cuMemGetInfo())
        address = short.reserve(PAGE)
        refused(cuda.cuMemAddressFree(address, PAGE), 999, "as ordered")
        assert standin.leaks()["reservations"] == 1
        ok(cuda.cuMemAddressFree(address, PAGE))

    def test_several_orders_stand_at_once(self, standin: StandIn) -> None:
        standin.fail(1, "cuMemGetInfo", error=1)
        standin.fail(2, "cuMemGetInfo", error=2)
        assert [cuda.cuMemGetInfo()[0] for _ in range(3)] == [1, 2, 0]

    @pytest.mark.parametrize(("nth", "call"), [(0, None), (1, "cuMemDream")])
    def test_orders_that_make_no_sense(self, standin: StandIn, nth: int, call: str | None) -> None:
        with pytest.raises(Refused):
            standin.fail(nth, call)

    @pytest.mark.parametrize("granularity", [0, 4096, 3 * PAGE])
    def test_granularities_that_make_no_sense(self, standin: StandIn, granularity: int) -> None:
        with pytest.raises(Refused):
            standin.reset(TOTAL, granularity)

    def test_calls_are_counted(self, standin: StandIn) -> None:
        before = standin.calls().get("cuMemGetInfo", 0)
        for _ in range(3):
            cuda.cuMemGetInfo()
        assert standin.calls()["cuMemGetInfo"] == before + 3

    def test_reset_ends_everything(self, standin: StandIn) -> None:
        (far, _), made = short.mapped(PAGE), stream()
        standin.delay(LONG_S)
        ok(cuda.cuMemsetD8Async(far, 1, 1, made))
        answers: list[Any] = []
        waiting = threading.Thread(target=lambda: answers.append(_synchronize(made)))
        waiting.start()
        while "cuStreamSynchronize" not in standin.calls():
            time.sleep(0.001)
        standin.reset(TOTAL, PAGE)
        waiting.join()
        assert answers[0] == 4  # CUDA_ERROR_DEINITIALIZED
        assert faults(far)
        assert standin.leaks() == NOTHING
        assert standin.used_bytes == 0
        assert standin.calls() == {}

    def test_loading_twice_gives_the_same(self, standin: StandIn) -> None:
        assert StandIn.load() is standin

    def test_no_compiler(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("CC", "no-such-compiler")
        with pytest.raises(NoCompiler, match="no C compiler"):
            build(tmp_path)

    def test_a_real_library_is_left_alone(self, library: StandIn, tmp_path: Path) -> None:
        real = tmp_path / "libcuda.so.1"
        command = ["cc", "-shared", "-x", "c", "/dev/null", "-o", str(real)]
        subprocess.run(command, check=True)
        script = (
            "import ctypes, sys; ctypes.CDLL(sys.argv[1])\n"
            "from tests.vmm.libcuda import RealDriverLoaded, StandIn\n"
            "try: StandIn.load()\n"
            "except RealDriverLoaded as why: print(why)\n"
        )
        done = run(script, str(real))
        assert "is loaded in this process" in done.stdout, done.stderr


def _synchronize(made: Any) -> Any:
    short.start()
    return cuda.cuStreamSynchronize(made)[0]


class Neighbour:
    """Another process that uses the same device."""

    def __init__(self, device: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.vmm.libcuda.neighbour", device, str(TOTAL), str(PAGE)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hold(self, what: str) -> int:
        """Number of free pages once the other process has done what the line `what` says."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def kill(self) -> None:
        with self._process:
            self._process.kill()


class TestSharedDevice:
    @pytest.fixture
    def neighbour(self, standin: StandIn) -> Iterator[Neighbour]:
        device = os.memfd_create("a device")
        path = f"/proc/{os.getpid()}/fd/{device}"
        standin.share(path)
        made = Neighbour(path)
        yield made
        made.kill()
        os.close(device)

    def free(self) -> int:
        return int(ok(cuda.cuMemGetInfo())[0]) // PAGE

    def test_memory_of_one_process_is_missing_in_the_other(
        self, neighbour: Neighbour, refused: Any
    ) -> None:
        assert neighbour.hold("40") == self.free() == 24
        handles = [short.create(PAGE) for _ in range(24)]
        refused(cuda.cuMemCreate(PAGE, short.prop(), 0), OOM, "0 of 4194304 are left")
        refused(cuda.cuMemAlloc(PAGE), OOM, "0 of 4194304 are left")
        assert neighbour.hold("39") == 1
        handles.append(short.create(PAGE))
        for handle in handles:
            ok(cuda.cuMemRelease(handle))
        assert neighbour.hold("0") == self.free() == 64

    def test_what_a_killed_process_held_is_free(self, neighbour: Neighbour) -> None:
        assert neighbour.hold("40") == 24
        neighbour.kill()
        assert self.free() == 64

    def test_exported_memory_counts_once_and_outlives_its_maker(
        self, neighbour: Neighbour, standin: StandIn
    ) -> None:
        handles = [short.create(PAGE) for _ in range(64)]
        fd = ok(cuda.cuMemExportToShareableHandle(handles[0], short.FD, 0))
        assert neighbour.hold(f"import /proc/{os.getpid()}/fd/{fd}") == self.free() == 0
        os.close(fd)
        for handle in handles:
            ok(cuda.cuMemRelease(handle))
        assert self.free() == 63, "the neighbour still has it"
        assert neighbour.hold("0") == self.free() == 64

    def test_exported_memory_lives_as_long_as_a_descriptor_of_it(
        self, neighbour: Neighbour, standin: StandIn
    ) -> None:
        handles = [short.create(PAGE) for _ in range(3)]
        fds = [int(ok(cuda.cuMemExportToShareableHandle(h, short.FD, 0))) for h in handles]
        for handle in handles:
            ok(cuda.cuMemRelease(handle))
        assert neighbour.hold("0") == self.free() == 61
        os.close(fds[0])
        assert neighbour.hold("0") == self.free() == 62
        here, there = socket.socketpair()
        socket.send_fds(here, [b"x"], fds[1:2])
        os.close(fds[1])
        assert neighbour.hold("0") == self.free() == 62, "on its way"
        there.close()
        here.close()
        assert neighbour.hold("0") == self.free() == 63
        again = ok(cuda.cuMemImportFromShareableHandle(fds[2], short.FD))
        assert neighbour.hold("0") == self.free() == 63, "it counts once"
        os.close(fds[2])
        ok(cuda.cuMemRelease(again))
        assert neighbour.hold("0") == self.free() == 64

    def test_a_reset_ends_it(self, neighbour: Neighbour, standin: StandIn) -> None:
        assert neighbour.hold("40") == 24
        standin.reset(TOTAL, PAGE)
        short.start()
        assert self.free() == 64

    def test_only_before_there_is_memory(self, standin: StandIn, tmp_path: Path) -> None:
        with pytest.raises(Refused):
            standin.share(str(tmp_path / "nowhere"))
        short.create(PAGE)
        (tmp_path / "device").touch()
        with pytest.raises(Refused):
            standin.share(str(tmp_path / "device"))

    def test_a_device_that_exports_nothing(self, standin: StandIn, refused: Any) -> None:
        standin.flags(shareable=False)
        refused(cuda.cuMemCreate(PAGE, short.prop(), 0), UNSUPPORTED, "file descriptors, if any")
        assert ok(cuda.cuMemCreate(PAGE, short.prop(exportable=False), 0))


class TestProcesses:
    def test_shared_memory_lives_until_both_let_go(self, standin: StandIn) -> None:
        address, handle = short.mapped(PAGE)
        ctypes.memmove(address, FROM_PARENT, len(FROM_PARENT))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.vmm.libcuda.importer", str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        with ours:
            fd = ok(cuda.cuMemExportToShareableHandle(handle, short.FD, 0))
            inode = os.fstat(fd).st_ino
            socket.send_fds(ours, [str(PAGE).encode()], [fd])
            os.close(fd)
            assert ours.recv(64) == FROM_PARENT
            ours.send(b"again")
            assert ours.recv(64) == FROM_CHILD == read(address, len(FROM_CHILD))
            assert traces(inode) == 2
            short.unmap_and_free(address, PAGE, handle)
            assert traces(inode) == 0
            ours.send(b"again")
            assert ours.recv(64) == FROM_CHILD
            ours.send(b"release")
            assert ours.recv(64) == b"2 then 0"  # now it is nowhere, so the kernel frees it
        assert child.wait() == 0

    def test_importing_what_this_process_has(self, standin: StandIn) -> None:
        handle = short.create(PAGE)
        fd = ok(cuda.cuMemExportToShareableHandle(handle, short.FD, 0))
        again = int(ok(cuda.cuMemImportFromShareableHandle(fd, short.FD)))
        os.close(fd)
        assert standin.used_bytes == PAGE
        ok(cuda.cuMemRelease(handle))
        assert standin.used_bytes == PAGE
        ok(cuda.cuMemRelease(again))
        assert standin.used_bytes == 0

    def test_what_cannot_be_shared(self, refused: Any, tmp_path: Path) -> None:
        private = ok(cuda.cuMemCreate(PAGE, short.prop(exportable=False), 0))
        without = cuda.cuMemExportToShareableHandle(private, short.FD, 0)
        refused(without, INVALID, "without a handle type")
        with (tmp_path / "file").open("w") as file:
            alien = cuda.cuMemImportFromShareableHandle(file.fileno(), short.FD)
        refused(alien, INVALID, "not a file descriptor of exported memory")

    def test_a_stray_access_ends_the_process(self, standin: StandIn) -> None:
        script = (
            "import ctypes\n"
            "from tests.vmm.libcuda import StandIn\n"
            "StandIn.load()\n"
            "from tests.vmm.libcuda import shorthand as short\n"
            "short.start()\n"
            "address, _ = short.mapped(1 << 21)\n"
            "print(ctypes.string_at(address, 1), flush=True)\n"
            "short.ok(short.cuda.cuMemUnmap(address, 1 << 21))\n"
            "ctypes.string_at(address, 1)\n"
        )
        done = run(script)
        assert done.stdout == "b'\\x00'\n", done.stderr
        assert done.returncode == -signal.SIGSEGV

    def test_per_thread_default_streams(
        self, standin: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "1")
        script = (
            "from tests.vmm.libcuda import StandIn\n"
            "standin = StandIn.load()\n"
            "from tests.vmm.libcuda import shorthand as short\n"
            "short.start()\n"
            "address, _ = short.mapped(1 << 21)\n"
            "blocking = short.ok(short.cuda.cuStreamCreate(0))\n"
            "standin.pace(1)\n"
            "short.ok(short.cuda.cuMemcpyAsync(address, address + 99, 99, blocking))\n"
            "short.ok(short.cuda.cuMemsetD8Async(address + 500, 7, 1, 0))\n"
            "short.ok(short.cuda.cuStreamSynchronize(0))\n"  # stream 0 waits for no other
            "standin.pace(0)\n"
            "short.ok(short.copy_batch([(address + 600, address + 500, 1)], 0))\n"
            "short.ok(short.cuda.cuCtxSynchronize())\n"
            "print('done')\n"
        )
        done = run(script)
        assert done.stdout == "done\n", done.stderr

    def test_a_forked_child_has_no_part(self, standin: StandIn) -> None:
        address, _ = short.mapped(PAGE)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            answers = [cuda.cuMemGetInfo()[0], cuda.cuInit(0)[0], cuda.cuDeviceGetCount()[0]]
            refusal = 0
            try:
                standin.reset()
            except Refused:
                refusal = 1
            told = [*map(int, answers), int(faults(address)), refusal]
            os.write(writer, bytes(told))
            os._exit(0)
        os.waitpid(child, 0)
        assert list(os.read(reader, 64)) == [UNINITIALIZED] * 3 + [1, 1]
        os.close(reader)
        os.close(writer)
        ok(cuda.cuMemGetInfo())
