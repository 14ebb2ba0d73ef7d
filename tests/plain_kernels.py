"""Plain vLLM with the kernels that our engines have for linear layers, whatever the processor.

vLLM packs matrices for oneDNN, on AMX small ones for sgl, on AMD's Zen for zentorch, and each rounds
in its own way. One function chooses between them, and here it leaves every matrix as it is.
"""

from __future__ import annotations

import sys
from typing import Any


def keep_plain() -> None:
    """From now on, in this process. Says on stderr what it has switched off."""
    import torch
    from vllm.model_executor.layers import utils

    packs = utils.dispatch_cpu_unquantized_gemm
    if packs.__module__ == __name__:
        return

    def plainly(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim != 2:  # a convolution's copies are ours as well
            packs(layer, remove_weight)
            return
        layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, weight, bias)

    utils.dispatch_cpu_unquantized_gemm = plainly
    print(
        "plain kernels: utils.dispatch_cpu_unquantized_gemm packs no matrix (oneDNN, sgl, zentorch)",
        file=sys.stderr,
    )
