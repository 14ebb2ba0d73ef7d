"""Classification of GPU faults by the driver's code: does one process end, or the device? Pure.

Every other code is a refused call: its arguments may have been wrong or too large, and the next
call works. The classes are those of CUDA's documentation. After a fault of a *context*, that
process cannot compute any more, but others can. A fault of the *device* affects every process that
uses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """Extent of a fault: the processes that it ends."""

    CONTEXT = "context"
    """This process's work on the device: the process has to end, and may be started again."""
    DEVICE = "device"
    """The device, for all processes."""


@dataclass(frozen=True)
class Fault:
    """A fault code of CUDA's driver. `words` is CUDA's text, empty if it differs by version."""

    number: int
    name: str
    scope: Scope
    words: str = ""

    def __str__(self) -> str:
        return f"{self.name}, {self.words}" if self.words else self.name


_CONTEXT = {
    # An error that the device contained: the process that met it ends, the others go on.
    (226, "CONTAINED"): "Invalid access of peer GPU memory over nvlink or a hardware error",
    (700, "ILLEGAL_ADDRESS"): "an illegal memory access was encountered",
    (702, "LAUNCH_TIMEOUT"): "the launch timed out and was terminated",
    (709, "CONTEXT_IS_DESTROYED"): "context is destroyed",
    (710, "ASSERT"): "device-side assert triggered",
    # A stack of a kernel that is corrupted or too small; the device is whole.
    (714, "HARDWARE_STACK_ERROR"): "hardware stack error",
    (715, "ILLEGAL_INSTRUCTION"): "an illegal instruction was encountered",
    (716, "MISALIGNED_ADDRESS"): "misaligned address",
    (717, "INVALID_ADDRESS_SPACE"): "operation not supported on global/shared address space",
    (718, "INVALID_PC"): "invalid program counter",
    (719, "LAUNCH_FAILED"): "unspecified launch failure",
    (721, "TENSOR_MEMORY_LEAK"): "",
    (806, "MPS_RPC_FAILURE"): "",
    (810, "MPS_CLIENT_TERMINATED"): "",
    (911, "EXTERNAL_DEVICE"): "",
    # Whatever it is, a device that has fallen off the bus among it: another process has to ask.
    (999, "UNKNOWN"): "unknown error",
}
_DEVICE = {
    (46, "DEVICE_UNAVAILABLE"): "CUDA-capable device(s) is/are busy or unavailable",
    (100, "NO_DEVICE"): "no CUDA-capable device is detected",
    (101, "INVALID_DEVICE"): "invalid device ordinal",
    (102, "DEVICE_NOT_LICENSED"): "device doesn't have valid Grid license",
    (214, "ECC_UNCORRECTABLE"): "uncorrectable ECC error encountered",
    (220, "NVLINK_UNCORRECTABLE"): "uncorrectable NVLink error detected during the execution",
    (802, "SYSTEM_NOT_READY"): "system not yet initialized",
    (803, "SYSTEM_DRIVER_MISMATCH"): (
        "system has unsupported display driver / cuda driver combination"
    ),
}


def _all() -> Iterator[Fault]:
    for scope, codes in ((Scope.CONTEXT, _CONTEXT), (Scope.DEVICE, _DEVICE)):
        for (number, name), words in codes.items():
            yield Fault(number, f"CUDA_ERROR_{name}", scope, words)


FAULTS = {fault.name: fault for fault in _all()}
_BY_NUMBER = {fault.number: fault for fault in FAULTS.values()}
_BY_WORDS = {fault.words: fault for fault in FAULTS.values() if fault.words}
_NAME = re.compile(r"\bCUDA_ERROR_[A-Z_]+\b")
_WORDS = re.compile(
    r"(?:CUDA(?: driver| runtime)? error|Triton Error \[CUDA\]):\s*("
    + "|".join(map(re.escape, _BY_WORDS))
    + ")"
)
"""Messages of torch and Triton that contain CUDA's text of a fault."""
_NONE_LEFT = "No CUDA GPUs are available"
"""torch's message for `CUDA_ERROR_NO_DEVICE`."""


def in_text(text: str) -> Fault | None:
    """The first fault that an error's message names, by the driver's name or CUDA's text; None if
    it names none.
    """
    for name in _NAME.findall(text):
        if name in FAULTS:
            return FAULTS[name]
    if (found := _WORDS.search(text)) is not None:
        return _BY_WORDS[found[1]]
    return FAULTS["CUDA_ERROR_NO_DEVICE"] if _NONE_LEFT in text else None


def of(error: BaseException) -> Fault | None:
    """The fault behind an exception: the first of the device in its chain, else the outermost; None
    if there is none.

    Our own exceptions name the driver's code, torch's have it as `error_code` (CUDA's runtime uses
    the same numbers), and others have it as text.
    """
    found = [fault for one in _chain(error) if (fault := _of_one(one)) is not None]
    devices = (fault for fault in found if fault.scope is Scope.DEVICE)
    return next(devices, found[0] if found else None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _of_one(error: BaseException) -> Fault | None:
    number = getattr(error, "error_code", None)
    known = _BY_NUMBER.get(number) if isinstance(number, int) else None
    return known or in_text(str(error))
