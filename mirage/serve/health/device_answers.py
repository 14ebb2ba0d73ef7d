"""Fresh process that tries to use the GPU: exit code 0 on success, else a line and exit code 1.

    python -m mirage.serve.health.device_answers INDEX

One page of memory is made, mapped, and written by the device. A device whose memory is full counts
as working.
"""

from __future__ import annotations

import sys

from vmm.driver import OutOfMemory, VmmError


def use(index: int) -> None:
    """Use the GPU number `index`. Raises `VmmError` if that fails."""
    from vmm.cuda import CudaDriver

    with CudaDriver(device=index) as gpu:
        address = gpu.reserve(gpu.page_bytes)
        gpu.map(address, gpu.create(1))
        gpu.fill(address, 0, gpu.page_bytes)


def main(index: int) -> None:
    """Use the GPU; on failure print the reason and end the process with exit code 1. Full memory is
    no failure.
    """
    try:
        use(index)
    except OutOfMemory:
        return
    except VmmError as error:
        print(error)
        sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
