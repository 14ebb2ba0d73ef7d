"""What can be compared: the policies that engines know, baselines, and ablations of mirage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mirage.config import Ablations, ConfigError, Policy, Remap
from mirage.control.rules import Rules


@dataclass(frozen=True)
class Variant:
    """One column of a comparison: an engine's policy, and what of the `Rules` differs."""

    name: str
    policy: Policy
    changes: Mapping[str, Any] = field(default_factory=dict)
    swaps: bool = False
    """Whether KV that finds no place spills to host memory (Pie, arXiv 2411.09317)."""
    tiers: bool = False
    """Whether KV blocks that leave the device go to the experiment's `tiers`."""

    def rules(self, remap: Remap, ablations: Ablations) -> Rules:
        """Those of an experiment, with what this variant changes."""
        return Rules.of(remap, ablations).model_copy(update=dict(self.changes))


AS_PUBLISHED: dict[str, Any] = {
    "decode_cap": False,
    "max_percent": 100,
    "keep_free": False,
    "keep_prefixes": False,
}
"""Algorithm 1, without the bounds that we added."""
VARIANTS = {
    v.name: v
    for v in (
        Variant("static", Policy.STATIC),
        Variant("pooled", Policy.POOLED),
        Variant("swap", Policy.STATIC, swaps=True),
        Variant("mirage", Policy.MIRAGE),
        Variant("mirage-experts", Policy.MIRAGE, {"experts": True}),
        Variant("mirage-tiers", Policy.MIRAGE, tiers=True),
        Variant("pooled-tiers", Policy.POOLED, tiers=True),
        Variant("prefixes-first", Policy.MIRAGE, {"keep_prefixes": False}),
        Variant("lru", Policy.MIRAGE, {"victims": "lru"}),
        Variant("alpha-plus-one", Policy.MIRAGE, {"beta": 1}),
        Variant("alpha-plus-two", Policy.MIRAGE, {"beta": 2}),
        Variant("no-reversion", Policy.MIRAGE, {"reversion": False}),
        Variant("uncapped", Policy.MIRAGE, AS_PUBLISHED),
        Variant("uncapped-one-slot", Policy.MIRAGE, {**AS_PUBLISHED, "beta": 1}),
        Variant("growth-only", Policy.MIRAGE, {"serve": "growth"}),
        Variant("admission", Policy.MIRAGE, {"serve": "admission"}),
    )
}


def variant(name: str) -> Variant:
    """Raises `ConfigError` for a policy that nobody knows."""
    if name not in VARIANTS:
        raise ConfigError(f"no policy is named {name!r}: known are {', '.join(VARIANTS)}")
    return VARIANTS[name]


def compared(names: list[str]) -> list[Variant]:
    """Those named, and `static` and `pooled` beside them, which no comparison leaves out."""
    wanted = ["static", "pooled", *names]
    return [variant(name) for name in dict.fromkeys(wanted)]
