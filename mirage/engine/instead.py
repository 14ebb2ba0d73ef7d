"""Module whose forward function is replaced for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def instead(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Context in which `module` computes by `forward`; afterwards it computes as before."""
    before, own = module.forward, "forward" in vars(module)
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own:
            module.forward = before
