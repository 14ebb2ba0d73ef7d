"""Forms of what the admin socket says. Bytes of device memory, seconds; `t` and `since` in
seconds since 1970."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from mirage.serve.coming import WeightsComing

FORM_VERSION = 4
LONGEST_S = 1_000_000
"""Longest time of which loans are told."""


class OperatorAct(StrEnum):
    """Acts of an operator on a tenant."""

    SLEEP = "sleep"
    WAKE = "wake"
    STOP = "stop"
    RESTART = "restart"
    DRAIN = "drain"


class DeclaredTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as it was configured. Spans that never end are None."""

    share_percent: float | None
    """None is ``auto`` of a tenant that could not be asked."""
    aliases: list[str]
    adapters: dict[str, str]
    """Folders of adapters that its engine loads while it runs, by their names."""
    priority: int
    start: str
    keep_alive_s: float | None
    stop_after_s: float | None
    pinned: bool
    max_waiting: int
    max_wait_s: float
    keep_weights: str


class AdapterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A declared adapter as it is now."""

    name: str
    state: str
    """`waiting` for an engine, `loading`, `loaded` or `failed`."""
    reason: str
    """Reason of a failure; else empty."""


class TenantStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State, memory and requests of one tenant now, as the admin socket tells it."""

    name: str
    spec: DeclaredTenant
    state: str
    since: float
    """Time at which this state was first seen."""
    reason: str
    """The last one that was given for a state, even if that is over; empty if none was."""
    weights: str
    """The fastest place that has all of them: device, host or disk."""
    device: str
    held_bytes: int
    """Bytes that its engine holds, or may come to hold while it starts."""
    share_bytes: int | None
    asleep_bytes: int | None
    """Bytes that it holds asleep; None where no tenant sleeps."""
    running: int
    """Requests that were passed on to its engine."""
    waiting: int
    """Requests that wait for it to be awake."""
    ready_s: float | None
    """Seconds until it would be ready if it were asked for now, predicted; None if nobody knows."""
    yields_s: float | None
    """Seconds until its own times put it to sleep or stop it; None if they do not."""
    adapters: list[AdapterStatus]
    restarts: int
    log: str


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The server and its device."""

    pid: int
    url: str
    policy: str
    device: str
    device_bytes: int


class TenantsTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /tenants``."""

    form_version: int
    revision: int
    """Revision of what operators want: each act and each apply that is taken adds one."""
    server: DeviceStatus
    tenants: list[TenantStatus]
    coming: list[WeightsComing] = []
    """Weights that come into the store of its machine."""


class ActTaken(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to an act that is taken."""

    tenant: str
    act: OperatorAct
    will: str
    """Sentence about what will happen."""
    state: str
    """Its state right after."""
    revision: int
    devices: dict[str, ActTaken] = {}
    """Answers of the devices that take it, where several are served."""


class KeysTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to ``POST /keys``."""

    line: str
    """Keys that hold from now on, in words."""


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``GET /watch``."""

    t: float
    tenant: str
    before: str
    state: str
    revision: int
    """Revision of what operators want when it was told: an act's own, or a later one, of what came
    of the act."""
    reason: str = ""
    removed: bool = False
    """True of a tenant that is declared no more. A line says so even if its state stays."""
    act: str = ""
    """Act that this line tells, which has no other state than before; else empty."""
    device: str = ""
    """Name of the device that tells it, among several; its revision is that of its own server."""


class LoanTold(msgspec.Struct, frozen=True, kw_only=True):
    """Loans of one tenant to another in a span of time, or to itself of its own layers.

    For free memory the lender is empty.
    """

    lender: str
    borrower: str
    bytes_now: int
    lent_s: float
    byte_s: float
    """Bytes times seconds."""
    most_bytes: dict[str, int]
    """The most at once, by kind: ``layers``, ``experts``, ``KV memory``, ``free memory``."""
    most_layers: float
    """The same of layers, by their number."""
    reasons: dict[str, float]
    """Byte-seconds by the reason of the plan."""
    wait_s: float
    """Seconds that steps of the lender waited for what it streams."""
    token_s: float
    """Seconds that this added to its tokens, all together."""
    tokens: int
    """Tokens that it decoded meanwhile."""
    requests: int
    """Its requests that ran meanwhile."""
    preemptions_saved: float
    """Preemptions of the borrower, estimated; the next two likewise."""
    waits_saved: float
    """Requests of the borrower that did not wait."""
    request_s: float
    """Seconds of its requests on this memory, all together."""


class MoveStepTold(msgspec.Struct, frozen=True):
    """A step of a move: what is done to a model on one device."""

    verb: str
    """``bring``, ``start``, ``wake``, ``route``, ``drain``, ``sleep`` or ``stop``."""
    model: str
    device: str
    why: str
    result: str = ""
    """``under way``, ``done``, ``failed`` or ``left out``; empty before that."""
    words: str = ""
    """Words about how far it is, why it failed, or what remains."""
    seconds: float = 0.0


class MoveTold(msgspec.Struct, frozen=True, kw_only=True):
    """A decision by which models moved between devices."""

    t: float
    why: str
    before: dict[str, dict[str, str]]
    """``awake`` or ``asleep`` of each model on each of its devices."""
    after: dict[str, dict[str, str]]
    """The same, as it was decided."""
    result: str
    """``under way``, ``done`` or ``failed``."""
    way_back: str = ""
    """Undone parts after a failure, in words."""
    steps: list[MoveStepTold]


class WhyTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /why``: a page of loans."""

    t: float
    began: float
    """Time at which this server began; what was lent before is not known."""
    since: float
    """Time from which on loans are counted here."""
    moves: list[dict[str, Any]]
    """Moves of the plan that the newest allotments follow, as in ``/mirage/state``."""
    loans: list[LoanTold]
    """By the names of lender and borrower."""
    next_skip: int | None
    """`skip` of the next page; None with the last one."""
    placements: list[MoveTold] | None = None
    """Moves between several devices, the newest last; None of one device."""
    stays: str = ""
    """Reason of the last decision by which nothing moved between devices."""
    sockets: dict[str, str] = {}
    """Sockets of the servers of several devices, each of which tells of memory on its own."""
