"""What tensors take on the device, in bytes."""

from __future__ import annotations

from collections.abc import Container, Iterable

import torch

ALIGN, ALIGN_ON_GPU = 64, 512
"""Where parameters start, as allocators have it: kernels are chosen by that."""


def aligned(nbytes: int, align: int) -> int:
    """`nbytes` rounded up to a multiple of `align`."""
    return -(-nbytes // align) * align


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element; strided views keep their gaps."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def layer_bytes(parameters: Iterable[torch.Tensor]) -> int:
    """Bytes of one layer's parameters, one after the other, each aligned as allocators do."""
    unique = {id(p): p for p in parameters}.values()
    return sum(aligned(span_bytes(p), ALIGN_ON_GPU if p.is_cuda else ALIGN) for p in unique)


def held_bytes(models: Iterable[torch.nn.Module], moving: Container[int]) -> int:
    """Bytes of all parameters and buffers but those parameters whose ids are in `moving`."""
    held = {}
    for model in models:
        held |= {id(t): t for t in model.parameters() if id(t) not in moving}
        held |= {id(t): t for t in model.buffers()}
    return sum(aligned(t.numel() * t.element_size(), ALIGN) for t in held.values())
