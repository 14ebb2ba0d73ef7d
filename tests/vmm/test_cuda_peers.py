"""Copies from GPU to GPU over the stand-in, also of memory that another process lends."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cuda.bindings import driver as cu

from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from vmm import NotMapped
from vmm.cuda import CudaDriver
from vmm.cuda_calls import call
from vmm.cuda_peer import PeerLink
from vmm.driver import DeviceError, DeviceUnavailable

pytestmark = pytest.mark.vmm

ROOT = Path(__file__).parents[2]
PAGE = 65536
MEMORY = 32 * PAGE


@pytest.fixture
def standin() -> Iterator[StandIn]:
    made = loaded()
    made.reset(memory_bytes=MEMORY, granularity=PAGE)
    made.flags(devices=2)
    yield made
    assert not any(made.leaks().values()), made.leaks()
    made.reset()


@pytest.fixture
def two(standin: StandIn) -> Iterator[tuple[CudaDriver, CudaDriver]]:
    with (
        CudaDriver(device=0, tensors_on="cpu") as near,
        CudaDriver(device=1, shareable=True, tensors_on="cpu") as far,
    ):
        yield near, far


def mapped(gpu: CudaDriver, byte: int, count: int = 1) -> int:
    address = gpu.reserve(count * PAGE)
    gpu.map(address, gpu.create(count))
    gpu.fill(address, byte, count * PAGE)
    return address


def test_bytes_go_there_and_come_back(standin: StandIn, two: tuple[CudaDriver, CudaDriver]) -> None:
    near, far = two
    here, there = mapped(near, 3, 2), mapped(far, 5, 2)
    with closing(PeerLink(near, far).stream()) as stream:
        done = near.event()
        stream.copy(there, here, PAGE)
        stream.copy(here + PAGE, there + PAGE, PAGE)
        stream.record(done)
        done.wait()
        assert done.reached()
    assert ctypes.string_at(there, 2 * PAGE) == b"\3" * PAGE + b"\5" * PAGE
    assert ctypes.string_at(here, 2 * PAGE) == b"\3" * PAGE + b"\5" * PAGE
    assert standin.calls()["cuMemcpyPeerAsync"] == 2


def test_a_copy_waits_for_what_was_computed(
    standin: StandIn, two: tuple[CudaDriver, CudaDriver]
) -> None:
    near, far = two
    here, there = mapped(near, 1), mapped(far, 2)
    with closing(near.stream()) as compute, closing(PeerLink(near, far).stream()) as stream:
        standin.delay(60)  # until it is let go
        computed, copied = near.event(), near.event()
        compute.fill(here, 7, PAGE)
        compute.record(computed)
        stream.wait_for(computed)
        stream.copy(there, here, PAGE)
        stream.record(copied)
        assert not copied.reached()
        standin.delay(0)
        copied.wait()
        assert ctypes.string_at(there, PAGE) == b"\7" * PAGE


def test_two_links_share_one_access(two: tuple[CudaDriver, CudaDriver]) -> None:
    near, far = two
    here, there = mapped(near, 1), mapped(far, 2)
    links = PeerLink(near, far), PeerLink(far, near)  # the second finds it enabled
    for link in links:
        with closing(link.stream()) as stream:
            stream.copy(here, there, PAGE)
            stream.synchronize()
    assert ctypes.string_at(here, PAGE) == b"\2" * PAGE


def test_devices_that_cannot_reach_each_other(
    standin: StandIn, two: tuple[CudaDriver, CudaDriver]
) -> None:
    standin.peers(False)
    with pytest.raises(DeviceUnavailable, match=r"device 0 .* cannot reach the memory of device 1"):
        PeerLink(*two)


def test_what_is_not_mapped_is_refused_before_the_device_hears_of_it(
    standin: StandIn, two: tuple[CudaDriver, CudaDriver]
) -> None:
    near, far = two
    here, bare = mapped(near, 1), far.reserve(2 * PAGE)
    host = ctypes.create_string_buffer(PAGE)
    with closing(PeerLink(near, far).stream()) as stream:
        with pytest.raises(NotMapped, match="not all mapped"):
            stream.copy(bare, here, PAGE)
        with pytest.raises(NotMapped, match="neither device's"):
            stream.copy(here, ctypes.addressof(host), PAGE)
        with pytest.raises(NotMapped):
            stream.copy(here + PAGE // 2, here, PAGE)
    assert "cuMemcpyPeerAsync" not in standin.calls()


def test_memory_under_a_copy_is_not_unmapped(
    standin: StandIn, two: tuple[CudaDriver, CudaDriver]
) -> None:
    near, far = two
    here, there = mapped(near, 1), mapped(far, 2)
    with closing(PeerLink(near, far).stream()) as stream:
        standin.delay(60)
        stream.copy(here, there, PAGE)
        with pytest.raises(DeviceError, match="cuMemUnmap"):
            far.unmap(there, PAGE)
        assert "still uses" in standin.last_words()
        standin.delay(0)


class TestTheStandIn:
    """Rules of the stand-in that are stricter than the driver's."""

    def copy(self, near: CudaDriver, far: CudaDriver, *, swapped: bool = False) -> None:
        here, there = mapped(near, 1), mapped(far, 2)
        to, come = (far, near) if swapped else (near, far)
        with closing(near.stream()) as stream, stream.enqueuing():
            call(cu.cuMemcpyPeerAsync, here, to.context, there, come.context, PAGE, stream.handle)

    def test_without_access_enabled(
        self, standin: StandIn, two: tuple[CudaDriver, CudaDriver]
    ) -> None:
        with pytest.raises(DeviceError, match="PEER_ACCESS_NOT_ENABLED"):
            self.copy(*two)
        assert "device 0 was not let into device 1" in standin.last_words()

    def test_with_the_wrong_contexts(
        self, standin: StandIn, two: tuple[CudaDriver, CudaDriver]
    ) -> None:
        PeerLink(*two)
        with pytest.raises(DeviceError, match="INVALID_VALUE"):
            self.copy(*two, swapped=True)

    def test_access_ends_with_the_context(self, standin: StandIn) -> None:
        with CudaDriver(device=0, tensors_on="cpu") as near:
            with CudaDriver(device=1, tensors_on="cpu") as far:
                PeerLink(near, far)
            with (
                CudaDriver(device=1, tensors_on="cpu") as far,
                pytest.raises(DeviceError, match="PEER_ACCESS_NOT_ENABLED"),
            ):
                self.copy(near, far)


LENDER = """
import socket, sys
from tests.vmm.libcuda import StandIn
standin = StandIn.load()
standin.reset(int(sys.argv[1]), int(sys.argv[2]))
standin.flags(devices=2)
from vmm.cuda import CudaDriver
gpu = CudaDriver(device=1, shareable=True, tensors_on="cpu")
(page,) = gpu.create(1)
address = gpu.reserve(gpu.page_bytes)
gpu.map(address, [page])
gpu.fill(address, 9, gpu.page_bytes)
fd = gpu.export_page(page)
with socket.socket(fileno=int(sys.argv[3])) as line:
    socket.send_fds(line, [b"!"], [fd])
    line.recv(1)
    import ctypes
    seen = ctypes.string_at(address, gpu.page_bytes)
    line.sendall(bytes([seen[0], seen == seen[:1] * gpu.page_bytes]))
    line.recv(1)
"""


def test_another_process_lends_its_gpu(two: tuple[CudaDriver, CudaDriver]) -> None:
    near, far = two
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-c", LENDER, str(MEMORY), str(PAGE), str(theirs.fileno())]
    with ours, subprocess.Popen(words, cwd=ROOT, pass_fds=[theirs.fileno()]) as lender:
        theirs.close()
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
        page = far.import_page(fd)
        socket.close(fd)
        there, here = far.reserve(PAGE), mapped(near, 4)
        far.map(there, [page])
        with closing(PeerLink(near, far).stream()) as stream:
            stream.copy(here, there, PAGE)
            stream.synchronize()
            assert ctypes.string_at(here, PAGE) == b"\11" * PAGE
            near.fill(here, 6, PAGE)
            stream.copy(there, here, PAGE)
            stream.synchronize()
        ours.sendall(b"!")
        assert ours.recv(2) == b"\6\1"
        lender.kill()  # what was lent stays as long as somebody has it
        lender.wait()
        assert ctypes.string_at(there, PAGE) == b"\6" * PAGE
        far.unmap(there, PAGE)
        far.release([page])
