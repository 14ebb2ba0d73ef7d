"""Check that each attention backend reads no KV memory that has been given away.

A row of a block table may still name blocks of an earlier, longer request, and a kernel may read
beyond a request's own blocks. In vLLM this does no harm, because its whole KV cache is memory. Here
it is an illegal address. So KV extents are mapped and unmapped while requests decode, see `waves`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import engine_child, small, waves
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_child import Ended
from benchmarks.gpu.engines import differing
from benchmarks.gpu.rows import Row
from benchmarks.gpu.ways import EAGERLY, GRAPHS, ON_GPU

if TYPE_CHECKING:
    from mirage.config import Config

BACKENDS = {True: ("CPU_ATTN",), False: ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")}
"""Attention backends that are tried, dry (True) and on a GPU (False)."""
ROUNDS = [waves.REST, waves.WAVES, waves.WAVES]
UNSUPPORTED = re.compile(
    r"Selected backend .* is not valid for this configuration.*|Could not find nvcc.*|"
    r"No such file or directory: 'ninja'"
)
"""Messages of vLLM, or of the backend's compiler, that it is not for this machine or model."""
MODELS = small.MODELS / "waves"
FAMILY = "opt"
SHAPE = {
    True: {"hidden": 256, "head_dim": 64, "layer_bytes": 4 << 20},
    False: {"hidden": 512, "head_dim": 128, "layer_bytes": 8 << 20},
}
"""Shape of the model, dry (True) and on a GPU (False), with heads of a size that all backends take.
Without grouped heads 128 tokens fill an extent, in either dtype."""
DTYPE = {True: "float32", False: "bfloat16"}
"""Dtype, dry (True) and on a GPU (False), that all backends take. A processor without AVX-512
computes bfloat16 several times slower than float32."""


def eagerly(bench: Bench) -> Iterator[Row]:
    """A row for each attention backend, in eager steps."""
    bench.need_kernels()  # the engine tests have it on a host
    yield from under_decode(bench, way=EAGERLY)


def with_graphs(bench: Bench) -> Iterator[Row]:
    """A row for each attention backend with CUDA graphs, whose batches are padded with empty
    rows.
    """
    bench.need_kernels()
    yield from under_decode(bench, way=GRAPHS)


def under_decode(bench: Bench, *, way: str) -> Iterator[Row]:
    """One row for each attention backend: its texts while KV extents come and go have to be those
    without such changes. `way` is a key of `ON_GPU`: eager steps, or CUDA graphs.

    Each row comes as soon as its backend is measured. An engine that fails spoils only its own row.
    """
    engine_child.need_vllm()
    backends = BACKENDS[bench.dry]
    for done, backend in enumerate(backends):
        yield _row(bench, backend, bench.share(len(backends) - done), way=way)


def _row(bench: Bench, backend: str, limit_s: float, *, way: str) -> Row:
    from benchmarks.ablations import ablated
    from mirage.config import ConfigError

    name = f"KV under decode, {backend}, {way}"
    what = f"{name}: extents mapped and unmapped while requests decode"
    aim = "the same texts"
    try:
        config = _config(bench.dry, backend, way=way)
        # Or how much is free would say who begins when, and so in which batch.
        with ablated(keep_free=False):
            served = engine_child.served(config, limit_s)
        found = engine_child.ran(served, _asked())
    except (Ended, ConfigError) as error:
        if why := UNSUPPORTED.search(str(error)):
            return Row(name, what, f"skipped: {why[0]}")
        return Row(name, what, str(error), aim, False)
    wrong = _wrong(found)
    if way != EAGERLY and found["eager"]:
        wrong.append("no graph was captured")
    moving = found["counts"][1:]
    value = (
        f"{min(c['fewest'] for c in moving)} to {max(c['most'] for c in moving)} extents, "
        f"{sum(c['unmapped'] for c in moving)} unmapped under decode: "
    )
    value += "; ".join(wrong) if wrong else "all texts the same"
    return Row(name, what, value, aim, not wrong, {key: found[key] for key in ("counts", "eager")})


def _wrong(found: dict[str, Any]) -> list[str]:
    """Differences of each round from the first one, in which KV memory does not change."""
    first, *others = found["rounds"]
    rest, *counts = found["counts"]
    wrong = []
    for number, (other, count) in enumerate(zip(others, counts, strict=True), 2):
        if other != first:
            wrong.append(f"round {number} differs in {differing(first, other)}")
        if count["steps"] != rest["steps"]:
            wrong.append(f"round {number} took {count['steps']} steps instead of {rest['steps']}")
        if not (count["mapped"] and count["unmapped"]):
            wrong.append(f"round {number}: KV did not grow and shrink under decode")
    return wrong


def _config(dry: bool, backend: str, *, way: str) -> Config:
    from mirage.config import Config
    from mirage.tools.demo.models import make_models

    folder = make_models(MODELS, which=(FAMILY,), **SHAPE[dry])[FAMILY]
    device: dict[str, Any] = {"kind": "host", "memory": "96MiB", "page": "2MiB"}
    if not dry:
        device = {"kind": "cuda", "memory": "512MiB"} | ON_GPU[way]
    tenant = {
        "name": "waves",
        "model": folder,
        "share": 100,
        "max_model_len": 512,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 1024,
        "engine_args": {"enable_prefix_caching": False, "attention_backend": backend},
    }
    content = {"device": device, "dtype": DTYPE[dry], "policy": "mirage", "tenants": [tenant]}
    return Config.model_validate(content)


def _asked() -> dict[str, Any]:
    from mirage.tools.demo.models import circuit_of

    words = range(10, circuit_of(MODELS / FAMILY).vocabulary)
    return waves.asked(words) | {"rounds": ROUNDS}
