"""A fresh process that uses the GPU: exit code 0 if that works, else one line and 1.

    python -m mirage.serve.device_answers INDEX

One page of memory is made, mapped, written by the device and waited for. A device whose memory is
full answers, too.
"""

from __future__ import annotations

import sys

from vmm.driver import OutOfMemory, VmmError


def use(index: int) -> None:
    """Raises `DeviceError` if the device cannot be used."""
    from vmm.cuda import CudaDriver

    with CudaDriver(device=index) as gpu:
        address = gpu.reserve(gpu.page_bytes)
        gpu.map(address, gpu.create(1))
        gpu.fill(address, 0, gpu.page_bytes)


def main(index: int) -> None:
    """Ends the process."""
    try:
        use(index)
    except OutOfMemory:
        return
    except VmmError as error:
        print(error)
        sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
