"""Simulated models that wake, sleep, start and stop where not all fit, and the time of each
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from mirage.config import RosterSection
from mirage.control.roster.needs import StateBytes, SwitchSpeeds, state_bytes
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.specs import TenantSpec
from mirage.control.rules import Rules
from mirage.profiles import Hardware
from mirage.protocol import ModelShape

Seconds = Annotated[float, Field(ge=0, le=1e6)]


class SimulatedRoster(RosterSection):
    """Roster of an experiment: models are awake on request, not all at the same time. Shares may be
    left out.
    """

    sleep_s: Seconds = 0.1
    """Seconds that a sleep takes in addition to its copies; `wake_s`, `stop_s` and `start_s` are
    the same of a wake, a stop and a start."""
    wake_s: Seconds = 0.05
    stop_s: Seconds = 1.0
    start_s: Seconds = 5.0
    """Seconds of a start, beside those of the copied bytes, with weights in host memory."""


@dataclass(frozen=True)
class Coming:
    """Method by which a model gives up its place on the device and comes back: it sleeps, or its
    process ends. `changes` replaces rules of the experiment's roster, by name.
    """

    sleeps: bool = True
    """True if a tenant that yields sleeps; False if its process ends."""
    copies: bool = False
    """True if a sleep copies all weights to host memory and keeps nothing on the device except the
    process's own memory. If False, and `sleeps` is True, a model starts asleep: it needs no room on
    the device until its process is up.
    """
    changes: Mapping[str, Any] = field(default_factory=dict)

    def rules(self, section: SimulatedRoster) -> RosterRules:
        """Rules of the roster with this method."""
        asked = {name: getattr(section, name) for name in RosterSection.model_fields}
        asked |= dict(self.changes)
        return RosterRules(sleeps=self.sleeps, **asked)

    def speeds(self, section: SimulatedRoster, hardware: Hardware) -> SwitchSpeeds:
        """Speeds of changes of state on this machine. All starts find the weights in host
        memory.
        """
        link = hardware.link_gb_s.value * 1e9
        names = ("sleep_s", "wake_s", "stop_s")
        own = {name: getattr(section, name) for name in names}
        start_s = section.start_s
        return SwitchSpeeds(
            link, link, warm_s=start_s, cold_s=start_s, copies_out=self.copies, **own
        )

    def bytes_of(
        self, spec: TenantSpec, shape: ModelShape, hardware: Hardware, rules: Rules
    ) -> StateBytes:
        """Bytes of device memory that a model takes awake, asleep and while it starts."""
        hollow = self.sleeps and not self.copies
        own = state_bytes(spec, shape, hardware.memory_bytes, rules, hollow=hollow)
        if not self.sleeps:
            return replace(own, asleep=0, loaded=own.loaded + own.asleep)
        if self.copies:
            kept = min(own.asleep, int(hardware.reserved_mb.value * 1e6))
            return replace(own, asleep=kept, loaded=own.loaded + own.asleep - kept)
        return own
