"""Short functions over cuda-python, for tests with the stand-in."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cuda

FD = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
NO_ACCESS = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
NON_BLOCKING = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING


def ok(result: tuple[Any, ...]) -> Any:
    """Results of a call that must succeed."""
    assert result[0] == cuda.CUresult.CUDA_SUCCESS, result
    return result[1] if len(result) == 2 else result[1:] or None


def start(device: int = 0) -> Any:
    """Initialise the driver, and make the device's primary context current in this thread."""
    ok(cuda.cuInit(0))
    context = ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(device))))
    ok(cuda.cuCtxSetCurrent(context))
    return context


def prop(device: int = 0, exportable: bool = True) -> Any:
    """Properties of pinned device memory, for cuMemCreate."""
    made = cuda.CUmemAllocationProp()
    made.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    if exportable:
        made.requestedHandleTypes = FD
    return made


def access(flags: Any = READ_WRITE, device: int = 0) -> Any:
    """Access rights for a device, in the form of cuMemSetAccess."""
    made = cuda.CUmemAccessDesc()
    made.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    made.flags = flags
    return made


def create(nbytes: int) -> int:
    """Make a handle of exportable memory on device 0, and return it."""
    return int(ok(cuda.cuMemCreate(nbytes, prop(), 0)))


def reserve(nbytes: int) -> int:
    """Reserve addresses without memory, and return the first."""
    return int(ok(cuda.cuMemAddressReserve(nbytes, 0, 0, 0)))


def map_at(address: int, nbytes: int, handle: int) -> None:
    """Map a handle at an address, and set access rights."""
    ok(cuda.cuMemMap(address, nbytes, 0, handle, 0))
    ok(cuda.cuMemSetAccess(address, nbytes, [access()], 1))


def mapped(nbytes: int) -> tuple[int, int]:
    """Reserve addresses and map new memory at all of them; return address and handle."""
    address, handle = reserve(nbytes), create(nbytes)
    map_at(address, nbytes, handle)
    return address, handle


def unmap_and_free(address: int, nbytes: int, handle: int) -> None:
    """Undo `mapped`: unmap, release the handle, free the addresses."""
    ok(cuda.cuMemUnmap(address, nbytes))
    ok(cuda.cuMemRelease(handle))
    ok(cuda.cuMemAddressFree(address, nbytes))


def copy_batch(pieces: list[tuple[int, int, int]], stream: Any, order: int = 1) -> Any:
    """cuMemcpyBatchAsync of (destination, source, bytes); the default order is the stream's."""
    how = cuda.CUmemcpyAttributes()
    how.srcAccessOrder = cuda.CUmemcpySrcAccessOrder(order)
    dsts, srcs, sizes = zip(*pieces, strict=True)
    return cuda.cuMemcpyBatchAsync(
        [cuda.CUdeviceptr(dst) for dst in dsts],
        [cuda.CUdeviceptr(src) for src in srcs],
        list(sizes),
        len(pieces),
        [how],
        [0],
        1,
        stream,
    )
