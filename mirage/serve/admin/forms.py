"""Forms of the admin socket's answers. Bytes are of device memory, times in seconds; `t` and
`since` in seconds since 1970.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from mirage.serve.models.weights_progress import WeightsComing

FORM_VERSION = 4
LONGEST_S = 1_000_000
"""Longest time in seconds for which loans can be asked."""


class OperatorAct(StrEnum):
    """Acts of an operator on a tenant."""

    SLEEP = "sleep"
    WAKE = "wake"
    STOP = "stop"
    RESTART = "restart"
    DRAIN = "drain"


class DeclaredTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Tenant as the configuration declares it. None as a span stands for one that never ends."""

    share_percent: float | None
    """Share in per cent; None for ``auto`` of a tenant whose model could not be looked at."""
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
    """State of a declared adapter."""

    name: str
    state: str
    """One of `waiting` (for an engine), `loading`, `loaded` and `failed`."""
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
    """Last reason that was given for a state, even if that state is over; empty if none was."""
    weights: str
    """Fastest place that has all weights: device, host or disk."""
    device: str
    held_bytes: int
    """Bytes that its engine holds; while it starts, those that it may come to hold."""
    share_bytes: int | None
    asleep_bytes: int | None
    """Bytes that it holds whenever it sleeps; None if the policy has no sleep."""
    running: int
    """Number of requests that its engine got and that have not ended; 0 while it sleeps or wakes.
    """
    waiting: int
    """Number of requests that wait until it is awake, also inside its sleeping engine."""
    ready_s: float | None
    """Predicted seconds until it would be ready if it were asked for now; None if unknown."""
    yields_s: float | None
    """Seconds until `keep_alive` or `stop_after` puts it to sleep or stops it; None if they do
    not.
    """
    adapters: list[AdapterStatus]
    restarts: int
    log: str
    removed: bool = False
    """True for a tenant that was removed from the configuration and has not ended yet."""


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The server and its device."""

    pid: int
    url: str
    policy: str
    device: str
    device_bytes: int
    routers: list[str] = []
    """Machines whose routers are connected to the device, beside its own router; sorted."""
    own_router: bool = True
    """True if the device's own router is connected."""


class TenantsTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /tenants``."""

    form_version: int
    revision: int
    """Revision of operators' wishes, raised by each accepted act and apply."""
    server: DeviceStatus
    tenants: list[TenantStatus]
    coming: list[WeightsComing] = []
    """Weights that are being brought into this machine's store."""


class ActTaken(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to an act that was accepted."""

    tenant: str
    act: OperatorAct
    will: str
    """Sentence about what will happen."""
    state: str
    """State of the tenant right after the act was accepted."""
    revision: int
    devices: dict[str, ActTaken] = {}
    """Answers of each device that carries it out, if several are served."""


class KeysTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to ``POST /keys``."""

    line: str
    """Line about the keys in use from now on."""


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``GET /watch``: a tenant's state has changed, or an operator has ordered an act."""

    t: float
    tenant: str
    before: str
    state: str
    revision: int
    """Revision when the change was noted. An act has its own; changes that follow from it have that
    one or a later one.
    """
    reason: str = ""
    removed: bool = False
    """True for a tenant that was removed from the configuration. A removal has a line even if the
    state stays.
    """
    act: str = ""
    """Act of an operator, in a line without a change of state; else empty."""
    device: str = ""
    """Device that tells the change, if several are served; `revision` is its own server's."""


class LoanTold(msgspec.Struct, frozen=True, kw_only=True):
    """Loans of one tenant to another over a span of time, or of its own layers to itself.

    The lender is empty for free memory.
    """

    lender: str
    borrower: str
    bytes_now: int
    lent_s: float
    byte_s: float
    """Bytes times seconds."""
    most_bytes: dict[str, int]
    """Most bytes at one time, by kind: ``layers``, ``experts``, ``KV memory``, ``free memory``."""
    most_layers: float
    """Most layers at one time."""
    reasons: dict[str, float]
    """Byte-seconds by the plan's reason for them."""
    wait_s: float
    """Seconds for which steps of the lender waited for streamed layers or experts."""
    token_s: float
    """Seconds by which these waits delayed the lender's tokens, summed over all tokens."""
    tokens: int
    """Number of tokens that the lender decoded during the loans."""
    requests: int
    """Number of the lender's requests that ran during the loans."""
    preemptions_saved: float
    """Estimated number of preemptions that the borrower avoided."""
    waits_saved: float
    """Estimated number of the borrower's requests that did not have to wait."""
    request_s: float
    """Estimated seconds for which the borrower's requests ran on this memory, summed over all
    requests.
    """


class MoveStepTold(msgspec.Struct, frozen=True):
    """Step of a move: an act on one model on one device."""

    verb: str
    """``bring``, ``start``, ``wake``, ``route``, ``drain``, ``sleep`` or ``stop``."""
    model: str
    device: str
    why: str
    result: str = ""
    """``under way``, ``done``, ``failed`` or ``left out``; empty before the step begins."""
    words: str = ""
    """Words about the step's progress, the reason of its failure, or its result; may be empty."""
    seconds: float = 0.0


class MoveTold(msgspec.Struct, frozen=True, kw_only=True):
    """Decision to move models between devices, and how it went."""

    t: float
    why: str
    before: dict[str, dict[str, str]]
    """``awake`` or ``asleep``, by model and device, before the move."""
    after: dict[str, dict[str, str]]
    """The same after the move, as it was decided."""
    result: str
    """``under way``, ``done`` or ``failed``."""
    way_back: str = ""
    """Words about what was undone after failed steps; empty if no step failed."""
    steps: list[MoveStepTold]


class WhyTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /why``: moves, and a page of loans."""

    t: float
    began: float
    """Time at which this server began; earlier loans are not known."""
    since: float
    """Time from which on loans are counted in this answer."""
    moves: list[dict[str, Any]]
    """Moves of the plan that the newest allotments follow, as in ``/mirage/state``."""
    loans: list[LoanTold]
    """Loans in the order of the lenders' and borrowers' names."""
    next_skip: int | None
    """Value of `skip` for the next page; None on the last one."""
    placements: list[MoveTold] | None = None
    """Moves between devices, the newest last; None if only one device is served."""
    stays: str = ""
    """Reason of the last decision to move nothing between devices."""
    sockets: dict[str, str] = {}
    """Admin sockets of several devices' servers, each of which tells about its own memory."""
