"""Checksums of tensors, made where they are: a step's outputs are gigabytes, too many to bring."""

from __future__ import annotations

import zlib
from functools import cache

import torch

ROW = 1 << 16
"""Words of a row. The sum of their products with weights of 31 bits fits into 64 bits."""
CHUNK = 16 * ROW
"""Words that are summed at a time: integers of 8 bytes are made of them."""


def checksum(tensor: torch.Tensor) -> int:
    """Checksum of the bytes, so that NaN equals NaN. Strides do not count, the device may."""
    flat = tensor.detach().contiguous().reshape(-1)
    told = flat if flat.device.type == "cpu" else weighted_sums(flat).cpu()
    return zlib.crc32(told.view(torch.uint8).numpy().data)


def weighted_sums(flat: torch.Tensor) -> torch.Tensor:
    """The weighted sum of each row of words, the last one of what is left (n,).

    A word that changes, changes its row's sum; two that change, but for one case in 2^30.
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
    """Numbers between 1 and 2^31, the same in each process."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 1 << 31, (ROW,), generator=generator).to(device)
