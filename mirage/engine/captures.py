"""A capture of a CUDA graph that failed, seen from torch's allocator. Imports nothing of vLLM."""

from __future__ import annotations

from contextlib import suppress

import torch


def end_allocation(device: torch.device, pools: set[tuple[int, int]]) -> None:
    """Tell torch's allocator that no capture into `pools` is under way.

    A capture that failed does not: as long as the allocator believes in it, memory that several
    streams used is never free again.
    """
    for pool in pools:
        with suppress(RuntimeError):  # most captures have ended as they should
            torch._C._cuda_endAllocateToPool(device.index or 0, pool)
