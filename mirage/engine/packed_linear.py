"""Linear layers of bfloat16 whose weights are packed for a CPU's kernels and can move all the same.

vLLM packs such a weight for oneDNN, which keeps it in memory of its own, and only small ones, on
AMX, for sgl's kernels. What sgl packs is a tensor like any other, as large as the weight. So layers
that move get it, at any size and wherever the processor multiplies bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.platforms import current_platform

from mirage.processors import TILE_COLUMNS, TILE_ROWS

PACK = "convert_weight_packed"


def packs(rows: int, columns: int, dtype: torch.dtype) -> bool:
    """Return True if a weight [rows, columns] of `dtype` is packed on this processor."""
    return (
        dtype is torch.bfloat16
        and rows % TILE_ROWS == 0
        and columns % TILE_COLUMNS == 0
        and current_platform.is_cpu()
        and torch.cpu._is_avx512_bf16_supported()
        and hasattr(torch.ops._C, PACK)
    )


class PackedLinearMethod(UnquantizedLinearMethod):
    """Method of a linear layer that replaces the loaded weight by the packed one.

    The weight stays the parameter it was, of shape [1, rows, columns]: other code that multiplied
    by it would be refused, instead of computing with values in another order.
    """

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the weight if it can be packed here; otherwise leave it to vLLM."""
        weight = layer.weight
        rows, columns = weight.shape
        if weight.is_meta or not packs(rows, columns, weight.dtype):
            super().process_weights_after_loading(layer)
            return
        weight.data = torch.ops._C.convert_weight_packed(weight).unsqueeze(0)
        layer.cpu_linear = product


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return `x` times a packed weight [1, rows, columns], plus `bias`, which the kernel takes in
    float32."""
    plus = None if bias is None else bias.float()
    return ops.weight_packed_linear_cpu(x, weight[0], weight.shape[1], plus)
