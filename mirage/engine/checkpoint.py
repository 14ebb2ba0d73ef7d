"""Check of a checkpoint against its model: vLLM loads its headers into the model without memory.

vLLM's loader and the model's own function that loads weights decide. They are given tensors without
memory, so nothing large is read. Some of these functions look at values; then there is no result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import torch
from safetensors import safe_open
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader import default_loader, get_model_loader

SMALL = 256
"""Largest number of elements of a tensor that is read, since loaders look at the values of scales
and shapes."""
NUMPY = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Types of stored tensors that numpy has too."""
DTYPES = NUMPY | {
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
DIFFERENT = ("must match", "size", "shape")
"""Words in torch's errors about different dimensions."""

MATRICES = (LinearBase, VocabParallelEmbedding)

Weights = Iterator[tuple[str, torch.Tensor]]


class Unreadable(Exception):
    """Error: the files cannot be read; the message says why."""


class Last:
    """Name and shape of the tensor that the model was given last, for error messages."""

    name: str = ""
    shape: tuple[int, ...] = ()


def refusal(config: Any, model: Any) -> str | None:
    """Return the reason why vLLM could not load `model` from its folder; None if it could, or if
    that is not known.

    `model` is as vLLM built it; afterwards it is as if its weights were loaded. vLLM's functions
    that read files are replaced in this process for good, which therefore loads no weights
    afterwards.
    """
    loader = get_model_loader(config.load_config)
    if type(loader) is not default_loader.DefaultModelLoader:
        return None  # made up, or in a format of its own
    last = Last()
    default_loader.safetensors_weights_iterator = lambda hf_weights_files, *_, **__: _headers(
        hf_weights_files, last
    )
    default_loader.pt_weights_iterator = lambda hf_weights_files, *_, **__: _pickles(
        hf_weights_files, last
    )
    weights = _readable(loader.get_all_weights(config.model_config, model))
    try:
        loaded = model.load_weights(weights)
    except Unreadable as error:
        return f"vLLM cannot read its weights: {error}"
    except Exception as error:
        return _mismatch(error, last)
    if loaded is None or config.model_config.quantization is not None:
        return None
    if not (lacking := _lacking(model, loaded)):
        return None
    return (
        f"its files lack {len(lacking)} of the model's tensors, such as {lacking[0]!r}: fetch the "
        "others, or the config.json that belongs to them"
    )


def _readable(weights: Weights) -> Weights:
    """Yield all of `weights`. Raise `Unreadable` for errors of the files, as opposed to errors of
    the model."""
    try:
        yield from weights
    except Exception as error:
        raise Unreadable(str(error).strip() or type(error).__name__) from error


def _headers(files: Iterable[str], last: Last) -> Weights:
    for path in files:
        # For torch it would be mapped as if it were written to, which takes memory of its size.
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118
                piece = file.get_slice(name)
                last.name, last.shape = name, tuple(piece.get_shape())
                if prod(last.shape) <= SMALL and piece.get_dtype() in NUMPY:
                    yield name, torch.from_numpy(file.get_tensor(name))
                else:
                    kind = DTYPES.get(piece.get_dtype(), torch.uint8)
                    yield name, torch.empty(last.shape, dtype=kind, device="meta")


def _pickles(files: Iterable[str], last: Last) -> Weights:
    for path in files:
        tensors = torch.load(path, map_location="meta", weights_only=True)
        for name, tensor in tensors.items():
            last.name, last.shape = name, tuple(tensor.shape)
            yield name, tensor


def _lacking(model: torch.nn.Module, loaded: set[str]) -> list[str]:
    """Return the names of parameters that a plain checkpoint has and `loaded` lacks.

    vLLM itself does not check parameters that a module processes after loading, those of each
    linear layer included, and would serve whatever is in their memory. Some models do not report
    that they loaded those: such a parameter counts as lacking only if the model reported the one
    of the same name in another layer.
    """
    names: dict[int, list[str]] = {}
    linear: set[int] = set()
    for prefix, module in model.named_modules(remove_duplicate=False):
        method = getattr(module, "quant_method", None)
        if isinstance(method, BaseKVCacheMethod):
            continue
        processed = hasattr(method, "process_weights_after_loading")
        for name, parameter in module.named_parameters(recurse=False):
            if processed and (name != "weight" or not isinstance(module, MATRICES)):
                continue
            names.setdefault(id(parameter), []).append(f"{prefix}.{name}" if prefix else name)
            if isinstance(module, LinearBase):
                linear.add(id(parameter))
    told = {_anywhere(name) for name in loaded}
    return sorted(
        known[0]
        for key, known in names.items()
        if not loaded.intersection(known) and (key not in linear or _anywhere(known[0]) in told)
    )


def _anywhere(name: str) -> str:
    """Return a tensor's name with the number of its layer replaced."""
    return re.sub(r"\d+", "#", name)


def _mismatch(error: Exception, last: Last) -> str | None:
    """Return the refusal for an `error` of loading; None if the cause may be that the tensors have
    no values here."""
    words = str(error).strip()
    of_sizes = isinstance(error, RuntimeError) and any(word in words for word in DIFFERENT)
    if "meta" in words or not (
        of_sizes or isinstance(error, (ValueError, AssertionError, LookupError))
    ):
        return None
    if not last.name:
        return f"vLLM cannot load its weights: {words}"
    return (
        f"tensor {last.name!r} of shape {list(last.shape)} does not fit the model that its "
        f"config.json describes ({words or type(error).__name__}): fetch both again"
    )
