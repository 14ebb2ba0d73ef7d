"""Rules of the deciding code: the settings, and what else it decides by."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from mirage.config import Config, Kept, Policy, Remap
from scheduler.victims import Rule


class Rules(Remap):
    """The settings of `remap`, and beside them rules that are no setting.

    By default those are the rules that serve. Others are there to be measured against them, by
    the simulator's variants and by `benchmarks/ablated.py`.
    """

    victims: Rule = "mru"
    """Among equal priorities, who gives first: most or least recently used."""
    keep_free: bool = True
    """True if newcomers leave free what running requests soon need; if False, with `serve:
    admission` alone.
    """
    stream_slots: Literal[1, 2, "dynamic"] = "dynamic"
    """Slots that streamed layers share; dynamic takes 2 where 1 would not hide."""
    reversion: bool = True
    """True if layers come back when the pressure ends."""
    keep_prefixes: bool = True
    """Lend layers before cached prefixes that would be missed more."""
    decode_cap: bool = True
    """Remap no more layers than hide behind the model's own decode steps."""
    lend_kv: Annotated[float, Field(ge=0, le=100)] | None = None
    """Part of all KV memory, as it is with all layers in place, that layers may add at most in
    turns, instead of what is worth its price."""

    @classmethod
    def of(cls, remap: Remap) -> Self:
        """The settings, and all else as it serves."""
        return cls(**{key: getattr(remap, key) for key in Remap.model_fields})

    @classmethod
    def served(cls, config: Config) -> Self:
        """Rules of a configuration."""
        return cls.of(config.remap)

    def kept(self, policy: Policy) -> Kept:
        """KV memory that newcomers leave free of what their model holds; with `static` as vLLM
        does.
        """
        if policy is Policy.STATIC:
            return "nothing"
        if policy is Policy.MIRAGE and (self.serve == "growth" or self.tbt_ms is not None):
            return "asked"
        if not self.keep_free:
            return "nothing"
        return "lent" if policy is Policy.MIRAGE and self.favour == "latency" else "soon"
