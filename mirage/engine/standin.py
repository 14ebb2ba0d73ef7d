"""Random numbers as inputs of a model in a step without requests.

vLLM's dummy steps use zeros as inputs, and attention without a KV cache gives zeros or stale
memory. A proof with either would prove little, or compare noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

SEED = 20
IDS, EMBEDS, POSITIONS = "input_ids", "inputs_embeds", "positions"
EMPTY = (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty)
FILLED = (torch.float32, torch.float16, torch.bfloat16)


class Filled(TorchFunctionMode):
    """Torch function mode in which newly allocated tensors of floating-point numbers are filled
    with random numbers."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in EMPTY and made.dtype in FILLED and not made.is_meta:
            _fill(made)
        return made


@contextmanager
def computing(model: torch.nn.Module, vocabulary: int) -> Iterator[list[str]]:
    """Context in which a forward pass of `model` computes over the same random numbers each time:
    as inputs, as outputs of attention, and in tensors that are newly allocated.

    Yields the list of `fed`, which gets the names of the replaced inputs other than positions.
    """
    with ExitStack() as over:
        names = over.enter_context(fed(model, vocabulary))
        for module in model.modules():
            if isinstance(module, AttentionLayerBase):
                over.callback(module.register_forward_hook(_attended).remove)
        over.enter_context(Filled())
        yield names


def _attended(module: Any, args: Any, output: Any) -> Any:
    """Replace the output of an attention by random numbers."""
    if isinstance(output, torch.Tensor) and output.dtype in FILLED:
        _fill(output)
    return output


def _fill(tensor: torch.Tensor) -> None:
    """Fill a tensor with random numbers that do not depend on earlier fills, since kernels may
    allocate more."""
    tensor.normal_(generator=torch.Generator(device=tensor.device).manual_seed(SEED))


@contextmanager
def fed(model: torch.nn.Module, vocabulary: int) -> Iterator[list[str]]:
    """Context in which `model` gets random token ids or embeddings, and positions from 0, the same
    each time. Yields a list to which each forward pass adds the names of the replaced inputs
    other than positions: `IDS`, `EMBEDS` or both."""
    forward: Callable[..., Any] = model.forward
    own = "forward" in vars(model)
    names: list[str] = []

    def feeding(*args: Any, **kwargs: Any) -> Any:
        given = {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        fresh = _random(given, vocabulary)
        names.extend(name for name in fresh if name != POSITIONS)
        return forward(*args, **(kwargs | fresh))

    model.forward = feeding  # type: ignore[method-assign]
    try:
        yield names
    finally:
        del model.forward
        if own:
            model.forward = forward  # type: ignore[method-assign]


def _random(given: dict[str, torch.Tensor], vocabulary: int) -> dict[str, torch.Tensor]:
    """Return random token ids or embeddings, and positions from 0, in the shapes of the given
    tensors."""
    generator = torch.Generator().manual_seed(SEED)
    fresh: dict[str, torch.Tensor] = {}
    if (ids := given.get(IDS)) is not None:
        fresh[IDS] = torch.randint(vocabulary, ids.shape, generator=generator).to(ids)
    if (embeds := given.get(EMBEDS)) is not None:
        fresh[EMBEDS] = torch.randn(embeds.shape, generator=generator).to(embeds)
    if (positions := given.get(POSITIONS)) is not None:
        count = torch.arange(positions.shape[-1]).expand(positions.shape).contiguous()
        fresh[POSITIONS] = count.to(positions)
    return fresh
