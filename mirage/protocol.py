"""Protocol between an engine and the control server, over one Unix socket.

The form is that of `mirage.wire`; the tag of a message is its ``type``. The control server states
the memory that it wants an engine to hold (an `Allotment`, a desired state, never a delta); the
engine states what it holds and what it wants (a `Report`). Each allotment carries a revision that
only grows, so an engine recognises and ignores a repeated or late allotment.

By one promise the control server never promises bytes of the device twice: an engine that reports
revision ``r`` holds no more than ``max(Report.held_bytes, grant of r)`` until it sees a newer one.
So its bound is the maximum of the newest report's holding, the grant of the revision in that
report, and the grants of all newer allotments that were sent.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mirage.counters import Counters

PROTOCOL_VERSION = 24
BEAT_S = 0.5
"""Seconds between two `Alive` messages of the server, and between two `Pulse` messages of an
engine.
"""
LEASE_MARGIN_S = 15.0
"""Seconds after the lease for which an engine still waits for a server. Within them it can be ended
from outside together with all else that the lease kept; after them it ends by itself.
"""


LentInTurns = Literal["nothing", "in turns", "in turns that drain"]
"""Layers that are lent under temporal sharing: none; some, in turns that do not drain; or some, in
turns that drain.
"""


class ModelShape(msgspec.Struct, frozen=True):
    """Constant properties of one engine: sizes in bytes, extents in KV blocks.

    `layer_bytes` is the page-rounded size of the largest decoder layer, the unit in which parameter
    memory moves. `fixed_bytes` is device memory that never moves (embeddings, output head,
    adapters, a drafter). `extent_bytes` is the smallest page-aligned run of KV blocks.
    """

    layers: int
    layer_bytes: int
    fixed_bytes: int
    extent_bytes: int
    extent_blocks: int
    block_tokens: int
    max_extents: int
    """KV extents in the reserved range: the most that this engine could ever map."""
    min_extents: int
    """KV extents below which the engine cannot serve its longest request."""
    movable_layers: int
    """Layers that may ever be given away: all layers of the model, or 0 if they stay."""
    movable_experts: int = 0
    """Experts of each layer with experts that may be given away; 0 if none may."""
    expert_layers: int = 0
    """Layers that have experts which may be given away."""
    expert_bytes: int = 0
    """Bytes of one expert of one layer, in whole pages."""


class Report(Counters, tag="report", tag_field="type"):
    """Engine to control server: the engine's state after a step, or after it acted on an
    allotment."""

    revision: int
    """Revision of the newest allotment seen; 0 before the first."""
    holds_turn: bool
    """Temporal sharing: True if a step may be running. Always true under spatial sharing."""
    held_bytes: int
    """Bytes of device memory that the engine holds now."""
    layers_remapped: int
    """Layers whose memory is given away now."""
    stream_slots: int
    """Slots that the streamed layers share now; 0 where no layer is remapped."""
    kv_extents: int
    """Extents that hold memory: usable, or retiring and not yet given back."""
    kv_used_extents: int
    """Extents with at least one block that belongs to a request."""
    kv_usable_extents: int = 0
    """Extents that `kv_blocks` fill, or `kv_used_extents` if that is more."""
    growth_extents: int = 0
    """Extents in total, granted or not, that running requests need: those in use, those of their
    next steps, and the engine's headroom.
    """
    admission_extents: int = 0
    """Extents in total, granted or not, with which waiting requests could start too: as many as may
    run beside those that do.
    """
    running: int = 0
    """Requests in vLLM's running queue, including those held back for memory."""
    waiting: int = 0
    """Requests that have not started, and preempted ones."""
    kv_used_blocks: int = 0
    """Blocks among `kv_blocks` that belong to a request."""
    kv_blocks: int = 0
    """Usable blocks (granted and not retiring), the null block left out."""
    kv_cached_blocks: int = 0
    """Usable blocks that belong to no request and hold a cached prefix."""
    blocks_again: int = 0
    """Cached blocks that a request used again for their content, counted since the engine's
    start.
    """
    keeps_below: bool = False
    """True if cached prefixes that leave the device are kept in a tier."""
    experts: int = 0
    """Experts of each layer whose memory is given away now; if not 0, no layer is remapped."""
    expert_load_s: float = 0.0
    """Seconds to load one expert while a step waits, measured; before the first such load, its part
    of `layer_load_s`. 0 while unknown.
    """
    expert_routed: list[float] = msgspec.field(default_factory=list)
    """At index g: how many of the g coldest experts of each layer one step routes to, summed over
    layers. Empty while too little was observed.
    """
    layer_load_s: float = 0.0
    """T_T: seconds to load one layer from host memory, measured; 0 while unknown."""
    layer_compute_s: float = 0.0
    """T_c: seconds of compute per layer and step, smoothed; 0 while unknown."""
    token_s: float = 0.0
    """Seconds by which one more computed token lengthens a step, measured; 0 while unknown."""
    step_s: float = 0.0
    """Seconds from the end of one step to the end of the next, less those of its tokens; 0 while
    unknown.
    """
    sleep_s: float = 0.0
    """Seconds in which the engine gave its memory when it last fell asleep; 0 if it never did."""
    wake_s: float = 0.0
    """Seconds in which its layers got memory when it last woke; 0 if it never did."""
    asleep: bool = False
    """True if the newest allotment is one of sleep, and the engine holds no more than its grant."""


class Pulse(msgspec.Struct, tag="pulse", tag_field="type", frozen=True):
    """Engine to control server: a sign of life, sent every `BEAT_S` seconds by a thread that never
    waits for the engine's main thread.
    """

    scheduler_calls: int
    """Calls of vLLM's scheduler that the engine's main thread has begun. While it has requests,
    they follow one another, also while another engine has the turn.
    """
    requests: int
    """Requests that run or wait."""
    cpu_s: float = 0.0
    """Processor seconds that the engine's process has used."""
    children_cpu_s: float = 0.0
    """Processor seconds that its descendants, such as compilers, have used. 0 unless there are
    requests and no call of the scheduler has begun since the pulse before.
    """


class Stepped(msgspec.Struct, tag="stepped", tag_field="type", frozen=True):
    """Engine to control server: the model has computed a request of the engine's own, so the engine
    is ready to serve."""

    free_bytes: int = 0
    """Bytes of the device that no process uses; 0 if the device is host memory."""
    total_bytes: int = 0
    """All bytes of the device; 0 if the device is host memory."""


class CoreFailed(msgspec.Struct, tag="failed", tag_field="type", frozen=True):
    """Engine to control server: the last message of an engine whose core ends with an exception."""

    error: str
    """Class of the exception, without its text, which may quote a request."""
    fault: str = ""
    """The driver's name of the GPU fault that caused the exception; empty if there was none."""


class Allotment(msgspec.Struct, tag="allotment", tag_field="type", frozen=True):
    """Control server to engine: the memory that the engine shall hold, as soon as it safely can."""

    revision: int
    """Number of the allotment; it grows by one with each allotment of the engine."""
    layers_remapped: int
    """Layers whose memory is given away."""
    stream_slots: int
    """Slots that the streamed layers share: 1 or 2; 0 where no layer is remapped."""
    kv_extents: int
    """Extents that shall hold memory."""
    grant_bytes: int
    """Bytes of device memory of this allotment: parameters, slots, spare frames of experts and KV
    cache.
    """
    open_extents: int | None = None
    """Part of `kv_extents` that waiting requests may use, too; None for all of them."""
    recall: bool = False
    """True if running requests are preempted, newest first, until their blocks fit into
    `kv_extents`.
    """
    experts: int = 0
    """Experts of each layer whose memory is given away; only where no layer is remapped."""
    lent: LentInTurns = "nothing"
    """Layers, of whichever models, whose memory is lent under temporal sharing, and how."""
    asleep: bool = False
    """True for an engine that shall compute nothing and hold `geometry.asleep_bytes`, no more.

    Then `layers_remapped` is all layers, or 0 if they stay; `stream_slots` and `experts` are 0;
    `kv_extents` is 1, or 0 of a model without a KV cache."""


class EngineHoldings(msgspec.Struct, frozen=True):
    """Memory that an engine holds since an earlier server, which has gone, allotted it."""

    allotment: Allotment
    """Newest allotment that the engine has seen."""
    report: Report
    """The engine's present state; its revision is that of `allotment`."""


class Hello(msgspec.Struct, tag="hello", tag_field="type"):
    """Engine to control server: the first message. `held_bytes` is the device memory that the
    engine holds now."""

    version: int
    tenant: str
    pid: int
    shape: ModelShape
    held_bytes: int
    holdings: EngineHoldings | None = None
    """Memory of an engine that has served under an earlier server; None for a new engine."""


class Refusal(msgspec.Struct, tag="refusal", tag_field="type", frozen=True):
    """Control server to engine: no memory can be had for the engine's last demand, so it may
    preempt now."""

    revision: int
    """Revision of the engine's newest allotment."""


class Turn(msgspec.Struct, tag="turn", tag_field="type", frozen=True):
    """Control server to engine, under temporal sharing: the engine gets the turn or loses it. It
    steps only while it holds the turn."""

    holds: bool
    drain: bool = False
    """True if an engine that loses the turn first finishes the requests that it has begun."""
    spill_bytes: int = 0
    """KV memory, in bytes, that its requests give up after it has stopped: those that have loaded
    and not gone on since, then running ones, in both groups the newest first.
    """


class Alive(msgspec.Struct, tag="alive", tag_field="type", frozen=True):
    """Control server to engine: the server lives, so an engine that waits for its answer may go on
    waiting.

    It is sent every `BEAT_S` seconds, whatever else is sent, and has no answer.
    """


class EngineLease(msgspec.Struct, tag="lease", tag_field="type", frozen=True):
    """Control server to engine: the seconds for which the engine may go on after its server has
    gone without a `Shutdown`.

    In that time it holds no more than it was allotted, and sends `Hello` to the next server at the
    same socket. An engine that has received no lease ends with its server.
    """

    seconds: float


class Shutdown(msgspec.Struct, tag="shutdown", tag_field="type", frozen=True):
    """Control server to engine: the server ends, so the engine finishes its step and exits."""


FromEngine = Hello | Report | Pulse | Stepped | CoreFailed
ToEngine = Allotment | Refusal | Turn | Alive | EngineLease | Shutdown
