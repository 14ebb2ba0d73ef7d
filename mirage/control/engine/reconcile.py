"""Steps from the memory that an engine holds to its allotment, each of them safe.

The control server states an `Allotment`; the `Way` to it names the moves. The `Reconciler` enters a
move in its books and orders it, and the answer tells how much memory the device had for it. It is
called again whenever more may have become possible.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from mirage.control.engine.books import ExtentBlocks, MemoryBooks
from mirage.control.engine.fence import Fence
from mirage.control.engine.orders import (
    Action,
    Done,
    Hands,
    MapExtents,
    MemoryAnswer,
    MemoryOrders,
    SetParameters,
    UnmapExtents,
)
from mirage.control.engine.pace import Pace
from mirage.control.engine.shortage import Shortage
from mirage.control.engine.way import (
    CallBack,
    Kind,
    Lent,
    Map,
    Move,
    Parameters,
    Retire,
    Unmap,
    Way,
)
from mirage.protocol import Allotment, ModelShape

WAKE_ROUND_S = 0.02
"""Seconds that the moves of one round take at most while an engine that woke still lacks KV
extents, because a request may arrive at any moment."""


class _Entry(NamedTuple):
    """Action that is entered in the books and not answered yet."""

    action: Action
    kind: Kind
    things: int | None
    """Number of layers or extents that it moves; None for experts, which are not paced."""
    asked: int = 0
    """Number of layers or extents for which it needs granted memory."""
    wanted: int = 0
    """Number of layers or extents that granted memory is wanted for in all, those `asked` for
    included; later rounds ask for the rest."""


class Reconciler:
    """Books of one engine's memory, and the orders that lead to its allotment. `hands` is the part
    of the engine that carries the orders out: it maps and unmaps memory and loads layers."""

    def __init__(
        self,
        hands: Hands,
        shape: ModelShape,
        blocks: ExtentBlocks,
        fence: Fence,
        clock: Callable[[], float],
        *,
        pace: Pace | None = None,
        demote: Callable[[list[int]], None] = lambda extents: None,
        may_demote: Callable[[], bool] = lambda: True,
        at_rest: Callable[[], bool] | None = None,
    ) -> None:
        """Make the books by asking `hands` what is held.

        `demote` is called with the extents that are about to lose their cached content. While
        `may_demote` returns False no extent retires; a later round does it. `at_rest` returns True
        if no request runs and no step is in flight; None: at rest while the fence is idle.
        """
        self._demote, self._hands, self.blocks = demote, hands, blocks
        rests = at_rest or (lambda: fence.idle)
        self.books = MemoryBooks(shape, blocks, fence, may_demote, rests)
        self._way = Way(self.books, self)
        self._pace = pace or Pace(None, lambda: False)
        self._clock = clock
        self._short: dict[Kind, Shortage] = {"extent": Shortage(), "layer": Shortage()}
        """Granted memory that the device refused lately, by kind."""
        self._epoch = 0
        self._entries: list[_Entry] = []
        """Entries of the orders that are not answered yet."""
        self.held_bytes = 0
        """Bytes of device memory held, by the last answer."""
        self.settle(hands.obey(MemoryOrders(0)))

    @property
    def target(self) -> Allotment | None:
        """The newest allotment; None before the first."""
        return self._way.target

    @property
    def reconciled(self) -> bool:
        """True if the engine holds its allotment, or has none yet: see `Way.reached`."""
        return self._way.reached

    @property
    def rests(self) -> bool:
        """True if no step may be scheduled: see `Way.rests`."""
        return self._way.rests

    @property
    def wakes(self) -> bool:
        """True if the engine woke and does not hold its whole allotment yet: see `Way.wakes`."""
        return self._way.wakes

    @property
    def asleep(self) -> bool:
        """True if the engine is to sleep, and holds exactly what its allotment leaves it."""
        return self._way.asleep

    @property
    def exceeded(self) -> bool:
        """True if running requests hold more than a recall leaves them: see `Way.exceeded`."""
        return self._way.exceeded

    def recalls(self, running: int) -> bool:
        """True if one of `running` running requests must be preempted."""
        return self._way.recalls(running)

    @property
    def open_extents(self) -> int | None:
        """Number of KV extents up to which waiting requests are admitted, since running ones may
        need the others; None for all extents."""
        return self._way.open_extents

    @property
    def lent(self) -> Lent:
        """Layers whose memory is given away, of this engine or of any model: see `Way.lent`."""
        return self._way.lent

    def aim(self, allotment: Allotment) -> bool:
        """Adopt an allotment and make one round; False, without a round, if it is not newer than
        the present one."""
        if not self._way.aim(allotment):
            return False
        self.books.granted_bytes = allotment.grant_bytes
        self._pass(allotment.grant_bytes)
        return True

    def reconcile(self) -> bool:
        """Make one round towards the newest allotment; True if anything moved."""
        return self._pass(None)

    def _pass(self, grant_bytes: int | None) -> bool:
        called_back = self._enter_all()
        orders = self._orders(grant_bytes)
        moved = orders is not None and self.settle(self._hands.obey(orders))
        return moved or called_back

    # -- the books ------------------------------------------------------------------------

    def _enter_all(self) -> bool:
        """Enter the moves of one round in the books; True if retiring extents were made usable,
        which needs no order."""
        self._pace.begin(WAKE_ROUND_S if self._way.wakes else inf)
        called_back = False
        for move in self._way.moves():
            if isinstance(move, CallBack):
                called_back |= self.books.call_back(move.extents)
            elif isinstance(move, Retire):
                self._retire(move.extents, anew=move.anew)
            elif (entry := self._enter(move)) is not None:
                self._entries.append(entry)
                if entry.things is not None:
                    self._pace.ordered(entry.kind, entry.things)
        return called_back

    def _enter(self, move: Move) -> _Entry | None:
        match move:
            case Parameters():
                return self._set_parameters(move)
            case Unmap(count):
                return _Entry(UnmapExtents(self.books.drop(count)), "extent", count)
            case Map(count, wanted) if extents := self.books.map(count):
                action = MapExtents(extents, insists=not self._short["extent"].lasts)
                return _Entry(action, "extent", count, len(extents), wanted)
        return None

    def _set_parameters(self, move: Parameters) -> _Entry:
        books, experts = self.books, bool(self.books.experts or move.experts)
        takes = experts or bool(move.back)
        insists = takes and not self._short["layer"].lasts
        count = None if experts else abs(move.layers_remapped - books.layers_remapped)
        books.layers_remapped, books.stream_slots = move.layers_remapped, move.stream_slots
        books.experts = move.experts
        action = SetParameters(
            move.layers_remapped, move.stream_slots, move.experts, takes, insists
        )
        return _Entry(action, "layer", count, move.back if takes else 0, move.wanted)

    def _retire(self, count: int, *, anew: bool) -> None:
        """Let `count` extents retire; with `anew`, those that retire already are made usable
        before. They hold memory until they are empty, so this needs no order."""
        if anew:
            self.books.call_back(self.books.retiring_extents)
        retirees = self.blocks.to_retire(count)
        self._demote(retirees)
        self.blocks.retire(retirees)

    # -- bounds of a round -----------------------------------------------------------------

    def paced(self, kind: Kind, wanted: int) -> int:
        """Return the number of the `wanted` layers or extents (`kind`) that the round has time to
        move."""
        return self._pace.most(kind, wanted)

    def obtainable(self, kind: Kind, wanted: int) -> int:
        """Return the number of the `wanted` layers or extents (`kind`) to ask the device for now:
        fewer while it has refused granted memory lately."""
        return self._short[kind].most(wanted, self._clock())

    # -- orders and answers ---------------------------------------------------------------

    def _orders(self, grant_bytes: int | None) -> MemoryOrders | None:
        """Return the orders of this round; None if there is nothing to order or tell."""
        emptied = self.books.told_emptied()
        actions = tuple(entry.action for entry in self._entries)
        if not actions and not emptied and grant_bytes is None:
            return None
        self._epoch += 1
        return MemoryOrders(self._epoch, grant_bytes, emptied, actions)

    def settle(self, answer: MemoryAnswer) -> bool:
        """Correct the books by the answer; True if anything moved.

        Raise the error of the answer, if it has one: the engine cannot go on.
        """
        entries, self._entries = self._entries, []
        if answer.error is not None:
            raise answer.error
        for entry, done in zip(entries, answer.done, strict=True):
            self._note(entry, done)
        self.books.settle(answer)
        self.held_bytes = answer.held_bytes
        return any(done.number for done in answer.done)

    def _note(self, entry: _Entry, done: Done) -> None:
        if entry.things is not None:
            self._pace.took(entry.kind, entry.things, done.seconds)
        if isinstance(entry.action, MapExtents):
            self.books.mapped(done.number)
        if entry.asked:
            self._note_shortage(entry, done)

    def _note_shortage(self, entry: _Entry, done: Done) -> None:
        short = self._short[entry.kind]
        # Parameters move as a whole.
        whole = isinstance(entry.action, SetParameters) and done.number
        refused = 0 if whole else entry.asked - done.number
        if refused:
            short.refused(refused, self._clock())
        else:
            short.had(entry.asked, entry.wanted)
