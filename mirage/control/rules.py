"""Rules of the deciding code: the settings of `remap`, and rules that are no setting."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from mirage.config import Config, Kept, Policy, Remap
from scheduler.victims import Rule


class Rules(Remap):
    """Settings of `remap`, and further rules that no configuration sets.

    The defaults are the rules that serve. Other values are there to be compared with them, by the
    simulator's variants and by `benchmarks/ablated.py`.
    """

    victims: Rule = "mru"
    """Order in which tenants of equal priority give: most or least recently used first."""
    keep_free: bool = True
    """True if waiting requests leave free what running ones will soon need. It has no effect under
    policy static, nor under policy mirage if `serve` is growth or `tbt_ms` is set."""
    stream_slots: Literal[1, 2, "dynamic"] = "dynamic"
    """Slots that streamed layers share; "dynamic": 1 if a step is about as short with 1 as with 2,
    else 2."""
    reversion: bool = True
    """True if layers come back when the pressure ends."""
    keep_prefixes: bool = True
    """True if layers are lent before cached prefixes that are worth more."""
    decode_cap: bool = True
    """True if a model that runs gives no more layers than hide behind its own decode steps, and
    lent layers are limited by their price in turns."""
    lend_kv: Annotated[float, Field(ge=0, le=100)] | None = None
    """Upper limit for lent layers in turns, as a multiple of the KV memory with all layers in
    place; None: by price."""

    @classmethod
    def of(cls, remap: Remap) -> Self:
        """Return the settings with all other rules as they serve."""
        return cls(**{key: getattr(remap, key) for key in Remap.model_fields})

    @classmethod
    def served(cls, config: Config) -> Self:
        """Return the rules of a configuration."""
        return cls.of(config.remap)

    def kept(self, policy: Policy) -> Kept:
        """Return the rule for the KV memory that waiting requests leave free for running ones; with
        policy static they leave nothing, as in vLLM."""
        if policy is Policy.STATIC:
            return "nothing"
        if policy is Policy.MIRAGE and (self.serve == "growth" or self.tbt_ms is not None):
            return "asked"
        if not self.keep_free:
            return "nothing"
        return "lent" if policy is Policy.MIRAGE and self.favour == "latency" else "soon"
