"""Made answers of the processes that `mirage profile` starts, on a machine of known figures."""

from __future__ import annotations

from statistics import linear_regression
from typing import Any

import msgspec

from mirage.profiles import Model
from mirage.protocol import ModelShape
from mirage.tools.profile.fitting import Fitted, predicted_s, step
from mirage.tools.profile.plan import QUICK, MeasuringLimits, points

KNOWN = Fitted(overhead_s=4e-3, sequence_s=8e-5, bytes_per_s=6e9, flop_per_s=9e10, error=0.0)
LIMITS = MeasuringLimits(sequences=16, length=330, budget=512, block_tokens=32, blocks=300)
LINK, LATENCY = 10e9, 5e-6
"""Bytes a second, and seconds of any copy."""
READING = 0.004
"""Seconds in which an engine reads a request."""
MIXED = 0.5
"""Speed in each direction while both are used, as a fraction of `LINK`."""
LAYER_BYTES = 3 << 20
SERVED = 1e-3, 2e-4
"""Seconds that serving adds to each step, and to each token."""
FEW, MANY = (2, 160, 40), (16, 16, 40)
SHAPE = ModelShape(
    layers=8,
    layer_bytes=LAYER_BYTES,
    fixed_bytes=1 << 20,
    extent_bytes=1 << 16,
    extent_blocks=1,
    block_tokens=32,
    max_extents=300,
    min_extents=12,
    movable_layers=7,
)


def model(**changes: Any) -> Model:
    """Profile of a small model whose steps are bound by memory in some cases and by compute in
    others; `changes` replace its fields.
    """
    content: dict[str, Any] = {
        "title": "Small",
        "source": "nowhere",
        "layers": 8,
        "hidden": 256,
        "heads": 8,
        "kv_heads": 8,
        "head_size": 32,
        "ffn": 1024,
        "ffn_matrices": 2,
        "vocabulary": 1000,
        "tied": True,
        "weight_bytes": 4,
        "max_len": 2048,
    }
    return Model(**content | changes)


def sample(of: Model, sequences: int, context: int, prefill: int, **changes: Any) -> dict[str, Any]:
    """Measured step of `of` whose times are exactly those that the known figures predict; `changes`
    replace fields.
    """
    work = {"sequences": sequences, "context": context, "prefill": prefill}
    made: dict[str, Any] = {**work, "area": prefill * (prefill + 1), "cpu_s": 0.0, "wall_s": 0.0}
    seconds = predicted_s(KNOWN, step(of, made))
    return made | {"cpu_s": seconds, "wall_s": seconds, "times_s": [seconds] * 4} | changes


def engine(of: Model) -> dict[str, Any]:
    """Answer of the process `mirage.engine.steptimes` for a model, by the known figures."""
    chosen = points(LIMITS, QUICK)
    samples = [sample(of, 0, 0, count * tokens) for count, tokens in chosen.prompts]
    samples += [sample(of, b, b * context, 0) for b, context, _ in chosen.decodes]
    samples += [sample(of, b, 64 * b, tokens) for b, tokens in chosen.mixtures]
    return {
        "clock": "cpu_s",
        "samples": samples,
        "request_s": [1.0, 1.0],
        "shape": msgspec.to_builtins(SHAPE),
        "reserved_bytes": 0,
        "layer_bytes": LAYER_BYTES,
        "load_s": [LAYER_BYTES / LINK] * 5,
        "apply_s": [2e-3] * 3,
    }


def served(names: list[str]) -> dict[str, Any]:
    """Answer of the process `mirage.tools.profile.served`, in which serving adds `SERVED` to the
    time of a request.
    """

    def group(tenants: list[str], load: tuple[int, int, int], dearer: float) -> dict[str, Any]:
        at_once, _, output = load
        added = (SERVED[0] + SERVED[1] * at_once) * output / at_once
        return {
            "tenants": tenants,
            "engine_s": dearer * (1.0 + READING + added),
            "front_s": 0.1,
            "e2el_s": dict.fromkeys(tenants, 2.0),
        }

    sizes = range(1, len(names) + 1)
    prompts = [s for s in engine(model())["samples"] if not s["sequences"]]
    tokens, seconds = [s["prefill"] for s in prompts], [s["cpu_s"] for s in prompts]
    read = READING + 16 * linear_regression(tokens, seconds).slope
    return {
        "prompt_tokens": 16,
        "first_token_s": {name: [0.05] * 3 for name in names},
        "spent_s": {
            name: {"client": 0.02, "router": 0.03, "server": 0.05, "engine": read} for name in names
        },
        "burst_s": dict.fromkeys(names, 0.01),
        "loads": {
            str(size): [group([n], FEW, 1.0) for n in names]
            if size == 1
            else [group(names[:size], FEW, 1.0 + 0.1 * (size - 1))]
            for size in sizes
        },
        "crowded": {name: group([name], MANY, 1.0) for name in names},
    }


def transfers() -> dict[str, Any]:
    """Answer of the process `mirage.tools.profile.transfers`, computed from the known link and
    latency.
    """
    sizes = [1 << 16, 1 << 20, 1 << 24]
    acts = ("create_s", "map_s", "clear_s", "unmap_s", "release_s")
    return {
        "page_bytes": 1 << 16,
        "copies": [
            {
                "bytes": size,
                "one_way_s": [LATENCY + size / LINK] * 3,
                "mixed_s": [LATENCY + size / (LINK * MIXED)] * 3,
            }
            for size in sizes
        ],
        "pages": [{"pages": n, **{act: [1e-5 * n] * 3 for act in acts}} for n in (1, 16)],
    }


def message() -> dict[str, Any]:
    """Answer of the process `mirage.tools.profile.message`: each message takes 0.2 ms."""
    return {"message_s": [2e-4] * 5}
