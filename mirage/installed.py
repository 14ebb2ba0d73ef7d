"""Surroundings of an engine that decide how it computes: modules, libraries, and variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("mirage", "scheduler", "vmm")
"""Packages of which an engine imports most; each counts with all its modules."""
LIBRARIES = (("vllm", "_version.py"), ("torch", "version.py"))
"""Files that are other ones after another version was installed."""
MATTERS = (
    *("VLLM_", "OMP_", "CUDA_", "TORCH", "NVIDIA_", "HF_", "LD_", "PYTHON", "MKL_"),
    *("ATEN_", "CUBLAS", "CUDNN_", "DNNL_", "FLASHINFER_", "GOMP_", "KMP_", "ONEDNN_", "PYTORCH_"),
    "TRITON_",
)
"""Beginnings of variables that say how an engine computes."""
CACHES = (
    "VLLM_CACHE_ROOT",
    "VLLM_CONFIG_ROOT",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "MPLCONFIGDIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "FLASHINFER_WORKSPACE_BASE",
)
"""Variables that say where the libraries inside an engine keep what they may need again."""

Stamp = tuple[str, int, int]
"""Path, bytes, and time of change in nanoseconds of a file."""


def modules() -> list[Stamp]:
    """Stamps of all our modules."""
    return [
        stamp
        for name in PACKAGES
        for folder in _folders(name)
        for stamp in sorted(stamps(folder, "**/*.py"))
    ]


def versions() -> list[Stamp]:
    """Files that tell the versions of the libraries."""
    found = ((folder, file) for name, file in LIBRARIES for folder in _folders(name))
    return [stamp for folder, file in found for stamp in stamps(folder, file)]


def telling(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that say how an engine computes, in order."""
    return sorted((name, text) for name, text in environment.items() if name.startswith(MATTERS))


def stamps(folder: Path, pattern: str) -> Iterator[Stamp]:
    """Stamp of each file there."""
    for path in folder.glob(pattern):
        try:
            found = path.stat()
        except OSError:  # it went just now
            continue
        yield os.fspath(path), found.st_size, found.st_mtime_ns


def _folders(package: str) -> list[Path]:
    spec = find_spec(package)
    return [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]
