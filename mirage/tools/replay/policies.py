"""Columns of a replay: a policy, with or without the configuration's tiers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.config import Config, Policy
from mirage.errors import InputRefused

ENDING = "-tiers"


class PolicyRefused(InputRefused):
    """A policy is unknown, or cannot be served with this configuration; the message is one line."""


@dataclass(frozen=True)
class ReplayVariant:
    """One column of a report: a policy with or without tiers. `mirage simulate` has the same
    names."""

    policy: Policy
    tiers: bool = False
    """True if KV blocks that leave the device go to the configuration's tiers."""

    @property
    def name(self) -> str:
        """Name of the column."""
        return name_of(self.policy, self.tiers)

    def __str__(self) -> str:
        return self.name


def name_of(policy: str, tiers: bool) -> str:
    """Name of a policy with or without tiers."""
    return f"{policy}{ENDING if tiers else ''}"


VARIANTS = {
    variant.name: variant
    for variant in (
        *map(ReplayVariant, Policy),
        *(ReplayVariant(policy, tiers=True) for policy in Policy if policy is not Policy.STATIC),
    )
}


def chosen(text: str | None, config: Config) -> list[ReplayVariant]:
    """Variants that ``--policy`` names, each once; without it all that the configuration allows.

    Raises `PolicyRefused` for an unknown name, and for tiers that the configuration does not have.
    """
    tiered = config.tiers.host is not None
    if text is None:
        return [variant for variant in VARIANTS.values() if tiered or not variant.tiers]
    found = [_named(name.strip()) for name in text.split(",")]
    if not tiered and (lacking := [variant for variant in found if variant.tiers]):
        raise PolicyRefused(
            f"policy {lacking[0].name!r} needs tiers, and the configuration has none: "
            "write tiers.host.bytes"
        )
    return list(dict.fromkeys(found))


def tiers_unused(variants: list[ReplayVariant], config: Config) -> str | None:
    """Warning about tiers of the configuration that no column uses; None if there is no reason for
    one.
    """
    elastic = [v.name for v in variants if v.policy is not Policy.STATIC]
    if config.tiers.host is None or not elastic or any(variant.tiers for variant in variants):
        return None
    return (
        f"policy {elastic[-1]} leaves the configuration's tiers out: "
        f"{elastic[-1]}{ENDING} uses them"
    )


def _named(name: str) -> ReplayVariant:
    if name not in VARIANTS:
        raise PolicyRefused(f"unknown policy {name!r}: choose from {', '.join(VARIANTS)}")
    return VARIANTS[name]
