"""One run of an engine, from its start to its end: the facts that were learned about it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from mirage.serve.adoption.record import EngineRecord
from mirage.serve.ends.ending import Ending
from mirage.serve.engines.oom import OomKills
from vmm.faults import Fault


@dataclass
class EngineRun:
    """Facts about one run of an engine, from its manager, the control server and the kernel."""

    hollow: bool = False
    """True if the engine starts without memory for all its layers."""
    left: EngineRecord | None = None
    """Record of the engine if another server started it, until it ends; else None."""
    begins: bool = False
    """True while a start has no process yet: an order to end takes effect once there is one."""
    up: bool = False
    """True once the API server has answered."""
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the core is connected to the control server, with its memory in the ledger."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the core has left the control server, or was sent away."""
    stepped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the model has computed a first step."""
    served: bool = False
    no_room: str = ""
    """Reason why the device has too little memory left for the engine to serve; empty if enough."""
    frozen: bool = False
    """True if its start was ended because one of its processes was stopped, as by SIGSTOP."""
    lost_in_first_step: bool = False
    """True if the core left the control server during its first step."""
    core_first: bool = False
    """True if the core left the control server while its API server was still running."""
    refused: str | None = None
    """Reason why the control server sent the engine away; None if it did not."""
    by_us: Ending | None = None
    """Ending if this server ended the engine; None if it did not."""
    error: str = ""
    """Class of the exception over which the core ends; empty if it told none."""
    fault: Fault | None = None
    """Fault of the GPU behind that exception; None if there is none."""
    failure: str = ""
    """Reason why the start failed; empty if it did not."""
    oom: OomKills = field(default_factory=OomKills)
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of the start, by the part's name."""

    @classmethod
    def adopted(cls, left: EngineRecord) -> EngineRun:
        """Run of a serving engine that another server started, and that has yet to connect."""
        run = cls(left=left, up=True)
        run.stepped.set()
        return run

    @property
    def in_first_step(self) -> bool:
        return self.connected.is_set() and not self.stepped.is_set()

    def is_lost(self, reason: str | None, server_has_ended: bool) -> None:
        """Note that the core has left the control server, or was sent away for a `reason`. Unless
        the `server_has_ended` before, the core counts as the process that ended first."""
        self.lost_in_first_step = self.in_first_step
        self.connected.clear()
        self.gone.set()
        self.refused = reason
        self.core_first = self.core_first or not server_has_ended

    @property
    def waits_for_nothing(self) -> bool:
        """True if the core was lost in its first step and no more can be learned of the reason.

        The core has told its error, or the API server is up and has nothing to add.
        """
        return self.lost_in_first_step and bool(self.error or self.up)

    def ending(self, server: int | None, core: int | None) -> Ending:
        """Ending of the engine, by the exit statuses of API server and core (None: unknown).

        The process that ended first counts, unless this server ended the engine.
        """
        if self.refused is not None:
            return Ending(refused=self.refused)
        if self.by_us is not None:
            return self.by_us
        if self.core_first or self.error:
            return Ending("engine core", core, self.error, oom_kills=self.oom.lately())
        return Ending("API server", server, oom_kills=self.oom.lately())
