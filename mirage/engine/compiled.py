"""Steps compiled by torch.compile, with layers that stream.

vLLM compiles the computation between two attentions, and calls attention as it is. Code of ours
that waits for a layer runs there, where nothing is compiled: see `pieces`. Steps of a model that
cannot be divided like that are not compiled, because a hook around a layer would be compiled away.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper


def compiling(model: torch.nn.Module) -> list[Any]:
    """Return the parts of `model` that vLLM will compile when they are first called, or has
    compiled."""
    return [
        part
        for part in model.modules()
        if isinstance(part, TorchCompileWithNoGuardsWrapper)
        and not getattr(part, "do_not_compile", True)
    ]


@contextmanager
def eagerly(model: torch.nn.Module) -> Iterator[None]:
    """Context in which `model` is computed without compilation."""
    parts = compiling(model)
    _forbid(parts, True)
    try:
        yield
    finally:
        _forbid(parts, False)


def stay_eager(model: torch.nn.Module) -> None:
    """Never compile `model`, and do not run parts of it that are compiled already."""
    _forbid(compiling(model), True)


def _forbid(parts: list[Any], forbidden: bool) -> None:
    for part in parts:
        part.do_not_compile = forbidden


class NotHashed(UserDict[str, Any]):
    """Our part of vLLM's configuration, left out of the hash of the configuration.

    vLLM names the folder of compiled code by that hash. A grant or the path of a socket in it would
    make every start compile anew.
    """

    def compute_hash(self) -> str:
        """Return the same value for all settings."""
        return "mirage"
