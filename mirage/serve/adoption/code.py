"""Fingerprints by which an engine that runs is known to be what would be started now."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from mirage.protocol import PROTOCOL_VERSION

PACKAGES = ("mirage", "scheduler", "vmm")
"""Packages of which an engine imports most; each counts with all its modules."""
LIBRARIES = (("vllm", "_version.py"), ("torch", "version.py"))
"""Files that are other ones after another version was installed."""
MATTERS = ("VLLM_", "OMP_", "CUDA_", "TORCH", "NVIDIA_", "HF_", "LD_", "PYTHON", "MKL_")
"""Beginnings of variables that say how an engine computes."""


def code_of_engines() -> str:
    """Hash of the interpreter, the protocol, our modules and the libraries' versions."""
    files = [*_modules(), *_versions()]
    return _hash([sys.executable, sys.version, PROTOCOL_VERSION, files])


def order_of(command: list[str], environment: Mapping[str, str], model: Path) -> str:
    """Hash of a command line, the variables that matter, and the files of the model's folder."""
    told = {name: text for name, text in environment.items() if name.startswith(MATTERS)}
    return _hash([command, sorted(told.items()), sorted(_stamps(model, "*"))])


def _modules() -> Iterator[tuple[str, int, int]]:
    for name in PACKAGES:
        spec = find_spec(name)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            yield from sorted(_stamps(Path(folder), "**/*.py"))


def _versions() -> Iterator[tuple[str, int, int]]:
    for name, file in LIBRARIES:
        spec = find_spec(name)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            yield from _stamps(Path(folder), file)


def _stamps(folder: Path, pattern: str) -> Iterator[tuple[str, int, int]]:
    """Name, bytes and time of change of each file there."""
    for path in folder.glob(pattern):
        try:
            found = path.stat()
        except OSError:  # it went just now
            continue
        yield os.fspath(path), found.st_size, found.st_mtime_ns


def _hash(told: object) -> str:
    return sha256(json.dumps(told).encode(errors="surrogateescape")).hexdigest()
