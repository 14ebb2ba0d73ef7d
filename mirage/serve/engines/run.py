"""One engine of a tenant, from its start to its end: what was heard of it."""

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
    """True if it starts without memory for all layers."""
    left: EngineRecord | None = None
    """Record of it if another server has started it; None from its end."""
    begins: bool = False
    """True while it has no process yet: what ends it then ends the process at once."""
    up: bool = False
    """True once its server has answered."""
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while its core is at the control server, and its memory booked."""
    stepped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the model has computed a first step."""
    served: bool = False
    no_room: str = ""
    """Reason why too little of the device is left for it to serve; empty if enough is."""
    frozen: bool = False
    """True if it was ended since a process of its start had been stopped from outside."""
    lost_in_first_step: bool = False
    """True if its core left the control server before it had computed a step."""
    core_first: bool = False
    """True if its core ended, or left the control server, before its API server ended."""
    refused: str | None = None
    """Reason why the control server sent it away; None if it did not."""
    by_us: Ending | None = None
    """End that this server brought about; None if it did not."""
    error: str = ""
    """The exception over which its core ends."""
    fault: Fault | None = None
    """Fault of the GPU behind that exception; None if there is none."""
    failure: str = ""
    """Reason why it did not start; empty if it did."""
    oom: OomKills = field(default_factory=OomKills)
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of the parts of its start."""

    @classmethod
    def adopted(cls, left: EngineRecord) -> EngineRun:
        """Run of an engine that another server has started, and that serves: it is awaited."""
        run = cls(left=left, up=True)
        run.stepped.set()
        return run

    @property
    def in_first_step(self) -> bool:
        return self.connected.is_set() and not self.stepped.is_set()

    def is_lost(self, reason: str | None, server_has_ended: bool) -> None:
        """The engine's core has left the control server, or was sent away for a `reason`."""
        self.lost_in_first_step = self.in_first_step
        self.connected.clear()
        self.refused = reason
        self.core_first = self.core_first or not server_has_ended

    @property
    def waits_for_nothing(self) -> bool:
        """True if its core was lost in its first step, and the reason is known.

        The core has told its error, or the API server is up and has nothing to add.
        """
        return self.lost_in_first_step and bool(self.error or self.up)

    def ending(self, server: int | None, core: int | None) -> Ending:
        """Cause of its end, by the exit statuses of its processes (None: unknown).

        The API server may have ended first, over its core, or by us.
        """
        if self.refused is not None:
            return Ending(refused=self.refused)
        if self.by_us is not None:
            return self.by_us
        if self.core_first or self.error:
            return Ending("engine core", core, self.error, oom_kills=self.oom.lately())
        return Ending("API server", server, oom_kills=self.oom.lately())
