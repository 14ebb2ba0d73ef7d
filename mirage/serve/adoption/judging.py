"""Decisions about engines that a killed server left: each goes on, or is ended for a reason.
Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from mirage.protocol import PROTOCOL_VERSION, Hello
from mirage.serve.adoption.record import EngineRecord
from mirage.units import size


class EngineWanted(NamedTuple):
    """Engine that would be started for a tenant now: the hash of its start, and its log."""

    order: str
    log: str


def unfit(left: EngineRecord, wanted: EngineWanted | None, *, lives: bool) -> str:
    """Reason to end an engine that a killed server left, by its record; empty if it may go on.

    `wanted` is None if its tenant is not served. `lives` is true if its API server still runs.
    """
    if not lives:
        return "its API server has ended"
    if wanted is None:
        return "its tenant is not served"
    if not left.serves or left.core is None:
        return "it had not served yet"
    if left.order != wanted.order:
        return "its model, its arguments or its environment are others now"
    if left.log != wanted.log:
        return f"its log is {left.log}, and {wanted.log} is wanted"
    return ""


def unwelcome(hello: Hello, left: EngineRecord | None, found_bytes: int) -> str:
    """Reason to refuse an engine that says hello again; empty if it is the expected one.

    `left` is the record of the tenant's expected engine, None if there is none. `found_bytes` is
    the device memory counted in its memory files.
    """
    if left is None or left.core is None:
        return "nobody awaits it"
    if hello.version != PROTOCOL_VERSION:
        return f"it speaks protocol {hello.version}, this server {PROTOCOL_VERSION}"
    if hello.pid != left.core.pid:
        return f"it is process {hello.pid}, and {left.core.pid} was left"
    if (holdings := hello.holdings) is None:
        return "it does not say what it holds"
    if holdings.report.revision != holdings.allotment.revision:
        return "its report does not follow its allotment"
    most = max(holdings.report.held_bytes, holdings.allotment.grant_bytes)
    if found_bytes > most:
        return f"it holds {size(found_bytes)} and may hold {size(most)}"
    return ""
