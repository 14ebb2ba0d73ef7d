"""Memory that one simulated engine holds, counted in layers, experts and KV extents.

Blocks in use are assumed to lie densely, so that they take the fewest extents; or, if `scattered`,
at random places.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage.control.engine.counted import CountedMemory
from mirage.control.engine.way import Lent, Way
from mirage.control.targets import unnumbered
from mirage.protocol import Allotment, ModelShape
from mirage.units import ceil_div


class SimulatedMemory(CountedMemory):
    """Memory of a simulated engine of `shape`, counted in layers, experts and KV extents.

    `base` is its first allotment.

    `copies(before, after)` counts the layers that must be loaded when the streamed set of `before`
    (layers remapped, slots) becomes that of `after`.
    """

    def __init__(
        self,
        shape: ModelShape,
        base: Allotment,
        copies: Callable[[tuple[int, int], tuple[int, int]], int],
        scattered: bool = False,
    ) -> None:
        self._copies = copies
        self._scattered = scattered
        super().__init__(shape, 0, 0, 0, 0, 0)
        self._begin(base)

    def begin_empty(self) -> None:
        """Begin anew with all layers given away and no KV memory, as if nothing had been
        allotted.
        """
        self._begin(unnumbered(self.shape, self.shape.layers, 0, 0))

    def _begin(self, first: Allotment) -> None:
        self.layers_remapped, self.stream_slots = first.layers_remapped, first.stream_slots
        self.experts = first.experts
        self.usable_extents, self.retiring_extents = first.kv_extents, 0
        self.granted_bytes, self.revision, self.reconciled = first.grant_bytes, 0, True
        self.blocks = self._allocatable()
        """KV blocks that may be allocated."""
        self._used_blocks = 0
        """Blocks that requests used, as told in the last call."""
        self._way = Way(self)

    @property
    def open_extents(self) -> int | None:
        """Extents that waiting requests may use as well as running ones; None for all."""
        return self._way.open_extents

    @property
    def lent(self) -> Lent:
        """Layers that are lent at present: none, this model's own under spatial sharing, or those
        of any model in turns."""
        return self._way.lent

    def recalls(self, used_blocks: int, running: int) -> bool:
        """True if a running request must be preempted for a recall; requests use `used_blocks`
        blocks.
        """
        self._used_blocks = used_blocks
        return self._way.recalls(running)

    def aim(self, allotment: Allotment) -> bool:
        """Adopt an allotment as the target; False if it is not newer than the present one."""
        if not self._way.aim(allotment):
            return False
        self.revision, self.granted_bytes = allotment.revision, allotment.grant_bytes
        self.reconciled = False
        return True

    def reconcile(self, used_blocks: int) -> tuple[bool, int]:
        """Make one round of moves towards the target; return True if anything moved, and the number
        of layers to load.
        """
        self._used_blocks = used_blocks
        before = self._state
        for move in self._way.moves():
            self.make(move)
        self.blocks = self._allocatable()
        self.reconciled = self._way.reached
        after = self._state
        if before == after:
            return False, 0
        return True, self._copies(before[:2], after[:2])

    def _allocatable(self) -> int:
        """Blocks of the usable extents, less the null block."""
        return self.usable_extents * self.shape.extent_blocks - 1

    @property
    def _state(self) -> tuple[int, int, int, int]:
        return self.layers_remapped, self.stream_slots, self.experts, self.extents

    # -- what requests use --------------------------------------------------------------

    def busy_extents(self) -> int:
        """Extents that the blocks of requests occupied, by the `used_blocks` of the last call."""
        return self.extents_of(self._used_blocks)

    def extents_of(self, used_blocks: int) -> int:
        """Extents that `used_blocks` blocks and the null block occupy; 0 for no blocks."""
        if not used_blocks:
            return 0
        per_extent = self.shape.extent_blocks
        dense = ceil_div(used_blocks + 1, per_extent)
        if not self._scattered:
            return dense
        # Expected, if every block lay anywhere among those that are backed.
        free_share = max(0.0, 1 - used_blocks / (self.extents * per_extent))
        return max(dense, round(self.extents * (1 - free_share**per_extent)))

    def awaits_requests(self) -> bool:
        """False: blocks in use are assumed to lie outside retiring extents if there is room."""
        return False

    def emptied_extents(self) -> int:
        """Extents beyond the usable ones that no block in use needs; one extent always stays for
        the null block.
        """
        return max(0, self.extents - max(self.usable_extents, self.busy_extents(), 1))
