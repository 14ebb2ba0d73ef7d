"""Claim of a controller (`mirage serve --cluster`) on its cluster: held while it is renewed.
Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum, auto

import msgspec

from mirage.processes.marks import ProcessMark

SILENT_S = 15.0
"""Seconds without a renewal after which a controller counts as ended."""
TIME = "%Y-%m-%d %H:%M:%S"
RENEW_S = 1.0
"""Seconds between two renewals of a claim."""


class Claimant(msgspec.Struct, frozen=True):
    """A controller: its process, and its start."""

    machine: str
    place: str
    """Identifier of the boot and of the process numbers in which `mark` holds."""
    mark: ProcessMark
    since: float
    """Time of its start, in seconds since 1970, by the clock of its machine."""


class ControllerClaim(msgspec.Struct, frozen=True):
    """Claim of a controller on an epoch, as the cluster keeps it: the value of the fact (a small
    value by key) whose key names the epoch.
    """

    by: Claimant
    renewals: int = 0
    ended: bool = False
    """True if the controller has given up its claim at its end, False if it runs or was killed."""


def controller_words(pid: int, machine: str, since: float) -> str:
    """Words about a controller: its process, its machine, and its start."""
    return f"process {pid} on {machine}, since {datetime.fromtimestamp(since, UTC):{TIME}} UTC"


class ClaimState(Enum):
    """State of another controller's claim, as this controller sees it."""

    FREE = auto()
    """Its controller has ended or is silent, or no claim can be read."""
    HELD = auto()
    UNKNOWN = auto()
    """It was not renewed since it was first seen, which is less than `SILENT_S` ago: it has to be
    looked at again."""


class ClaimSight:
    """Claim of another controller under observation. It is judged by its renewals and not by times
    of that machine, because clocks of two machines may disagree.
    """

    def __init__(self, now: float) -> None:
        """Times are in seconds, by this machine's monotonic clock."""
        self._since = now
        self._first: tuple[int, ControllerClaim] | None = None

    def sees(
        self, epoch: int, claim: ControllerClaim | None, now: float, *, is_dead: bool = False
    ) -> ClaimState:
        """State of the newest claim at `now`; `claim` is None if there is none, or one that cannot
        be read. `is_dead` is true if its process is known to have ended.
        """
        if claim is None or claim.ended or is_dead:
            return ClaimState.FREE
        if self._first is None:
            self._first = epoch, claim
        if (epoch, claim) != self._first:
            return ClaimState.HELD
        return ClaimState.FREE if now - self._since >= SILENT_S else ClaimState.UNKNOWN
