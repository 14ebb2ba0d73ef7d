"""Table by which the router serves, as plain data that the supervisor sends. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from mirage.control.roster.states import LifeState
from mirage.serve.access.rates import NO_BOUNDS, NO_LIMITS, BodyBounds, RateLimits
from mirage.serve.ends.comeback import ComebackTimes

REACHABLE = frozenset({LifeState.READY, LifeState.DRAINING, LifeState.SLEEPING, LifeState.WAKING})
"""States in which a tenant has an engine that queues requests."""


class RoutedRow(msgspec.Struct, frozen=True):
    """A tenant's row in the table that the supervisor pushes to the router."""

    name: str
    socket: str
    """Path of the socket at which the engine's API server listens."""
    max_model_len: int
    state: LifeState = LifeState.STARTING
    life: int = 0
    """Number of the tenant's engine; the requests of engines with lower numbers have ended."""
    at_once: bool = True
    """True if requests may be passed on without asking the supervisor."""
    adopted: bool = False
    """True if the engine was taken over from another supervisor, with its requests."""
    well: bool = False
    """True if the tenant serves, or will when it gets a request."""
    reason: str = ""
    """Reason of the state, mostly a line of a log; empty if there is none."""
    adapters: dict[str, str] = {}
    """LoRA adapters that are served as models of their own: each folder, by the adapter's name."""
    known: dict[str, str] = {}
    """The engine's names of adapters, by the adapters' names, where they differ."""
    aliases: tuple[str, ...] = ()
    limits: RateLimits = NO_LIMITS
    bounds: BodyBounds = NO_BOUNDS
    comeback: ComebackTimes = ComebackTimes()
    leaves: bool = False
    """True if the tenant was removed but still runs requests: it gets no new ones."""
    wake_s: float = 0.0
    """Seconds that a wake of this tenant takes, measured or predicted."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use: the tenant's own, aliases, and adapters."""
        return (self.name, *self.aliases, *self.adapters)

    def known_as(self, model: str) -> str:
        """The engine's name of `model`, which is one of `names`."""
        return self.name if model in self.aliases else self.known.get(model, model)

    def comes_s(self, now: float) -> float:
        """Seconds from a request now until the tenant is ready, predicted from past wakes and
        starts. `now` is by `time.monotonic`.
        """
        if self.state is LifeState.READY and self.at_once:
            return 0.0
        if self.state in (LifeState.SLEEPING, LifeState.WAKING):
            return self.wake_s
        return self.wait_s(now) or self.comeback.start_s

    def wait_s(self, now: float) -> float | None:
        """Seconds after which a refused request may be served; None for a failed tenant without a
        next start. `now` is by `time.monotonic`.
        """
        wait_s = self.comeback.wait_s(now)
        if wait_s is None and self.state is not LifeState.FAILED:
            return self.comeback.start_s  # it ends at the moment: a start follows
        return wait_s


class RouterTable(msgspec.Struct, frozen=True):
    """All tenants, and the health of the memory that they share."""

    tenants: tuple[RoutedRow, ...] = ()
    device: dict[str, Any] = msgspec.field(default_factory=lambda: {"status": "ok"})
    """Health of the device, with the reason if it has failed."""
    below: dict[str, Any] = {}
    """Health of memory below the device, in keys of ``/health``."""

    def shifted(self, seconds: float) -> RouterTable:
        """The table for a process whose clock is `seconds` ahead."""
        rows = (
            msgspec.structs.replace(row, comeback=row.comeback.shifted(seconds))
            for row in self.tenants
        )
        return msgspec.structs.replace(self, tenants=tuple(rows))

    def health(self, *, reasons: bool = True) -> dict[str, Any]:
        """Body of ``/health``. `reasons` adds lines of logs, which not everybody may see."""
        ready = sum(row.well for row in self.tenants)
        status = "ok" if ready == len(self.tenants) else "degraded" if ready else "down"
        known = {row.name: row.reason for row in self.tenants if row.reason and reasons}
        device = self.device if reasons else {"status": self.device["status"]}
        return (
            {"status": status, "tenants": {row.name: row.state for row in self.tenants}}
            | {"device": device}
            | ({"reasons": known} if known else {})
            | self.below
        )
