"""The result of one test of `mirage doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingState(StrEnum):
    """State of a finding, in the word that is printed."""

    WORKS = "ok"
    LIMITED = "limited"
    MISSING = "no"


@dataclass(frozen=True)
class Finding:
    """Result of one test. `advice` says what the user can do; empty if nothing needs to be done."""

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
