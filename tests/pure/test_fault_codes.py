"""Faults of a GPU by code: what ends a process, and what the device."""

from __future__ import annotations

import pytest

from vmm import faults
from vmm.driver import DeviceError, DeviceLost, DeviceUnavailable
from vmm.faults import FAULTS, Scope

pytestmark = pytest.mark.pure


class AcceleratorError(RuntimeError):
    """Error like torch's class of this name, which carries the CUDA runtime's error code."""

    def __init__(self, words: str, error_code: int) -> None:
        super().__init__(words)
        self.error_code = error_code


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("ECC_UNCORRECTABLE", "device"),
        ("NVLINK_UNCORRECTABLE", "device"),
        ("DEVICE_UNAVAILABLE", "device"),
        ("NO_DEVICE", "device"),
        ("SYSTEM_NOT_READY", "device"),
        ("ILLEGAL_ADDRESS", "context"),
        ("LAUNCH_FAILED", "context"),
        ("HARDWARE_STACK_ERROR", "context"),
        ("CONTAINED", "context"),
        ("ASSERT", "context"),
        ("UNKNOWN", "context"),
    ],
)
def test_a_code_ends_a_process_or_the_device(name: str, scope: str) -> None:
    fault = FAULTS[f"CUDA_ERROR_{name}"]
    assert fault.scope is Scope(scope)
    assert faults.of(DeviceError(f"cuMemCreate(1): CUDA_ERROR_{name}, whatever it says")) == fault
    assert faults.of(AcceleratorError("no words", fault.number)) == fault
    if fault.words:
        assert faults.of(RuntimeError(f"CUDA error: {fault.words}\nCUDA kernel errors")) == fault
        assert faults.of(RuntimeError(f"Triton Error [CUDA]: {fault.words}")) == fault


@pytest.mark.parametrize(
    "error",
    [
        DeviceError("cuMemMap(1): CUDA_ERROR_INVALID_VALUE, invalid argument"),
        DeviceError("cuMemCreate(1): CUDA_ERROR_OUT_OF_MEMORY, out of memory"),
        AcceleratorError("CUDA error: too many resources requested for launch", 701),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        ValueError("the prompt says: uncorrectable ECC error encountered"),
        ZeroDivisionError(),
    ],
)
def test_a_refused_call_is_no_fault(error: Exception) -> None:
    assert faults.of(error) is None


def test_the_device_is_found_behind_other_errors() -> None:
    try:
        try:
            raise DeviceUnavailable("cuMemUnmap(1): CUDA_ERROR_NO_DEVICE, no device")
        except DeviceUnavailable:
            raise DeviceLost("cuStreamSynchronize(1): CUDA_ERROR_LAUNCH_FAILED") from None
    except DeviceLost as error:
        assert faults.of(error) == FAULTS["CUDA_ERROR_NO_DEVICE"]


def test_torch_without_a_device_is_no_device() -> None:
    error = RuntimeError("No CUDA GPUs are available")
    assert faults.of(error) == FAULTS["CUDA_ERROR_NO_DEVICE"]
