"""Time that an engine's moves of memory take on the way to an allotment. Times are picoseconds."""

from __future__ import annotations

from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.tally import Tally


class Moves:
    """Memory moves of one engine: each round of moves takes `apply_ps`, and the load of each
    returning layer `load_ps`.

    A returning expert takes its part of `load_ps`, by its bytes.
    """

    def __init__(self, holding: SimulatedMemory, load_ps: int, apply_ps: int, tally: Tally) -> None:
        self._holding, self._tally = holding, tally
        self._load_ps, self._apply_ps = load_ps, apply_ps
        self.ready_at = 0
        """Time before which no step begins: the end of the last round of moves, or of a copy that a
        step has to wait for.
        """
        self._loaded_at = 0
        """Time at which the last of the returning layers will have been loaded."""

    def reconcile(self, used_blocks: int, now: int) -> bool:
        """Make one round of moves towards the target, as far as the used blocks allow it. True if
        any memory moved.
        """
        holding, counters, shape = self._holding, self._tally.counters, self._holding.shape
        before = holding.experts
        moved, copies = holding.reconcile(used_blocks)
        back = max(0, before - holding.experts) * shape.expert_layers * shape.expert_bytes
        if copies or back:
            experts_ps = self._load_ps * back // shape.layer_bytes
            self._loaded_at = max(self._loaded_at, now) + copies * self._load_ps + experts_ps
            counters.bytes_restored += copies * shape.layer_bytes + back
        if moved:
            counters.moves += 1
            self.ready_at = max(now, self.ready_at) + self._apply_ps
        counters.most_remapped = max(counters.most_remapped, holding.layers_remapped)
        counters.most_experts = max(counters.most_experts, holding.experts)
        return moved

    def wait(self, until: int) -> None:
        """Let no step begin before `until`, when cached blocks whose memory is needed have been
        copied down.
        """
        self.ready_at = max(self.ready_at, until)

    def delay(self, now: int, step_ps: int) -> int:
        """Picoseconds that memory moves add to a step which begins now and takes `step_ps` without
        them.
        """
        delay = self.ready_at - now if self.ready_at > now else 0
        if self._loaded_at > now:
            delay = max(delay, self._loaded_at - now - step_ps)
        return delay
