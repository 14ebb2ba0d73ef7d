"""Files of a wheel that a machine with one GPU architecture needs, unpacked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from zipfile import ZipFile

from benchmarks.gpu.fatbinaries import slimmed

KERNELS = "vllm/*.so"
"""Libraries of which one architecture's code is kept. Those of other packages were not tried."""

PACKAGES = {
    "flashinfer*": "vLLM has attention and sampling without it; rows of FLASHINFER are skipped",
    "nvidia-cutlass-dsl*": "compiles kernels of FlashInfer, Quack and others",
    "nvidia-cudnn-frontend": "attention of encoders, by FlashInfer",
    "quack-kernels": "kernels for Blackwell and for training",
    "tilelang": "kernels of DeepSeek's models",
    "tokenspeed-mla": "attention of DeepSeek's models",
    "humming-kernels": "quantized weights",
    "fastsafetensors": "another loader of weights",
    "instanttensor": "another loader of weights",
    "pynvvideocodec": "videos",
    "opencv-python-headless": "pictures and videos",
    "pycountry": "languages of audio",
    "supervisor": "another way to run a server",
    "cryptography": "signed tokens; no row has a user",
    "grpcio": "traces, sent by gRPC",
    "fastapi-cli": "a command that vLLM does not run",
    "fastar": "that command's uploads",
    "cuda-core": "of cuda-python; we call cuda-bindings",
    "matplotlib": "studies; no row",
    "optuna": "studies; no row",
    "scipy": "studies; no row",
}
"""Packages that no row needs, and why. vLLM imports them late or guards the import."""

FILES = {
    "vllm/vllm-rs": "a server in Rust, which is not started",
    "vllm/third_party/deep_gemm/*": "FP8 of DeepSeek's models",
    "vllm/third_party/fmha_sm100/*": "attention for Blackwell, compiled on the spot",
    "vllm/_deepselect_C.*": "attention of DeepSeek's models",
    "vllm/_flashkda_C.*": "attention of Kimi's models",
    "vllm/_flashmla*": "attention of DeepSeek's models",
    "vllm/_qutlass_C.*": "quantized weights, for Blackwell",
    "*/include/*": "headers for compilers",
    "mistral_common/data/*": "tokenizers of Mistral's models",
    "*.dist-info/RECORD": "for pip, to remove the package",
}
"""Files that no row needs, by their place in a folder of packages, and why."""


@dataclass(frozen=True)
class Unpacked:
    """A file in a folder of packages: its path, permissions and bytes."""

    place: str
    mode: int
    content: bytes


def unpacked(wheel: Path, compute: int) -> Iterator[Unpacked]:
    """Files of `wheel` that are needed on a GPU of capability `compute` (90 is 9.0), with kernels
    for that one only.
    """
    with ZipFile(wheel) as file:
        for info in file.infolist():
            place = placed(info.filename)
            if not place or info.is_dir() or any(fnmatchcase(place, one) for one in FILES):
                continue
            content: bytes | None = file.read(info)
            if content is not None and fnmatchcase(place, KERNELS):
                content = slimmed(content, compute)
            if content is not None:
                yield Unpacked(place, info.external_attr >> 16 & 0o777 or 0o644, content)


def placed(name: str) -> str | None:
    """Path of a wheel's file in a folder of packages; None for scripts, manuals and headers."""
    if not (found := re.fullmatch(r"[^/]+\.data/([^/]+)/(.+)", name)):
        return name
    return found[2] if found[1] in ("purelib", "platlib") else None
