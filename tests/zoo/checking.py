"""Answers of `mirage check` for each family, before any engine starts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mirage.config import Config, TenantSection
from mirage.facts import ModelFacts
from mirage.serve.fit.fit import fit
from mirage.serve.launch import vllm_facts
from tests.zoo.family import Family

DEVICE_BYTES = 1 << 32
"""Enough for any of them."""
PAGE_BYTES = 4096
AT_ONCE = 8
"""Families in one question: vLLM is imported once for them."""
OURS = {"max_model_len", "dtype", "skip_tokenizer_init"}
"""Arguments of a family that are not passed as `engine_args`: the configuration has keys of its own
for them, or none.
"""

SIZES = (
    "layers",
    "layer_bytes",
    "extent_blocks",
    "extent_bytes",
    "min_extents",
)


def check(
    families: Sequence[Family], models: Path, probe: vllm_facts.Probe = vllm_facts.PROBE
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name of each family and the sizes that its engine's `ModelShape` shall have, or `refused`
    with the line.

    `probe` is the command of the process that asks vLLM.
    """
    for dtype in ("bfloat16", "float32"):
        asked = [f for f in families if f.arguments.get("dtype", "bfloat16") == dtype]
        for start in range(0, len(asked), AT_ONCE):
            yield from _ask(asked[start : start + AT_ONCE], dtype, models, probe)


def _ask(
    families: Sequence[Family], dtype: str, models: Path, probe: vllm_facts.Probe
) -> Iterator[tuple[str, Any]]:
    tenants = [tenant(family, models, 100 / AT_ONCE) for family in families]
    with tempfile.TemporaryDirectory(prefix="mirage-check-") as folder:
        answers = vllm_facts._answers(_config(tenants, dtype), Path(folder) / "log", probe)
    for each in tenants:
        answer = answers.get(each.name) or {"refused": "vLLM gave no answer"}
        if "refused" in answer:
            yield each.name, {"refused": answer["refused"]}
        else:
            facts = msgspec.convert(answer["facts"], ModelFacts)
            yield each.name, _said(each, facts, dtype)


def _said(asked: TenantSection, facts: ModelFacts, dtype: str) -> dict[str, Any]:
    """Fit of one tenant, in the terms of an engine's `ModelShape`."""
    alone = asked.model_copy(update={"share": 100.0})
    fits, too_large = fit(_config([alone], dtype), {asked.name: facts})
    if too_large:
        return {"refused": too_large[asked.name]}
    found = fits[asked.name]
    return {
        "stays": facts.stays,
        "layers": found.layers,
        "layer_bytes": found.layer_bytes,
        "fixed_bytes": facts.fixed_bytes,
        "extent_blocks": found.extent_blocks,
        "extent_bytes": found.extent_bytes,
        "min_extents": -(-found.min_blocks // found.extent_blocks),
    }


def tenant(family: Family, models: Path, share: float) -> TenantSection:
    """Section of a tenant for a family, as it is checked and served; `share` in per cent."""
    path = (models / family.name).resolve()
    arguments = family.all_arguments(path)
    return TenantSection(
        name=family.name,
        model=path,
        share=share,
        max_model_len=family.arguments.get("max_model_len", 512),
        max_num_seqs=16,
        max_num_batched_tokens=256,
        engine_args={k: v for k, v in arguments.items() if k not in OURS},
    )


def _config(tenants: list[TenantSection], dtype: str) -> Config:
    device = {"memory": DEVICE_BYTES, "page": PAGE_BYTES}
    return Config.model_validate({"device": device, "tenants": tenants, "dtype": dtype})


def disagreements(said: dict[str, Any], shape: dict[str, Any]) -> list[str]:
    """Differences between what the check said and what the engine then had. Pure."""
    # Without a KV cache an extent has no size, and an engine calls it a page.
    sizes = [key for key in SIZES if said["extent_bytes"] or key != "extent_bytes"]
    found = [f"{key} {said[key]}, engine {shape[key]}" for key in sizes if said[key] != shape[key]]
    if _pages(said["fixed_bytes"]) != _pages(shape["fixed_bytes"]):
        found.append(f"fixed_bytes {said['fixed_bytes']}, engine {shape['fixed_bytes']}")
    if bool(said["stays"]) != (not shape["movable_layers"]):
        found.append(f"layers that move: {not said['stays']}, engine {shape['movable_layers']}")
    return found


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES)
