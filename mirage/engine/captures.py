"""Clean-up of torch's allocator after a failed capture of a CUDA graph. Imports nothing of vLLM."""

from __future__ import annotations

from contextlib import suppress

import torch


def end_allocation(device: torch.device, pools: set[tuple[int, int]]) -> None:
    """Tell torch's allocator that no capture into `pools` is in progress.

    A failed capture does not tell it. Until then the allocator does not free memory that several
    streams used.
    """
    for pool in pools:
        with suppress(RuntimeError):  # most captures have ended as they should
            torch._C._cuda_endAllocateToPool(device.index or 0, pool)
