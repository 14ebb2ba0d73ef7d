"""Variants to compare: a policy, and the rules in which it differs from the experiment's. Data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mirage.config import ConfigError, Policy, Remap
from mirage.control.rules import Rules
from mirage.simulate.coming import Coming

if TYPE_CHECKING:
    from mirage.simulate.roofline import Roofline


@dataclass(frozen=True)
class Variant:
    """One column of a comparison: an engine's policy, and changes of the `Rules`."""

    name: str
    policy: Policy
    meaning: str = ""
    """Description in a report; if empty, the report describes it as mirage with its `changes`."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    coming: Coming = field(default_factory=Coming)
    """Method by which models give up their places and come back, in an experiment with a
    `roster`."""
    tiers: bool = False
    """True if KV blocks that leave the device go to the experiment's `tiers`."""

    def rules(self, remap: Remap) -> Rules:
        """The experiment's rules with the changes of this variant."""
        return Rules.of(remap).model_copy(update=dict(self.changes))

    def parts(self, roofline: Roofline, token_ps: int, block_tokens: int) -> dict[str, Any]:
        """Parts of an `Engine` that this variant replaces, by argument name; here none.

        One token's KV takes `token_ps` picoseconds over the link while both directions are used.
        """
        return {}


BELOW = "and KV blocks that leave the device go to the tiers below"
VARIANTS: Mapping[str, Variant] = {
    v.name: v
    for v in (
        Variant("static", Policy.STATIC, "each tenant keeps the memory of its share"),
        Variant(
            "pooled",
            Policy.POOLED,
            "KV memory moves between tenants; parameters stay where they are",
        ),
        Variant(
            "mirage",
            Policy.MIRAGE,
            "KV memory moves, and layers give theirs to it and are streamed from host memory",
        ),
        Variant(
            "mirage-experts",
            Policy.MIRAGE,
            "as mirage, and a mixture may give experts that it hardly routes to instead",
            {"experts": True},
        ),
        Variant("mirage-tiers", Policy.MIRAGE, f"as mirage, {BELOW}", tiers=True),
        Variant("pooled-tiers", Policy.POOLED, f"as pooled, {BELOW}", tiers=True),
        Variant("growth-only", Policy.MIRAGE, changes={"serve": "growth"}),
        Variant("admission", Policy.MIRAGE, changes={"serve": "admission"}),
    )
}
"""Variants that can be served. Studies pass a larger mapping as `known`."""


def variant(name: str, known: Mapping[str, Variant] = VARIANTS) -> Variant:
    """The variant of that name. Raises `ConfigError` if it is not in `known`."""
    if name not in known:
        raise ConfigError(f"no policy is named {name!r}: known are {', '.join(known)}")
    return known[name]


def compared(names: Sequence[str], known: Mapping[str, Variant] = VARIANTS) -> list[Variant]:
    """Variants of these names, out of `known` ones, preceded by `static` and `pooled`, which are in
    every comparison."""
    wanted = ["static", "pooled", *names]
    return [variant(name, known) for name in dict.fromkeys(wanted)]
