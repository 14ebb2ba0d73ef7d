"""Properties of a GPU, read without creating a context on it."""

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
    """Properties of one GPU. `granularity` is in bytes, 0 without virtual memory management."""

    index: int
    name: str
    uuid: str
    """Identifier in hexadecimal; unlike `index` it is the same in every process."""
    total_bytes: int
    capability: tuple[int, int]
    virtual_memory: bool
    shareable: bool
    """True if pages can be exported to another process."""
    granularity: int
    copy_engines: int
    pageable_access: bool
    """True if the GPU reads host memory that is not registered with it, as a GH200 does."""
    host_node: int | None
    """NUMA node of the host that is nearest to the GPU; None if unknown."""


def driver_version() -> tuple[int, int]:
    """Newest version of CUDA that the driver supports, as (major, minor). Raises
    `DeviceUnavailable` if there is no driver.
    """
    started()
    version = call(cu.cuDriverGetVersion)
    return version // 1000, version % 1000 // 10


def device_count() -> int:
    """Number of GPUs that this process can see. Raises `DeviceUnavailable` if there is no
    driver.
    """
    started()
    return int(call(cu.cuDeviceGetCount))


def device_facts(index: int) -> DeviceFacts:
    """Properties of GPU `index`. Raises `DeviceUnavailable` if there is no such device."""
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
    """The driver's handle of device `index`. Raises `DeviceUnavailable` if there is none."""
    count = device_count()
    if not 0 <= index < count:
        raise DeviceUnavailable(f"there is no NVIDIA device {index}: {count} can be seen")
    return call(cu.cuDeviceGet, index)


def attribute(device: Any, name: str) -> int:
    """Value of a device's attribute; `name` without ``CU_DEVICE_ATTRIBUTE_``."""
    return int(
        call(cu.cuDeviceGetAttribute, getattr(Attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)
    )


def allocation(index: int, shareable: bool = False) -> Any:
    """The driver's description of physical memory on device `index`; `shareable` memory can be
    exported.
    """
    made = cu.CUmemAllocationProp()
    made.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = index
    if shareable:
        made.requestedHandleTypes = POSIX_FD
    return made


def access(location: Any) -> Any:
    """The driver's description of read and write access from the device at `location`."""
    made = cu.CUmemAccessDesc()
    made.location = location
    made.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return made


def granularity(wanted: Any) -> int:
    """Granularity in bytes of memory with the properties in `wanted`: its sizes and addresses are
    multiples of it."""
    return int(call(cu.cuMemGetAllocationGranularity, wanted, MINIMUM))


def _host_node(device: Any) -> int | None:
    """NUMA node nearest to the device; None if there is none, and with drivers before CUDA 12.2."""
    with suppress(DeviceError):
        node = attribute(device, "HOST_NUMA_ID")
        return node if node >= 0 else None
    return None


def _has(device: Any, name: str) -> bool:
    return attribute(device, name) != 0
