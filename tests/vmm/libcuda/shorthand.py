"""cuda-python in few words, for tests against the stand-in."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cuda

FD = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
NO_ACCESS = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
NON_BLOCKING = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING


def ok(result: tuple[Any, ...]) -> Any:
    """What a call gave; it must have succeeded."""
    assert result[0] == cuda.CUresult.CUDA_SUCCESS, result
    return result[1] if len(result) == 2 else result[1:] or None


def start(device: int = 0) -> Any:
    """Init, and make the device's primary context current in this thread."""
    ok(cuda.cuInit(0))
    context = ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(device))))
    ok(cuda.cuCtxSetCurrent(context))
    return context


def prop(device: int = 0, exportable: bool = True) -> Any:
    """Pinned memory of a device."""
    made = cuda.CUmemAllocationProp()
    made.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    if exportable:
        made.requestedHandleTypes = FD
    return made


def access(flags: Any = READ_WRITE, device: int = 0) -> Any:
    """What a device may do, as cuMemSetAccess takes it."""
    made = cuda.CUmemAccessDesc()
    made.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    made.flags = flags
    return made


def create(nbytes: int) -> int:
    """A handle of exportable memory of device 0."""
    return int(ok(cuda.cuMemCreate(nbytes, prop(), 0)))


def reserve(nbytes: int) -> int:
    """Addresses with nothing behind them."""
    return int(ok(cuda.cuMemAddressReserve(nbytes, 0, 0, 0)))


def map_at(address: int, nbytes: int, handle: int) -> None:
    """Map and set access."""
    ok(cuda.cuMemMap(address, nbytes, 0, handle, 0))
    ok(cuda.cuMemSetAccess(address, nbytes, [access()], 1))


def mapped(nbytes: int) -> tuple[int, int]:
    """A reservation with new memory behind all of it: address and handle."""
    address, handle = reserve(nbytes), create(nbytes)
    map_at(address, nbytes, handle)
    return address, handle


def unmap_and_free(address: int, nbytes: int, handle: int) -> None:
    """Undo `mapped`."""
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
