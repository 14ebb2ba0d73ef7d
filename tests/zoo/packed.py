"""Storage formats of quantised matrices in checkpoints: one function per format, which packs a
float matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensors = dict[str, torch.Tensor]
Packer = Callable[[torch.Tensor], Tensors]
"""From a matrix [out, in] to the checkpoint's tensors, by the end of their names."""

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def fp8(matrix: torch.Tensor) -> Tensors:
    """Pack a matrix as 8-bit floats with one scale."""
    scale = matrix.abs().max().float() / 448
    return {"weight": (matrix.float() / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


def fp8_blocks(matrix: torch.Tensor) -> Tensors:
    """Pack a matrix as 8-bit floats with a scale for each 128 by 128 block, as DeepSeek stores
    them.
    """
    rows, columns = (-(-n // 128) for n in matrix.shape)
    scales = torch.ones(rows, columns)
    scaled = matrix.float().clone()
    for i in range(rows):
        for j in range(columns):
            block = scaled[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]
            scales[i, j] = block.abs().max() / 448
            block /= scales[i, j]
    return {"weight": scaled.to(torch.float8_e4m3fn), "weight_scale_inv": scales}


def int8(matrix: torch.Tensor) -> Tensors:
    """Pack a matrix as 8-bit integers with a scale for each row."""
    scale = matrix.float().abs().amax(1, keepdim=True) / 127
    return {"weight": (matrix.float() / scale).round().to(torch.int8), "weight_scale": scale}


def packed4(matrix: torch.Tensor) -> Tensors:
    """Pack a matrix as compressed-tensors' 4-bit integers, eight per word along the rows."""
    values, scale = _grouped(matrix)
    return {
        "weight_packed": _words(values + 8),
        "weight_scale": scale.to(matrix.dtype),
        "weight_shape": torch.tensor(matrix.shape),
    }


def gptq(matrix: torch.Tensor) -> Tensors:
    """Pack a matrix as 4-bit integers, eight per word along the inputs; zero points are stored one
    too small.
    """
    values, scale = _grouped(matrix)
    groups, rows = scale.shape[1], matrix.shape[0]
    return {
        "qweight": _words(values + 8).t().contiguous(),
        "qzeros": _words(torch.full((groups, rows), 7)),
        "scales": scale.t().contiguous().half(),
        "g_idx": torch.arange(matrix.shape[1], dtype=torch.int32) // GROUP,
    }


def awq(matrix: torch.Tensor) -> Tensors:
    """Pack a matrix as 4-bit integers, eight per word along the outputs, in AWQ's order."""
    values, scale = _grouped(matrix)
    zeros = torch.full((scale.shape[1], matrix.shape[0]), 8)
    return {
        "qweight": _words(_in_awq_order(values.t() + 8)),
        "qzeros": _words(_in_awq_order(zeros)),
        "scales": scale.t().contiguous().half(),
    }


def mxfp4(matrix: torch.Tensor) -> Tensors:
    """Pack a matrix as 4-bit floats, two per byte, with a shared exponent for 32; any leading
    dimensions.
    """
    *shape, inputs = matrix.shape
    size = (*shape, inputs // 32, 16)
    return {
        "blocks": torch.randint(0, 256, size, dtype=torch.uint8),
        "scales": torch.randint(121, 124, size[:-1], dtype=torch.uint8),
    }


def _grouped(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers from -8 to 7 [out, in], and scales [out, groups]."""
    groups = matrix.float().reshape(matrix.shape[0], -1, GROUP)
    scale = groups.abs().amax(2, keepdim=True) / 7
    return (groups / scale).round().clamp(-8, 7).reshape(matrix.shape).long(), scale.squeeze(2)


def _words(values: torch.Tensor) -> torch.Tensor:
    """Words of int32, each with eight neighbours of 4 bits, the first one lowest."""
    shifts = torch.arange(0, 32, 4)
    words = (values.reshape(values.shape[0], -1, 8).long() << shifts).sum(2)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _in_awq_order(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(values.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(values.shape)
