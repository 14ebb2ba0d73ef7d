"""The CUDA driver over the stand-in for NVIDIA's library: promises beyond the common contract."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda.bindings import driver as cu

from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from vmm import DriverClosed, Misaligned, OutOfMemory, Page, PagePool, VmmError, host_buffer
from vmm.cuda import CudaDriver
from vmm.cuda_device import device_count, device_facts, driver_version
from vmm.driver import DeviceError, DeviceLost, DeviceUnavailable

pytestmark = pytest.mark.vmm
ROOT = Path(__file__).parents[2]
PAGE = 65536
MEMORY = 64 * PAGE
INVALID_VALUE = 1


@pytest.fixture
def standin() -> Iterator[StandIn]:
    made = loaded()
    made.reset(memory_bytes=MEMORY, granularity=PAGE)
    yield made
    made.reset()


@pytest.fixture
def gpu(standin: StandIn) -> Iterator[CudaDriver]:
    with CudaDriver(tensors_on="cpu") as driver:
        yield driver
    assert not any(standin.leaks().values()), standin.leaks()


def mapped(gpu: CudaDriver, count: int) -> int:
    address = gpu.reserve(count * gpu.page_bytes)
    gpu.map(address, gpu.create(count))
    return address


def owing(gpu: CudaDriver, standin: StandIn) -> tuple[int, list[Page]]:
    """A range and its pages after a failed map whose undoing failed too, so that two pages are
    still mapped.
    """
    address, pages = gpu.reserve(4 * PAGE), gpu.create(4)
    standin.fail(3, "cuMemMap", INVALID_VALUE)
    standin.fail(1, "cuMemUnmap", INVALID_VALUE)
    with pytest.raises(DeviceError, match="cuMemMap"):
        gpu.map(address, pages)
    assert standin.leaks()["mappings"] == 2, "owed to the device"
    return address, pages


class TestDevice:
    def test_facts_are_asked_without_a_context(self, standin: StandIn) -> None:
        facts = device_facts(0)
        assert facts.total_bytes == MEMORY and facts.granularity == PAGE
        assert facts.virtual_memory and facts.shareable
        assert driver_version() >= (12, 0) and device_count() == 1
        assert standin.leaks()["contexts"] == 0

    @pytest.mark.parametrize(("index", "devices"), [(1, 1), (0, 0)])
    def test_no_such_device(self, standin: StandIn, index: int, devices: int) -> None:
        standin.flags(devices=devices)
        with pytest.raises(DeviceUnavailable):
            CudaDriver(device=index)

    def test_a_device_that_cannot_map(self, standin: StandIn) -> None:
        standin.flags(vmm_supported=False)
        with pytest.raises(DeviceUnavailable, match="no virtual memory management"):
            CudaDriver()
        assert not any(standin.leaks().values())

    def test_a_device_that_exports_nothing(self, standin: StandIn) -> None:
        standin.flags(shareable=False)
        assert not device_facts(0).shareable
        with pytest.raises(DeviceUnavailable, match="cannot share memory by file descriptors"):
            CudaDriver(shareable=True)
        CudaDriver(tensors_on="cpu").close()
        assert not any(standin.leaks().values())

    @pytest.mark.parametrize("page", [PAGE + 1, PAGE // 2, -PAGE])
    def test_a_page_is_a_multiple_of_the_granularity(self, standin: StandIn, page: int) -> None:
        with pytest.raises(Misaligned, match=f"{page}.*{PAGE}"):
            CudaDriver(page)
        assert not any(standin.leaks().values())

    def test_a_failed_start_leaves_nothing(self, standin: StandIn) -> None:
        standin.fail(1, "cuStreamCreate")
        with pytest.raises(OutOfMemory, match="cuStreamCreate"):
            CudaDriver()
        assert not any(standin.leaks().values())

    def test_larger_pages_are_one_handle_each(self, standin: StandIn) -> None:
        with CudaDriver(8 * PAGE, tensors_on="cpu") as driver:
            mapped(driver, 3)
            assert standin.leaks()["handles"] == 3
            assert standin.used_bytes == driver.used_bytes() == 24 * PAGE


class TestContext:
    def test_the_callers_context_is_left_as_it_was(self, gpu: CudaDriver) -> None:
        before = int(cu.cuCtxGetCurrent()[1])
        mapped(gpu, 2)
        gpu.stream().synchronize()
        assert int(cu.cuCtxGetCurrent()[1]) == before == 0

    def test_a_refused_call_leaves_it_too(self, gpu: CudaDriver) -> None:
        with pytest.raises(VmmError):
            gpu.unmap(0x1234, PAGE)
        with pytest.raises(OutOfMemory):
            gpu.create(10**6)
        assert int(cu.cuCtxGetCurrent()[1]) == 0

    def test_calls_may_come_from_any_thread(self, gpu: CudaDriver) -> None:
        address, failures = mapped(gpu, 8), []

        def work(i: int) -> None:
            try:
                stream, event = gpu.stream(), gpu.event()
                for byte in range(20):
                    stream.fill(address + i * PAGE, byte, PAGE)
                    stream.record(event)
                    event.wait()
                    spare = gpu.create(1)
                    gpu.release(spare)
                stream.close()
            except VmmError as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert gpu.tensor(address, 8 * PAGE).eq(19).all()

    def test_a_forked_child_has_no_part_in_it(self, gpu: CudaDriver) -> None:
        gpu.create(1)
        child = os.fork()
        if child == 0:
            try:
                gpu.create(1)
            except DriverClosed:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        gpu.create(1)


class TestCalls:
    def test_access_is_set_once_for_each_contiguous_range(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        address = mapped(gpu, 16)
        gpu.unmap(address, 16 * PAGE)
        calls = standin.calls()
        assert calls["cuMemMap"] == 16
        assert calls["cuMemSetAccess"] == calls["cuMemUnmap"] == 1

    def test_a_refusal_says_call_values_and_reason(self, gpu: CudaDriver, standin: StandIn) -> None:
        address, pages = gpu.reserve(2 * PAGE), gpu.create(2)
        standin.fail(1, "cuMemMap", INVALID_VALUE)
        with pytest.raises(DeviceError, match=f"cuMemMap.{address:#x}, {PAGE}.*INVALID_VALUE"):
            gpu.map(address, pages)

    def test_out_of_memory_rolls_back(self, gpu: CudaDriver, standin: StandIn) -> None:
        gpu.create(60)
        with pytest.raises(OutOfMemory, match=f"{8 * PAGE} bytes wanted.*{4 * PAGE} of them"):
            gpu.create(8)
        assert standin.used_bytes == gpu.used_bytes() == 60 * PAGE
        assert len(gpu.create(4)) == 4

    @pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess"])
    @pytest.mark.parametrize("nth", [1, 3])
    def test_a_map_that_fails_in_the_middle_maps_nothing(
        self, gpu: CudaDriver, standin: StandIn, call: str, nth: int
    ) -> None:
        address, pages = gpu.reserve(4 * PAGE), gpu.create(4)
        nth = nth if call == "cuMemMap" else 1
        standin.fail(nth, call, INVALID_VALUE)
        with pytest.raises(DeviceError, match=call):
            gpu.map(address, pages)
        assert standin.leaks()["mappings"] == 0
        gpu.map(address, pages)
        gpu.fill(address, 1, 4 * PAGE)

    def test_what_cannot_be_undone_is_undone_before_the_next_call(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        address, pages = owing(gpu, standin)
        gpu.check_integrity()
        assert standin.leaks()["mappings"] == 0
        gpu.map(address, pages)

    def test_what_is_owed_is_undone_when_the_driver_is_closed(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        owing(gpu, standin)
        gpu.close()
        assert not any(standin.leaks().values())

    def test_as_long_as_it_is_owed_every_call_says_so(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        standin.fail(4, "cuMemCreate")
        for nth in range(1, 4):
            standin.fail(nth, "cuMemRelease", INVALID_VALUE)
        with pytest.raises(OutOfMemory):
            gpu.create(5)
        for _ in range(2):
            with pytest.raises(DeviceError, match="cuMemRelease"):
                gpu.reserve(PAGE)
        assert gpu.used_bytes() == 0 == standin.used_bytes

    def test_work_that_fails_on_the_device_has_a_name(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        stream = gpu.stream()
        standin.fail(1, "cuStreamSynchronize", 700)
        with pytest.raises(VmmError, match="ILLEGAL_ADDRESS") as raised:
            stream.synchronize()
        assert type(raised.value).__name__ == "DeviceLost"

    @pytest.mark.parametrize("code", [710, 715, 716, 718])
    def test_what_cannot_be_mended_is_a_lost_device(
        self, gpu: CudaDriver, standin: StandIn, code: int
    ) -> None:
        standin.fail(1, "cuMemGetInfo", code)
        with pytest.raises(DeviceLost, match="cuMemGetInfo"):
            gpu.memory_info()

    def test_a_code_that_nobody_knows_has_a_name(self, gpu: CudaDriver, standin: StandIn) -> None:
        standin.fail(1, "cuMemGetInfo", 12345)
        with pytest.raises(DeviceError, match=r"cuMemGetInfo.*12345"):
            gpu.memory_info()


class TestRefusals:
    def test_more_addresses_than_there_are_however_that_is_refused(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        standin.fail(1, "cuMemAddressReserve", INVALID_VALUE)
        with pytest.raises(OutOfMemory, match=f"reserving {1 << 60} bytes of addresses"):
            gpu.reserve(1 << 60)
        standin.fail(1, "cuMemAddressReserve", INVALID_VALUE)
        with pytest.raises(DeviceError, match="INVALID_VALUE"):
            gpu.reserve(PAGE)

    def test_more_than_its_capacity(self, standin: StandIn) -> None:
        with CudaDriver(tensors_on="cpu", capacity_bytes=3 * PAGE) as gpu:
            gpu.create(2)
            with pytest.raises(OutOfMemory, match=rf"{2 * PAGE} bytes wanted, {2 * PAGE} of"):
                gpu.create(2)
            assert gpu.used_bytes() == standin.used_bytes == 2 * PAGE

    def test_books_and_handles_that_do_not_agree(self, gpu: CudaDriver) -> None:
        (page,) = gpu.create(1)
        handle = gpu._handles.pop(page)
        with pytest.raises(VmmError, match="0 handles for 1 pages"):
            gpu.check_integrity()
        gpu._handles[page] = handle

    def test_an_event_of_another_driver(self, gpu: CudaDriver) -> None:
        from vmm import HostDriver

        with HostDriver(PAGE) as host, pytest.raises(VmmError, match="is no event of this driver"):
            gpu.stream().record(host.event())

    def test_a_code_that_nobody_knows_has_a_name_of_ours(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        stream, event = gpu.stream(), gpu.event()
        stream.record(event)
        standin.fail(1, "cuEventQuery", error=4242)
        with pytest.raises(DeviceError, match="cuEventQuery"):
            event.reached()


class TestRelease:
    @pytest.mark.parametrize("nth", [1, 2, 4])
    def test_a_refused_one_leaves_all_or_is_owed(
        self, gpu: CudaDriver, standin: StandIn, nth: int
    ) -> None:
        pool = PagePool(gpu, 8 * PAGE)
        pool.give(pool.take(4, "kv"))
        standin.fail(nth, "cuMemRelease", error=999)
        if nth == 1:
            with pytest.raises(DeviceError, match="cuMemRelease"):
                pool.trim()
        else:
            pool.trim()
        pool.check_integrity()
        gpu.check_integrity()
        gpu.map(address := gpu.reserve(8 * PAGE), pool.take(8, "kv"))
        gpu.unmap(address, 8 * PAGE)
        assert standin.used_bytes == 8 * PAGE, "what was owed is paid"
        gpu.unreserve(address)


class TestHostMemory:
    def test_only_locked_memory_is_copied_behind_the_caller(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        source, address, stream = host_buffer(PAGE), mapped(gpu, 1), gpu.stream()
        source.tensor().fill_(3)
        with pytest.raises(DeviceError, match="cuMemcpyAsync"):
            stream.copy(address, source.address, PAGE)
        gpu.pin(source.address, PAGE)
        standin.delay(0.05)
        event = gpu.event()
        stream.copy(address, source.address, PAGE)
        stream.record(event)
        assert not event.reached()
        event.wait()
        assert gpu.tensor(address, PAGE).eq(3).all()
        gpu.unpin(source.address)
        source.close()

    def test_memory_that_cannot_be_locked(self, gpu: CudaDriver, standin: StandIn) -> None:
        source = host_buffer(PAGE)
        standin.fail(1, "cuMemHostRegister")
        with pytest.raises(DeviceError, match=f"{PAGE} bytes of host memory .* `ulimit -l`"):
            gpu.pin(source.address, PAGE)
        gpu.unpin(source.address)
        source.close()


class TestEvents:
    def test_handles_are_used_again(self, gpu: CudaDriver, standin: StandIn) -> None:
        stream = gpu.stream()
        for _ in range(50):
            event = gpu.event()
            stream.record(event)
            event.wait()
            del event
        assert standin.leaks()["events"] <= 2

    def test_a_handle_that_is_still_to_be_reached_is_not(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        address, stream, event = mapped(gpu, 1), gpu.stream(), gpu.event()
        standin.delay(0.1)
        stream.fill(address, 1, PAGE)
        stream.record(event)
        del event
        assert gpu.event().reached()
        stream.synchronize()

    def test_no_stream_of_ours_waits_for_the_legacy_stream(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        """A copy runs on the legacy stream, which is torch's default. Our streams do not wait for
        it; otherwise copies would run after torch's kernels instead of beside them.
        """
        theirs, ours, copied = gpu.adopt(0), gpu.stream(), gpu.event()
        source, address = host_buffer(PAGE), mapped(gpu, 2)
        gpu.pin(source.address, PAGE)
        standin.pace(PAGE / 10)
        theirs.copy(address, source.address, PAGE)
        theirs.record(copied)
        ours.fill(address + PAGE, 3, PAGE)
        ours.synchronize()
        gpu.fill(address + PAGE, 4, PAGE)
        assert not copied.reached()
        standin.pace(0)
        gpu.synchronize()
        gpu.unpin(source.address)
        source.close()

    def test_a_stream_is_closed_when_its_work_has_run(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        stream, address = gpu.stream(), mapped(gpu, 1)
        standin.delay(0.05)
        stream.fill(address, 1, PAGE)
        stream.close()
        gpu.unmap(address, PAGE)

    def test_a_stream_of_somebody_else_stays_theirs(
        self, gpu: CudaDriver, standin: StandIn
    ) -> None:
        theirs, address = gpu.stream(), mapped(gpu, 1)
        before = standin.leaks()["streams"]
        ours = gpu.adopt(int(theirs.handle))
        ours.fill(address, 6, PAGE)
        ours.close()
        assert standin.leaks()["streams"] == before
        theirs.synchronize()
        assert gpu.tensor(address, PAGE).eq(6).all()


IMPORTER = """
import array, socket, sys
from tests.vmm.libcuda import StandIn
StandIn.load().reset(memory_bytes={memory}, granularity={page})
from vmm.cuda import CudaDriver
gpu = CudaDriver(shareable=True, tensors_on="cpu")
line = socket.socket(fileno=int(sys.argv[1]))
_, fds, _, _ = socket.recv_fds(line, 1, 1)
page = gpu.import_page(fds[0])
address = gpu.reserve({page})
gpu.map(address, [page])
assert int(gpu.tensor(address, 1)[0]) == 41
gpu.fill(address, 42, {page})
line.send(b"x")
line.recv(1)
gpu.close()
"""


class TestBetweenProcesses:
    def test_a_page_goes_to_another_process(self, standin: StandIn) -> None:
        with CudaDriver(shareable=True, tensors_on="cpu") as gpu:
            address = gpu.reserve(PAGE)
            (page,) = gpu.create(1)
            gpu.map(address, [page])
            gpu.fill(address, 41, PAGE)
            ours, theirs = socket.socketpair()
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    IMPORTER.format(memory=MEMORY, page=PAGE),
                    str(theirs.fileno()),
                ],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            fd = gpu.export_page(page)
            socket.send_fds(ours, [b"x"], [fd])
            os.close(fd)
            assert ours.recv(1) == b"x", "the other process failed"
            assert gpu.tensor(address, PAGE).eq(42).all()
            ours.send(b"x")
            assert child.wait() == 0
            ours.close()

    def test_what_is_imported_counts(self, standin: StandIn) -> None:
        with CudaDriver(capacity_bytes=PAGE, shareable=True, tensors_on="cpu") as gpu:
            (page,) = gpu.create(1)
            fd = gpu.export_page(page)
            with pytest.raises(OutOfMemory, match="release some first"):
                gpu.import_page(fd)
            gpu.release([page])
            gpu.release([gpu.import_page(fd)])
            os.close(fd)
        assert not any(standin.leaks().values())

    def test_what_is_imported_is_not_exported(self, standin: StandIn) -> None:
        """To export an imported page is refused, as by NVIDIA's driver 580 in spite of its
        documentation. The original page can be exported again.
        """
        with CudaDriver(shareable=True, tensors_on="cpu") as gpu:
            (page,) = gpu.create(1)
            fd = gpu.export_page(page)
            imported = gpu.import_page(fd)
            with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
                gpu.export_page(imported)
            os.close(fd)
            os.close(gpu.export_page(page))
            gpu.release([page, imported])
        assert not any(standin.leaks().values())

    def test_only_what_is_shareable_is_exported(self, gpu: CudaDriver) -> None:
        with pytest.raises(DeviceError, match="cuMemExportToShareableHandle"):
            gpu.export_page(gpu.create(1)[0])
