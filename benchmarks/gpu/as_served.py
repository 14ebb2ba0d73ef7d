"""Texts with layers away in the default configuration: bfloat16, FLASH_ATTN, compiled, with graphs.

Kernels may round differently in a graph of a whole step than in pieces. So all rounds run in
pieces, also those with no layer away, and a number of layers away must change no bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import small
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_child import Ended, need_vllm, ran, served
from benchmarks.gpu.engines import HOLDS, changes, without_waits
from benchmarks.gpu.rows import Row
from benchmarks.gpu.ways import COMPILED, ON_GPU, ON_HOST

if TYPE_CHECKING:
    from mirage.config import Config

NAMES = {True: "float32, CPU_ATTN, compiled", False: "bf16, FLASH_ATTN, compiled"}
"""Names of the rows, dry (True) and on a GPU (False). A dry run computes in float32, because a
processor without AVX-512 computes bfloat16 several times slower."""
HOW = {True: ("float32", "CPU_ATTN"), False: ("bfloat16", "FLASH_ATTN")}
SHAPE = {
    True: {"layer_bytes": 3 << 20},
    False: {"hidden": 512, "head_dim": 128, "layer_bytes": 64 << 20},
}


def alike(bench: Bench) -> list[Row]:
    """Row on tokens and log-probabilities with different numbers of layers away, and row on the
    control without waits.
    """
    need_vllm()
    name = f"outputs, {NAMES[bench.dry]}"
    what = f"tokens and top-5 logprobs of {small.REQUESTS} requests, layers away {HOLDS}"
    try:
        found = _run(bench, waits=True, runs=2)
        broken = _run(bench, waits=False, runs=1)
    except Ended as error:
        return [Row(name, what, str(error), "bit-identical", False)]
    wrong = changes(found["rounds"])
    if not found["compiled"]:
        wrong.append("nothing was compiled")
    if found["eager"]:
        wrong.append("no graph was captured")
    if not (found["layers_remapped"] and found["bytes_streamed"]):
        wrong.append("no layer streamed")
    seen = bool(changes(broken["rounds"]))
    rounds = found.pop("rounds")
    return [
        Row(
            name,
            what,
            "; ".join(wrong) or f"bit-identical, up to {found['layers_remapped']} layers away",
            "bit-identical",
            not wrong and len(rounds) == len(HOLDS),
            found,
        ),
        Row(
            f"outputs without waits, {NAMES[bench.dry]}",
            "the same without the waits for streamed layers",
            "differ" if seen else "the same: this comparison would not see a fault",
            "differ",
            seen,
        ),
    ]


def _run(bench: Bench, *, waits: bool, runs: int) -> dict[str, Any]:
    """Facts of one engine's rounds; without `waits` steps do not wait for streamed layers. Raises
    `Ended` if the engine ends early.
    """
    engine = served(_config(bench.dry), bench.share(runs))
    if not waits:
        engine = replace(engine, command=without_waits(engine.command))
    asked = {"prompts": small.prompts(), "tokens": small.TOKENS, "rounds": HOLDS, "gated": True}
    return ran(engine, asked)


def _config(dry: bool) -> Config:
    from mirage.config import Config
    from mirage.tools.demo.models import make_models

    folder = small.MODELS / ("as-served-dry" if dry else "as-served")
    model = make_models(folder, which=(small.FAMILY,), **SHAPE[dry])[small.FAMILY]
    device: dict[str, Any] = {"kind": "cuda", "memory": "2GiB", "copy_chunk": "16MiB"}
    device = (
        {"kind": "host", "memory": "96MiB", **ON_HOST[COMPILED]}
        if dry
        else device | ON_GPU[COMPILED]
    )
    dtype, backend = HOW[dry]
    tenant = {
        "name": "as-served",
        "model": model,
        "share": 100,
        "max_model_len": 256,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        "engine_args": {"enable_prefix_caching": False, "attention_backend": backend},
    }
    content = {"device": device, "dtype": dtype, "policy": "mirage", "tenants": [tenant]}
    return Config.model_validate(content)
