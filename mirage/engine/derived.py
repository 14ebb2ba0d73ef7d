"""Values that a model holds besides its parameters, and those that loading its weights left in it.

A model whose weights MIRAGE put in place must hold the same as one that vLLM loaded: the same other
tensors, numbers and flags from loading or processing. They are compared by content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from mirage.engine.content import digest
from mirage.engine.tensors import held, helps, storage_of

NUMBERS = (bool, float)
"""Types of numbers that are compared; integers are left out, because they may be addresses and
handles of kernels."""


def seen(model: torch.nn.Module, known: Collection[int] = ()) -> dict[str, str]:
    """Return the contents of the model's tensors, numbers and flags, by name. Parameters are left
    out, tensors without memory, those that may be handles of kernels, and tensors whose storages
    are in `known`."""
    found: dict[str, str] = {}
    digests: dict[tuple[int, ...], str] = {}
    for name, module in model.named_modules():
        for number, tensor in enumerate(_tensors(module, known)):
            found[f"{name}#{number}"] = _said(tensor, digests)
        found |= {f"{name}.{key}": repr(value) for key, value in _numbers(module)}
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Return the values of `after` that are new or differ from `before`. A tensor is left out if
    any tensor of `before` has the same content, whatever its name."""
    contents = {value for name, value in before.items() if "#" in name}
    return {
        name: value
        for name, value in after.items()
        if before.get(name) != value and ("#" not in name or value not in contents)
    }


def _tensors(module: torch.nn.Module, known: Collection[int]) -> Iterator[torch.Tensor]:
    for tensor in held(module):
        parameter = isinstance(tensor, torch.nn.Parameter)
        if not (parameter or tensor.is_meta or storage_of(tensor) in known or _handle(tensor)):
            yield tensor


def _handle(tensor: torch.Tensor) -> bool:
    """True if the tensor may be the address of a kernel's own data, as for oneDNN on a CPU."""
    return tensor.dtype is torch.int64 and tensor.numel() == 1


def _said(tensor: torch.Tensor, digests: dict[tuple[int, ...], str]) -> str:
    where = (storage_of(tensor), tensor.storage_offset(), *tensor.shape, *tensor.stride())
    if where not in digests:
        digests[where] = f"{tuple(tensor.shape)} {tensor.dtype} {digest(tensor).hex()}"
    return digests[where]


def _numbers(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the numbers and flags of a module, and of objects that compute for it."""
    for key, value in sorted(vars(module).items()):
        if isinstance(value, NUMBERS):
            yield key, value
        elif helps(value):
            own = sorted(vars(value).items())
            yield from ((f"{key}.{n}", v) for n, v in own if isinstance(v, NUMBERS))
