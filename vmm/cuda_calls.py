"""Calls of CUDA's driver, and the exceptions for its error codes.

cuda-python returns an error code beside every result. Here a code becomes a `VmmError` that names
the refused call, its values, and the driver's text for the code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cu

from vmm.driver import DeviceError, DeviceLost, DeviceUnavailable, OutOfMemory, VmmError
from vmm.faults import FAULTS, Scope

Code = cu.CUresult
NAMED: dict[Any, type[VmmError]] = {
    Code.CUDA_ERROR_OUT_OF_MEMORY: OutOfMemory,
    Code.CUDA_ERROR_NOT_INITIALIZED: DeviceUnavailable,
    Code.CUDA_ERROR_NO_DEVICE: DeviceUnavailable,
    Code.CUDA_ERROR_INVALID_DEVICE: DeviceUnavailable,
    Code.CUDA_ERROR_DEVICE_UNAVAILABLE: DeviceUnavailable,
    Code.CUDA_ERROR_DEVICE_NOT_LICENSED: DeviceUnavailable,
    Code.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: DeviceUnavailable,
    Code.CUDA_ERROR_SYSTEM_NOT_READY: DeviceUnavailable,
    Code.CUDA_ERROR_STUB_LIBRARY: DeviceUnavailable,
    Code.CUDA_ERROR_ECC_UNCORRECTABLE: DeviceLost,
    Code.CUDA_ERROR_NVLINK_UNCORRECTABLE: DeviceLost,
}
NAMED |= {
    code: DeviceLost
    for name, code in Code.__members__.items()
    if name in FAULTS and FAULTS[name].scope is Scope.CONTEXT
}
"""Exceptions of error codes; all other codes raise `DeviceError`."""
ADDRESSES = 1 << 40
"""Integers from here on are addresses: messages show them in hexadecimal."""


def call(function: Callable[..., Any], *values: Any) -> Any:
    """Call a function of CUDA's driver; return its results without the code: None, one value, or a
    tuple.

    Raises `OutOfMemory`, `DeviceUnavailable`, `DeviceLost` or `DeviceError`, by the error code
    (`NAMED`).
    """
    code, *found = answer(function, *values)
    if code:
        raise refusal(function.__name__, values, code)
    return found[0] if len(found) == 1 else tuple(found) or None


def answer(function: Callable[..., Any], *values: Any) -> tuple[Any, ...]:
    """Error code of a driver's function, followed by its results. Raises `DeviceError` if
    cuda-python cannot make the call.
    """
    try:
        return tuple(function(*values))
    except (RuntimeError, ValueError) as error:
        # Of cuda-python: a function that this driver lacks, or a code that it does not know.
        raise DeviceError(f"{_call(function.__name__, values)}: {error}") from error


def refusal(name: str, values: tuple[Any, ...], code: Any) -> VmmError:
    """Exception for a call that the driver refused with `code`."""
    return NAMED.get(code, DeviceError)(f"{_call(name, values)}: {_words(code)}")


def started() -> None:
    """Load the driver and start it. Raises `DeviceUnavailable` if there is none."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as nvidia-smi counts
    try:
        (code,) = cu.cuInit(0)
    except RuntimeError:  # from the loader of cuda-python
        raise DeviceUnavailable("no NVIDIA driver (libcuda.so.1) can be loaded") from None
    except ValueError as error:  # a code that it does not know
        raise DeviceUnavailable(f"cuInit(0): {error}") from error
    if code:
        raise refusal("cuInit", (0,), code)


def _call(name: str, values: tuple[Any, ...]) -> str:
    return f"{name}({', '.join(_shown(value) for value in values)})"


def _words(code: Any) -> str:
    name = getattr(code, "name", str(code))
    failed, text = cu.cuGetErrorString(code)
    return name if failed or not text else f"{name}, {text.decode(errors='replace')}"


def _shown(value: Any) -> str:
    """A value for a message: addresses and handles in hexadecimal, sizes as numbers, structures by
    their type.
    """
    if isinstance(value, int):
        return f"{value:#x}" if value >= ADDRESSES else str(value)
    try:
        return f"{type(value).__name__} {int(value):#x}"
    except (TypeError, ValueError):
        return type(value).__name__
