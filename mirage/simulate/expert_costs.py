"""Cost of a step of a mixture of experts whose cold experts are in host memory."""

from __future__ import annotations

from collections.abc import Callable

from mirage.simulate.costs import ExpertTimes, StepCosts
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.roofline import PS, BoundedSteps, CostBound, plus
from mirage.simulate.routing import Observed, Routers


class ExpertCosts(StepCosts):
    """Costs with loads of experts: a step waits for the cold experts that its router chose just
    now.

    Every one of them is loaded. Spare frames keep the last used ones, but there are only as many as
    one layer has cold experts, for all layers together, so that few are present when they are
    needed again.
    """

    def __init__(
        self,
        roofline: BoundedSteps,
        holding: SimulatedMemory,
        load_ps: int,
        co_runners: Callable[[], tuple[int, int]],
        *,
        routers: Routers,
    ) -> None:
        super().__init__(roofline, holding, load_ps, co_runners)
        self._routers, self._observed = routers, Observed(routers)
        shape = holding.shape
        self._expert_ps = round(load_ps * shape.expert_bytes / shape.layer_bytes)

    def bounds(self, tokens: int) -> tuple[CostBound, ...]:
        bounds, loads = super().bounds(tokens), self._loads(tokens)
        if not loads:
            return bounds
        streams = max(1, self.co_runners()[1])
        waits = CostBound(round(loads * self._expert_ps * streams), 0, 0, 0, 0)
        return tuple(plus(bound, waits) for bound in bounds)

    def took(self, tokens: int, steps: int) -> float:
        self._observed.step(tokens, steps)
        return self._loads(tokens) * steps

    def expert_times(self) -> ExpertTimes:
        return ExpertTimes(self._expert_ps / PS, self._observed.routed())

    def _loads(self, tokens: int) -> float:
        """Expected number of cold experts of all layers that a step of `tokens` tokens loads."""
        return self._routers.routed(tokens)[self._holding.experts]
