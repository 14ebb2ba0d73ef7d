"""Checksums of tensors, computed on their device: a step's outputs are gigabytes, too much to
copy."""

from __future__ import annotations

import zlib
from functools import cache

import torch

ROW = 1 << 16
"""Words (of one or two bytes) in a row. The sum of their products with weights of 31 bits fits into
64 bits."""
CHUNK = 16 * ROW
"""Words that are summed at a time, because each becomes an integer of 8 bytes."""


def checksum(tensor: torch.Tensor) -> int:
    """Return a checksum of the tensor's bytes, so that NaN equals NaN. It does not depend on
    strides; it may depend on the device."""
    flat = tensor.detach().contiguous().reshape(-1)
    told = flat if flat.device.type == "cpu" else weighted_sums(flat).cpu()
    return zlib.crc32(told.view(torch.uint8).numpy().data)


def weighted_sums(flat: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of each row of words, of shape (rows,); the last row of a chunk is
    the words that remain.

    If one word changes, its row's sum changes. If two change, the sum changes except in one case
    of 2^30.
    """
    words = flat.view(torch.int16 if flat.element_size() % 2 == 0 else torch.uint8)
    weights = _weights(flat.device)
    sums = []
    for start in range(0, len(words), CHUNK):
        chunk = words[start : start + CHUNK]
        rows = chunk[: len(chunk) // ROW * ROW].view(-1, ROW)
        rest = chunk[rows.numel() :]
        sums += [(rows * weights).sum(1), (rest * weights[: len(rest)]).sum(0, keepdim=True)]
    return torch.cat(sums) if sums else torch.zeros(0, dtype=torch.int64)


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Return numbers between 1 and 2^31, the same in each process."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 1 << 31, (ROW,), generator=generator).to(device)
