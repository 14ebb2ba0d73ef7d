"""Cost of one engine's next step, given the engines that compute at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mirage.simulate.batch import Batch
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.roofline import NOTHING_STREAMED, PS, BoundedSteps, CostBound, Streaming, Work


class ExpertTimes(NamedTuple):
    """Times of experts that an engine reports; zero and empty for a model that gives none away."""

    load_s: float = 0.0
    """Seconds to load one expert while a step waits."""
    routed: Sequence[float] = ()
    """Experts that a step routes to, as in `Report.expert_routed`."""


NO_EXPERTS = ExpertTimes()
USUAL_PROMPT = 512
"""Tokens of the prompt from whose time `token_s` is computed."""


class StepCosts:
    """Bounds of the duration of an engine's steps, with the layers that it streams now.

    `load_ps` is T_T, in picoseconds, of an engine alone. `co_runners` returns the number of engines
    that compute now, this one included, and the number of those that stream: the first share
    compute, the second the link.
    """

    def __init__(
        self,
        roofline: BoundedSteps,
        holding: SimulatedMemory,
        load_ps: int,
        co_runners: Callable[[], tuple[int, int]],
    ) -> None:
        self.roofline, self.load_ps = roofline, load_ps
        self._holding, self.co_runners = holding, co_runners
        self.step_s = roofline.compute_ps(Work(0, 0)) / PS
        """Seconds of a step without tokens, of an engine alone that streams nothing."""
        self.token_s = roofline.added_ps(0, USUAL_PROMPT) / USUAL_PROMPT / PS
        """Seconds by which one more token of a prompt lengthens a step of an engine alone that
        streams nothing.
        """

    def bounds(self, tokens: int) -> tuple[CostBound, ...]:
        """Bounds of the next step, which computes `tokens` tokens."""
        co_runners, streams = self.co_runners()
        holding = self._holding
        if not holding.layers_remapped:
            return self.roofline.bounds(NOTHING_STREAMED, co_runners)
        load = self.load_ps * max(1, streams)
        return self.roofline.bounds(
            Streaming(holding.layers_remapped, holding.stream_slots, load), co_runners
        )

    def took(self, tokens: int, steps: int) -> float:
        """Note `steps` steps of `tokens` tokens each; return the expected number of experts that
        they loaded, 0 where experts stay on the device.
        """
        return 0.0

    def expert_times(self) -> ExpertTimes:
        """Load time of an expert, and the experts that steps route to, as far as observed."""
        return NO_EXPERTS

    def compute_ps(self, work: Work, co_runners: int) -> int:
        """Picoseconds of a step that waits for no layer, while `co_runners` engines, this one
        included, share the device.
        """
        return self.roofline.compute_ps(work, co_runners)

    def layer_compute_s(self, batch: Batch) -> float:
        """T_c of a decode step of `batch`, in seconds."""
        work = Work(batch.size, batch.context)
        return self.compute_ps(work, self.co_runners()[0]) / PS / self._holding.shape.layers
