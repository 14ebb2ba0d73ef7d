"""Protocol between an engine and the control server, over one Unix socket.

The form is that of `mirage.wire`; the tag of a message is its ``type``. The control server states
the memory that it wants an engine to hold (an `Allotment`, a desired state, never a delta); the
engine states what it holds and what it wants (a `Report`). Each allotment carries a revision that
only grows, so a repeated or late one is recognised and ignored.

The promise that makes over-commitment impossible: once an engine has *seen* revision ``r``
(``Report.revision == r``) it never holds more than ``max(Report.held_bytes, r.grant_bytes)``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mirage.counters import Counters

PROTOCOL_VERSION = 22
BEAT_S = 0.5
"""Seconds between two `Alive`, and between two `Pulse`."""
LEASE_MARGIN_S = 15.0
"""Seconds after the lease in which what shall end with it is ended from outside; then it ends."""


LentInTurns = Literal["nothing", "in turns", "in turns that drain"]
"""Layers that are lent in turns: none, or any; in the second case by turns that drain or not."""


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
    """KV extents in the reserved range: the most this engine could ever map."""
    min_extents: int
    """KV extents below which the engine cannot serve its longest request."""
    movable_layers: int
    """Layers that may ever be given away: all, or none of a model whose layers stay."""
    movable_experts: int = 0
    """Experts of each layer with experts that may be given away; 0 if none may."""
    expert_layers: int = 0
    """Layers that have experts, if they may be given away."""
    expert_bytes: int = 0
    """Bytes of one expert of one layer, whole pages."""


class Report(Counters, tag="report", tag_field="type"):
    """An engine's state after a step, or after it acted on an allotment."""

    revision: int
    """Newest allotment seen; 0 before the first."""
    holds_turn: bool
    """Temporal sharing: whether a step may be running. Always true under spatial sharing."""
    held_bytes: int
    """Device memory that the engine holds now."""
    layers_remapped: int
    """Layers whose memory is given away now."""
    stream_slots: int
    """Slots that the streamed layers share now; 0 where no layer is remapped."""
    kv_extents: int
    """Extents that hold memory: usable, or retiring and not yet given back."""
    kv_used_extents: int
    """Extents with at least one block that belongs to a running request."""
    kv_usable_extents: int = 0
    """Extents of `kv_blocks`, or that running requests still sit on."""
    growth_extents: int = 0
    """Extents in total, granted or not, that running requests should have: those in use, those of
    their next steps, and the engine's headroom."""
    admission_extents: int = 0
    """Extents in total, granted or not, with which every waiting request could start as well."""
    running: int = 0
    """Requests in vLLM's running queue, held ones included."""
    waiting: int = 0
    """Requests that have not started, or were preempted."""
    kv_used_blocks: int = 0
    """Blocks of `kv_blocks` that belong to a request."""
    kv_blocks: int = 0
    """Usable blocks (granted and not retiring), the null block left out."""
    kv_cached_blocks: int = 0
    """Usable blocks that no request has and that hold a cached prefix."""
    blocks_again: int = 0
    """Such blocks that a request took again for their content, counted since start."""
    keeps_below: bool = False
    """True if cached prefixes that leave the device are kept below it."""
    experts: int = 0
    """Experts of each layer whose memory is given away now; then no layer is remapped."""
    expert_load_s: float = 0.0
    """Seconds to load one expert while a step waits, measured; 0 while unknown."""
    expert_routed: list[float] = msgspec.field(default_factory=list)
    """At index g: of each layer's g coldest experts, how many a step routes to, over all layers.
    Empty while too little was observed."""
    layer_load_s: float = 0.0
    """T_T: seconds to load one layer from host memory, measured; 0 while unknown."""
    layer_compute_s: float = 0.0
    """T_c: seconds of compute per layer and step, smoothed; 0 while unknown."""
    token_s: float = 0.0
    """Seconds by which one more computed token lengthens a step, measured; 0 while unknown."""
    step_s: float = 0.0
    """Seconds from the end of one step to that of the next, beside its tokens; 0 while unknown."""
    sleep_s: float = 0.0
    """Seconds in which memory was given when it last fell asleep; 0 if it did not."""
    wake_s: float = 0.0
    """Seconds in which layers got memory when it last woke; 0 if it did not."""
    asleep: bool = False
    """True if the newest allotment is one of sleep, and no more is held than that says."""


class Pulse(msgspec.Struct, tag="pulse", tag_field="type", frozen=True):
    """A sign of life, every `BEAT_S` seconds, by a thread that never waits for the engine's."""

    passes: int
    """Scheduling passes that the engine's thread has begun. With requests it begins one after the
    other, also while another engine has the turn."""
    requests: int
    """Running and waiting ones."""
    cpu_s: float = 0.0
    """Seconds that processors have computed for the engine's process."""
    children_cpu_s: float = 0.0
    """Processor seconds of its descendants, such as compilers, while a pass takes long."""


class Stepped(msgspec.Struct, tag="stepped", tag_field="type", frozen=True):
    """The engine's model has computed a request of the engine's own: it may serve."""

    free_bytes: int = 0
    """Bytes of the device that nobody uses; 0 on a host."""
    total_bytes: int = 0
    """All bytes of the device; 0 on a host."""


class CoreFailed(msgspec.Struct, tag="failed", tag_field="type", frozen=True):
    """The last message of an engine whose core ends over an exception."""

    error: str
    """The exception's class; its text may quote a request."""
    fault: str = ""
    """The driver's name of the fault of the GPU behind it; empty if there is none."""


class Allotment(msgspec.Struct, tag="allotment", tag_field="type", frozen=True):
    """The memory an engine shall hold, as soon as it safely can."""

    revision: int
    """Grows by one with each allotment of the engine."""
    layers_remapped: int
    """Layers whose memory is given away."""
    stream_slots: int
    """Slots that the streamed layers share: 1 or 2; 0 where no layer is remapped."""
    kv_extents: int
    """Extents that hold memory."""
    grant_bytes: int
    """Device memory of all that: parameters, slots, spare frames of experts and KV cache."""
    open_extents: int | None = None
    """Extents of `kv_extents` that waiting requests may use as well; None for all of them."""
    recall: bool = False
    """True if running requests are preempted, newest first, until they fit into `kv_extents`."""
    experts: int = 0
    """Experts of each layer whose memory is given away; only where no layer is remapped."""
    lent: LentInTurns = "nothing"
    """Layers of any model that pay for memory in turns."""
    asleep: bool = False
    """True for an engine that shall compute nothing and hold `geometry.asleep_bytes`, no more.

    Then `layers_remapped` is all layers, or 0 if they stay; `stream_slots` and `experts` are 0;
    `kv_extents` is 1, or 0 of a model without a KV cache."""


class EngineHoldings(msgspec.Struct, frozen=True):
    """Memory that an engine has from a server that is gone, whose promises it keeps."""

    allotment: Allotment
    """The newest that it has seen."""
    report: Report
    """Its state now; the revision is that of the allotment."""


class Hello(msgspec.Struct, tag="hello", tag_field="type"):
    """First message of an engine. `held_bytes` is what it holds right now."""

    version: int
    tenant: str
    pid: int
    shape: ModelShape
    held_bytes: int
    holdings: EngineHoldings | None = None
    """Memory of an engine that has served already, and comes back to another server; else None."""


class Refusal(msgspec.Struct, tag="refusal", tag_field="type", frozen=True):
    """No memory can be had for what the engine last asked: it may preempt now."""

    revision: int


class Turn(msgspec.Struct, tag="turn", tag_field="type", frozen=True):
    """Temporal sharing: an engine steps only while it holds the turn."""

    holds: bool
    drain: bool = False
    """True if an engine that loses the turn first finishes the requests that it has begun."""
    spill_bytes: int = 0
    """KV memory, in bytes, that its requests give up once it has stopped, the newest ones first."""


class Alive(msgspec.Struct, tag="alive", tag_field="type", frozen=True):
    """The control server lives, and whoever waits for its answer may go on waiting.

    Sent every `BEAT_S` seconds, whatever else is said; nobody answers it.
    """


class EngineLease(msgspec.Struct, tag="lease", tag_field="type", frozen=True):
    """The engine may go on for so many seconds after its server has gone without a `Shutdown`.

    It holds no more than it was allotted meanwhile, and says hello to the next server at the same
    socket. Before it is told it ends with its server.
    """

    seconds: float


class Shutdown(msgspec.Struct, tag="shutdown", tag_field="type", frozen=True):
    """The control server is going away: finish the step and exit."""


FromEngine = Hello | Report | Pulse | Stepped | CoreFailed
ToEngine = Allotment | Refusal | Turn | Alive | EngineLease | Shutdown
