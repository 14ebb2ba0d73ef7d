"""Each fault of a GPU in the driver's form has a name of ours, whichever call meets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cuda.bindings import driver as cu

from tests.vmm.conftest import standin as loaded
from tests.vmm.libcuda import StandIn
from vmm import faults
from vmm.cuda import CudaDriver
from vmm.driver import DeviceError, DeviceLost, DeviceUnavailable, VmmError
from vmm.faults import FAULTS, Fault, Scope

pytestmark = pytest.mark.vmm
PAGE = 65536

CALLS: dict[str, Callable[[CudaDriver, int], object]] = {
    "create": lambda gpu, address: gpu.create(1),
    "map": lambda gpu, address: gpu.map(address + PAGE, gpu.create(1)),
    "unmap": lambda gpu, address: gpu.unmap(address, PAGE),
    "fill": lambda gpu, address: gpu.fill(address, 1, PAGE),
    "synchronize": lambda gpu, address: gpu.synchronize(),
    "memory_info": lambda gpu, address: gpu.memory_info(),
    "stream": lambda gpu, address: gpu.stream(),
}


@pytest.fixture
def standin() -> Iterator[StandIn]:
    made = loaded()
    made.reset(memory_bytes=64 * PAGE, granularity=PAGE)
    yield made
    made.reset()


def test_names_and_numbers_are_the_drivers() -> None:
    codes = {name: int(code) for name, code in cu.CUresult.__members__.items()}
    assert {name: fault.number for name, fault in FAULTS.items()}.items() <= codes.items()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_in_any_call_and_in_every_later_one(
    standin: StandIn, fault: Fault
) -> None:
    for name, act in CALLS.items():
        standin.reset(memory_bytes=64 * PAGE, granularity=PAGE)
        gpu = CudaDriver(tensors_on="cpu")
        address = gpu.reserve(2 * PAGE)
        gpu.map(address, gpu.create(1))
        standin.fault(fault.number)
        for _ in range(2):
            with pytest.raises(DeviceError) as raised:
                act(gpu, address)
            assert faults.of(raised.value) == fault, name
            if fault.scope is Scope.CONTEXT:
                assert isinstance(raised.value, DeviceLost)
        gpu.close()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_device_that_is_gone_is_not_opened_again(standin: StandIn, fault: Fault) -> None:
    standin.fault(fault.number)
    with pytest.raises(VmmError) as raised:
        CudaDriver()
    assert faults.of(raised.value) == fault
    standin.fault(0)
    CudaDriver().close()


def test_what_waits_for_a_stream_hears_of_it(standin: StandIn) -> None:
    gpu = CudaDriver(tensors_on="cpu")
    address = gpu.reserve(PAGE)
    gpu.map(address, gpu.create(1))
    stream, event = gpu.stream(), gpu.event()
    standin.delay(3600)
    stream.fill(address, 1, PAGE)
    stream.record(event)
    standin.fault(FAULTS["CUDA_ERROR_ECC_UNCORRECTABLE"].number)
    for waits in (event.wait, stream.synchronize):
        with pytest.raises(DeviceLost, match="CUDA_ERROR_ECC_UNCORRECTABLE"):
            waits()
    gpu.close()


def test_a_device_that_cannot_be_used_is_no_lost_context(standin: StandIn) -> None:
    standin.fault(FAULTS["CUDA_ERROR_DEVICE_UNAVAILABLE"].number)
    with pytest.raises(DeviceUnavailable):
        CudaDriver()
