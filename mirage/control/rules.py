"""What the deciding code is told: the settings of those who serve, and of those who measure."""

from __future__ import annotations

from typing import Self

from mirage.config import Ablations, Config, Kept, Policy, Remap


class Rules(Remap, Ablations):
    """The settings of `remap`, and the alternatives to what is not one: all of it by default off.

    `mirage serve` makes it of its configuration, the simulator of an experiment and a policy.
    """

    @classmethod
    def of(cls, remap: Remap, ablations: Ablations) -> Self:
        """The rules that both say."""
        settings = {key: getattr(remap, key) for key in Remap.model_fields}
        return cls(**settings | {key: getattr(ablations, key) for key in Ablations.model_fields})

    @classmethod
    def served(cls, config: Config) -> Self:
        """Those of a configuration."""
        return cls.of(config.remap, config.remap)

    def kept(self, policy: Policy) -> Kept:
        """What newcomers leave free of what their model holds; with `static` as vLLM does."""
        if policy is Policy.STATIC:
            return "nothing"
        if policy is Policy.MIRAGE and (self.serve == "growth" or self.tbt_ms is not None):
            return "asked"
        return "soon" if self.keep_free else "nothing"
