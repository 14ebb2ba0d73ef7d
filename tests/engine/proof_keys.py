"""Child process: keys under which proofs of a model are recorded, each for one changed thing.

python proof_keys.py MODEL OUT   OUT is written as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tiny  # noqa: F401  # its environment counts while vLLM is imported

SAME = (
    *("again", "another place for caches", "another terminal", "another tenant", "another share"),
    "another seed",
)
CHANGES = (
    *("weights", "packing", "no folder", "vllm", "torch", "our code", "code since"),
    *("flags of the processor", "threads", "a variable", "another variable"),
    *("requests", "tokens of a step", "length", "type", "block", "eager"),
    *("page", "pieces", "chunk", "link"),
)
ENGINE = {"max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 256, "block_size": 32}
OTHERS: dict[str, dict[str, Any]] = {
    "requests": {"max_num_seqs": 4},
    "tokens of a step": {"max_num_batched_tokens": 128, "max_model_len": 128},
    "length": {"max_model_len": 256},
    "type": {"dtype": "float32"},
    "block": {"block_size": 64},
    "eager": {"enforce_eager": False},
    "another seed": {"seed": 7},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "another tenant": {"tenant": "u", "control": "/run/c", "keeper": "/run/k", "proofs": "/q"},
    "another share": {"grant_bytes": 1 << 30, "base_blocks": 9},
    "page": {"page": 8192},
    "pieces": {"pieces": True},
    "chunk": {"copy_chunk": 4096},
    "link": {"copy_bytes_per_s": 1e9},
}


def main(model: str, out: str) -> None:
    import torch
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs

    from mirage.engine import identity, proof_records
    from mirage.engine.compiled import NotHashed
    from tests.settings import engine_settings

    def key(changed: dict[str, Any] | None = None, **more: Any) -> str | None:
        given = {"dtype": "bfloat16", "enforce_eager": True, "skip_tokenizer_init": True}
        args = AsyncEngineArgs(model=model, **given | ENGINE | (changed or {}))
        config = args.create_engine_config()
        config.additional_config = NotHashed()
        ours = {"base_blocks": 4, "proofs": "/p"}
        return proof_records.key_of(config, engine_settings(**ours | more))

    def told(text: str) -> Path:
        file = Path(out).with_name("cpuinfo")
        file.write_text(text)
        return file

    def among(name: str, text: str) -> Any:
        return patch.dict(os.environ, {name: text})

    packs = identity.packs
    stamps = [*proof_records.CODE, ("/mirage/new.py", 1, 1)]
    around: dict[str, Callable[[], Any]] = {
        "again": lambda: among("PATH", os.environ["PATH"]),
        "another place for caches": lambda: among("VLLM_RPC_BASE_PATH", "/elsewhere"),
        "another terminal": lambda: among("TERM", "other"),
        "packing": lambda: patch.object(identity, "packs", lambda *weight: not packs(*weight)),
        "vllm": lambda: patch.object(vllm, "__version__", "0.0.1"),
        "torch": lambda: patch.object(torch, "__version__", "0.0.1"),
        "our code": lambda: patch.multiple(
            proof_records, CODE=stamps, _stamps=lambda: list(stamps)
        ),
        "code since": lambda: patch.object(proof_records, "_stamps", lambda: list(stamps)),
        "flags of the processor": lambda: patch.object(
            proof_records, "CPU_INFO", told("processor : 0\nflags : fpu avx2\n\nprocessor : 1\n")
        ),
        "threads": lambda: patch.object(torch, "get_num_threads", lambda: 77),
        "a variable": lambda: among("ONEDNN_MAX_CPU_ISA", "AVX2"),
        "another variable": lambda: among("VLLM_CPU_KVCACHE_SPACE", "3"),
    }
    keys = {"first": key()}
    for name, change in around.items():
        with change():
            keys[name] = key()
    keys |= {name: key(changed) for name, changed in OTHERS.items()}
    keys |= {name: key(**changed) for name, changed in SETTINGS.items()}
    with patch.object(proof_records, "identity_of", lambda config: None):
        keys["no folder"] = key()
    os.utime(Path(model) / "model.safetensors")
    keys["weights"] = key()
    Path(out).write_text(json.dumps(keys))


if __name__ == "__main__":
    main(*sys.argv[1:])
