"""Small model of the rows with engines: the demonstration's, whose texts can be computed exactly.

Every layer has other weights. A dry run has the same model, smaller, on host memory.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.ways import ON_GPU, ON_HOST

if TYPE_CHECKING:
    from mirage.config import Config
    from mirage.serve.fit.fit import Fit
    from mirage.tools.demo.circuit import Circuit

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "out" / "gpu" / "models"
FAMILY = "llama"
LAYER_BYTES = {True: 3 << 20, False: 64 << 20}
"""Bytes of a layer, dry (True) and on a GPU (False). On a GPU small layers would be loaded
immediately, and leaving out the waits for them would change nothing. Large ones are also copied in
several chunks.
"""
REQUESTS, TOKENS = 10, 24
LENGTHS = (1, 5, 17, 31, 32, 33, 64, 80, 100, 120)


def config(dry: bool, *, way: str) -> Config:
    from mirage.config import Config

    device: dict[str, Any] = {"kind": "cuda", "memory": "2GiB", "copy_chunk": "16MiB"}
    device = {"kind": "host", "memory": "96MiB"} | ON_HOST[way] if dry else device | ON_GPU[way]
    tenant = {
        "name": "small",
        "model": _model(dry),
        "share": 100,
        "max_model_len": 256,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        # Or later rounds would compute other batches than the first.
        "engine_args": {"enable_prefix_caching": False},
    }
    content = {"device": device, "dtype": "float32", "policy": "mirage", "tenants": [tenant]}
    return Config.model_validate(content)


@cache
def fit(dry: bool, *, way: str) -> Fit:
    from mirage.serve.launch.preflight import fit_config

    return fit_config(config(dry, way=way))["small"]


def _model(dry: bool) -> Path:
    """The model's folder; it is made if it is absent. Models of both sizes compute the same
    circuit.
    """
    from mirage.tools.demo.models import make_models

    folder = MODELS if dry else MODELS / "large"
    return make_models(folder, which=(FAMILY,), layer_bytes=LAYER_BYTES[dry])[FAMILY]


@cache
def prompts() -> list[list[int]]:
    rng, known = random.Random(5), _circuit().vocabulary
    return [[rng.randrange(10, known) for _ in range(length)] for length in LENGTHS]


@cache
def exact() -> list[list[int]]:
    return [_circuit().generate(prompt, TOKENS) for prompt in prompts()]


@cache
def _circuit() -> Circuit:
    from mirage.tools.demo.models import circuit_of

    return circuit_of(_model(True))
