"""One thing looked at, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingState(StrEnum):
    """State of a finding, as it is printed."""

    WORKS = "ok"
    LIMITED = "limited"
    MISSING = "no"


@dataclass(frozen=True)
class Finding:
    """A fact that `mirage doctor` tested. `advice` says what to do, and is empty if nothing is."""

    topic: str
    what: str
    state: FindingState
    found: str
    advice: str = ""


def works(topic: str, what: str, found: str) -> Finding:
    return Finding(topic, what, FindingState.WORKS, found)


def limited(topic: str, what: str, found: str, advice: str) -> Finding:
    return Finding(topic, what, FindingState.LIMITED, found, advice)


def missing(topic: str, what: str, found: str, advice: str) -> Finding:
    return Finding(topic, what, FindingState.MISSING, found, advice)
