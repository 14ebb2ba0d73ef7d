"""Lines of `mirage check` about tenants that sleep and wake as requests need them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mirage.config import Config, Policy
from mirage.control.roster.needs import StateBytes
from mirage.serve.fit.fit import Fit
from mirage.serve.fit.outlook import Speeds
from mirage.serve.roster.declared import bytes_of, roster_of, together_awake
from mirage.units import size

KEPT = "conversations of one that sleeps stay in the tiers below the device"
LOST = "the KV cache of one that sleeps is lost: tiers.host keeps it"


def roster_lines(config: Config, fits: Mapping[str, Fit], speeds: Speeds) -> list[str]:
    """Lines for the terminal; none if no tenant comes and goes, or no tenant fits.

    Raises `NeverServedError` for a tenant that can never start.
    """
    if not config.rostered or not fits:
        return []
    roster_of(config, fits, speeds.link, 0.0)
    return [_at_once(config, fits), *_states(config, fits, speeds)]


def _at_once(config: Config, fits: Mapping[str, Fit]) -> str:
    sleeps = config.policy is Policy.MIRAGE
    known = together_awake(config, fits)
    surely, most, every = known.surely, known.at_most, len(fits)
    count = f"{surely}" if surely == most else f"{surely} (whichever), at most {most},"
    if surely == every:
        return f"roster: all {every} tenants can be awake at once"
    rest = "the others sleep" if sleeps else "the others stop, since policy mirage alone sleeps"
    if known.missing:
        rest += f"; asleep all together they exceed the device by {size(known.missing)}: some stop"
    return f"roster: {count} of {every} tenants can be awake at once; {rest}"


def _states(config: Config, fits: Mapping[str, Fit], speeds: Speeds) -> Iterator[str]:
    for name, fit in fits.items():
        own = bytes_of(config, config.tenant(name), fit)
        asleep = f", asleep {size(own.asleep)}" if config.policy is Policy.MIRAGE else ""
        yield f"{name}: awake {size(own.awake)}{asleep}{_wakes(own, speeds.link, asleep)}"
    if config.policy is Policy.MIRAGE:
        yield f"note: {KEPT if config.host_tier else LOST}"


def _wakes(own: StateBytes, link: float | None, sleeps: str) -> str:
    if not sleeps or not own.loaded:
        return ""
    seconds = f", {own.loaded / link:.2g} s over the link" if link else ""
    return f"; a wake loads {size(own.loaded)}{seconds}"
