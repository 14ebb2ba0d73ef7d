"""Modules, libraries and environment variables that affect how an engine computes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("mirage", "scheduler", "vmm")
"""Packages whose modules an engine imports; all modules of each count."""
LIBRARIES = (("vllm", "_version.py"), ("torch", "version.py"))
"""For each library, a file that differs from version to version."""
MATTERS = (
    *("VLLM_", "OMP_", "CUDA_", "TORCH", "NVIDIA_", "HF_", "LD_", "PYTHON", "MKL_"),
    *("ATEN_", "CUBLAS", "CUDNN_", "DNNL_", "FLASHINFER_", "GOMP_", "KMP_", "ONEDNN_", "PYTORCH_"),
    "TRITON_",
)
"""Prefixes of environment variables that affect how an engine computes."""
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
"""Variables that name the folders in which libraries inside an engine keep their caches."""

Stamp = tuple[str, int, int]
"""Path of a file, its bytes, and its modification time in nanoseconds."""


def modules() -> list[Stamp]:
    """Stamps of all modules of `PACKAGES`."""
    return [
        stamp
        for name in PACKAGES
        for folder in _folders(name)
        for stamp in sorted(stamps(folder, "**/*.py"))
    ]


def versions() -> list[Stamp]:
    """Stamps of the files that contain the versions of `LIBRARIES`."""
    found = ((folder, file) for name, file in LIBRARIES for folder in _folders(name))
    return [stamp for folder, file in found for stamp in stamps(folder, file)]


def telling(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables of `environment` that affect how an engine computes, sorted by name."""
    return sorted((name, text) for name, text in environment.items() if name.startswith(MATTERS))


def stamps(folder: Path, pattern: str) -> Iterator[Stamp]:
    """Stamp of each file of `folder` that matches `pattern`."""
    for path in folder.glob(pattern):
        try:
            found = path.stat()
        except OSError:  # it went just now
            continue
        yield os.fspath(path), found.st_size, found.st_mtime_ns


def _folders(package: str) -> list[Path]:
    spec = find_spec(package)
    return [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]
