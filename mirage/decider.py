"""Memory and turns decided together: what the control server drives.

Joins the pure controller with the pure sharing, so that a turn makes its holder the active
tenant. As pure as both: no clock, no I/O.
"""

from __future__ import annotations

from typing import Self

from mirage.config import Config
from mirage.controller import Controller
from mirage.protocol import Allotment, Hello, Refusal, Report, Turn
from scheduler.sharing import Sharing, make_sharing


class Decider:
    """Events with their time in seconds in; `decide` returns (tenant, message) pairs.

    Under spatial sharing no turn is ever sent.
    """

    def __init__(self, controller: Controller, sharing: Sharing, *, temporal: bool) -> None:
        self.controller = controller
        self.sharing = sharing
        self._temporal = temporal
        self._holders: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: Config) -> Self:
        sharing = make_sharing(config.sharing, [t.name for t in config.tenants])
        temporal = config.sharing.mode == "temporal"
        return cls(Controller.of(config), sharing, temporal=temporal)

    def joined(self, hello: Hello, now: float) -> None:
        """Raises `DoesNotFitError`, `LedgerError`: see `Controller.joined`."""
        self.controller.joined(hello.tenant, hello.shape, hello.held_bytes, now)

    def reported(self, tenant: str, report: Report, now: float) -> None:
        """Raises `LedgerError` if the engine breaks the protocol."""
        self.controller.reported(tenant, report, now)
        self.sharing.has_work(tenant, report.running + report.waiting > 0, now)
        self.sharing.holds(tenant, report.holds_turn, now)

    def lost(self, tenant: str, now: float) -> None:
        """An engine is gone, and with it its memory and its turn."""
        self.controller.lost(tenant, now)
        self.sharing.lost(tenant, now)
        self._holders -= {tenant}

    def decide(self, now: float) -> list[tuple[str, Allotment | Refusal | Turn]]:
        """The messages to send now, in order: turns first, then memory."""
        turns = self._turns(now) if self._temporal else []
        return [*turns, *self.controller.decide(now)]

    def next_deadline(self, now: float) -> float | None:
        """When `decide` may have more to say without another event; None for never."""
        times = (self.sharing.next_deadline(), self.controller.next_deadline(now))
        return min((t for t in times if t is not None), default=None)

    def _turns(self, now: float) -> list[tuple[str, Allotment | Refusal | Turn]]:
        before, self._holders = self._holders, self.sharing.decide(now)
        for name in self._holders - before:
            self.controller.turn(name, now)
        changed = sorted(before ^ self._holders)
        return [(name, Turn(name in self._holders)) for name in changed]
