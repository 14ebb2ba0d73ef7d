"""Steps that torch.compile has made, beside layers that stream.

vLLM compiles what a step computes between two attentions, and calls attention as it is. Code of
ours that waits for a layer stands there, where no compiler looks: see `pieces`. Steps of a model
that cannot be told apart like that are not compiled, for a hook around a layer would be compiled
away.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper


def compiling(model: torch.nn.Module) -> list[Any]:
    """The parts of `model` that vLLM will compile when they are first called, or has."""
    return [
        part
        for part in model.modules()
        if isinstance(part, TorchCompileWithNoGuardsWrapper)
        and not getattr(part, "do_not_compile", True)
    ]


@contextmanager
def eagerly(model: torch.nn.Module) -> Iterator[None]:
    """Compute `model` as it is written, and compile nothing."""
    parts = compiling(model)
    _forbid(parts, True)
    try:
        yield
    finally:
        _forbid(parts, False)


def stay_eager(model: torch.nn.Module) -> None:
    """Never compile `model`, and run nothing of it that was compiled."""
    _forbid(compiling(model), True)


def _forbid(parts: list[Any], forbidden: bool) -> None:
    for part in parts:
        part.do_not_compile = forbidden


class NotHashed(UserDict[str, Any]):
    """Our part of vLLM's configuration, which compiled code does not depend on.

    vLLM names the folder of what it compiles by a hash of its configuration. A grant or a socket's
    path in there would make every start compile anew.
    """

    def compute_hash(self) -> str:
        """The same for all."""
        return "mirage"
