"""Properties of a GPU, asked without making a context on it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cu

from vmm.cuda_calls import call, started
from vmm.driver import DeviceError, DeviceUnavailable

Attribute = cu.CUdevice_attribute
MINIMUM = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
POSIX_FD = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


@dataclass(frozen=True)
class DeviceFacts:
    """One GPU. `granularity` is 0 without virtual memory management."""

    index: int
    name: str
    uuid: str
    """In hexadecimal; the same in every process, whichever number it has there."""
    total_bytes: int
    capability: tuple[int, int]
    virtual_memory: bool
    shareable: bool
    """True if another process can import its pages."""
    granularity: int
    copy_engines: int
    pageable_access: bool
    """True if the GPU reads host memory that is not registered, as a GH200 does."""
    host_node: int | None
    """The NUMA node of the host that is nearest; None if the machine has no such nodes."""


def driver_version() -> tuple[int, int]:
    """Newest version of CUDA that the driver speaks. Raises `DeviceUnavailable`."""
    started()
    version = call(cu.cuDriverGetVersion)
    return version // 1000, version % 1000 // 10


def device_count() -> int:
    """Raises `DeviceUnavailable` if there is no driver."""
    started()
    return int(call(cu.cuDeviceGetCount))


def device_facts(index: int) -> DeviceFacts:
    """Raises `DeviceUnavailable` if there is no such device."""
    device = get_device(index)
    virtual = _has(device, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED")
    return DeviceFacts(
        index=index,
        name=call(cu.cuDeviceGetName, 256, device).split(b"\0")[0].decode(),
        uuid=bytes(call(cu.cuDeviceGetUuid, device).bytes).hex(),
        total_bytes=int(call(cu.cuDeviceTotalMem, device)),
        capability=(
            attribute(device, "COMPUTE_CAPABILITY_MAJOR"),
            attribute(device, "COMPUTE_CAPABILITY_MINOR"),
        ),
        virtual_memory=virtual,
        shareable=virtual and _has(device, "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"),
        granularity=granularity(allocation(index)) if virtual else 0,
        copy_engines=attribute(device, "ASYNC_ENGINE_COUNT"),
        pageable_access=_has(device, "PAGEABLE_MEMORY_ACCESS"),
        host_node=_host_node(device),
    )


def get_device(index: int) -> Any:
    """The driver's device of that number. Raises `DeviceUnavailable`."""
    count = device_count()
    if not 0 <= index < count:
        raise DeviceUnavailable(f"there is no NVIDIA device {index}: {count} can be seen")
    return call(cu.cuDeviceGet, index)


def attribute(device: Any, name: str) -> int:
    """One of the device's attributes."""
    return int(
        call(cu.cuDeviceGetAttribute, getattr(Attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)
    )


def allocation(index: int, shareable: bool = False) -> Any:
    """The driver's description of physical memory on a device."""
    made = cu.CUmemAllocationProp()
    made.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = index
    if shareable:
        made.requestedHandleTypes = POSIX_FD
    return made


def access(location: Any) -> Any:
    """The driver's description of who may read and write memory."""
    made = cu.CUmemAccessDesc()
    made.location = location
    made.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return made


def granularity(wanted: Any) -> int:
    """Granularity of such memory in bytes: its sizes and addresses are multiples of it."""
    return int(call(cu.cuMemGetAllocationGranularity, wanted, MINIMUM))


def _host_node(device: Any) -> int | None:
    """Drivers before CUDA 12.2 do not know."""
    with suppress(DeviceError):
        node = attribute(device, "HOST_NUMA_ID")
        return node if node >= 0 else None
    return None


def _has(device: Any, name: str) -> bool:
    return attribute(device, name) != 0
