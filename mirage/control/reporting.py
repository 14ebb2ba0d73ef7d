"""Report of an engine, real or simulated, made of plain numbers: pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict

from mirage.control.demand import Demand, in_extents
from mirage.counters import Counters
from mirage.protocol import Report


class HeldMemory(msgspec.Struct, frozen=True):
    """Memory of an engine. `extents` counts all that hold memory, retiring ones included."""

    held_bytes: int
    layers_remapped: int
    stream_slots: int
    extents: int
    used_extents: int
    """Extents with at least one block of a running request."""
    used_blocks: int
    usable_blocks: int
    """Blocks that requests may be given, without the null block; negative if not even the null
    block has memory."""
    experts: int = 0
    """Experts of each layer that were given away."""


class Cached(msgspec.Struct, frozen=True):
    """Cached prefixes: KV blocks that hold the content of past requests, and that no request uses
    now."""

    blocks: int = 0
    again: int = 0
    """Number of cached blocks that a request reused, counted since the engine started."""
    keeps_below: bool = False
    """True if cached blocks that leave the device are kept in a tier below it."""


NOTHING_CACHED = Cached()


class LayerTimes(msgspec.Struct, frozen=True):
    """Times of an engine in seconds, 0 while unknown, and the experts that its steps route to."""

    load_s: float
    """T_T: seconds to load a layer."""
    compute_s: float
    """T_c: seconds to compute a layer in a step."""
    expert_s: float = 0.0
    """Seconds to load one expert."""
    expert_routed: Sequence[float] = ()
    """Number of experts that a step routes to: see `Report.expert_routed`."""
    token_s: float = 0.0
    """Seconds by which one more token lengthens a step."""
    step_s: float = 0.0
    """Seconds from one step to the next, less the time of its tokens."""
    sleep_s: float = 0.0
    """Seconds in which memory was given in the last sleep: see `Report.sleep_s`."""
    wake_s: float = 0.0
    """Seconds in which layers got memory in the last wake: see `Report.wake_s`."""


def make_report(
    *,
    revision: int,
    holds_turn: bool,
    held: HeldMemory,
    wanted: Demand,
    extent_blocks: int,
    running: int,
    waiting: int,
    counters: Counters,
    times: LayerTimes,
    cached: Cached = NOTHING_CACHED,
    asleep: bool = False,
) -> Report:
    """Return the report of an engine. `wanted` is its demand in blocks; an extent has
    `extent_blocks` blocks. `held`, `cached`, `counters` and `times` are groups of the report's
    fields, the other arguments are fields."""
    blocks = max(0, held.usable_blocks)
    growth = max(held.used_extents, in_extents(wanted.growth, extent_blocks))
    return Report(
        revision=revision,
        holds_turn=holds_turn,
        held_bytes=held.held_bytes,
        layers_remapped=held.layers_remapped,
        stream_slots=held.stream_slots,
        kv_extents=held.extents,
        kv_used_extents=held.used_extents,
        kv_usable_extents=max(held.used_extents, in_extents(blocks, extent_blocks)),
        growth_extents=growth,
        admission_extents=max(growth, in_extents(wanted.admission, extent_blocks)),
        running=running,
        waiting=waiting,
        kv_used_blocks=held.used_blocks,
        kv_blocks=blocks,
        kv_cached_blocks=cached.blocks,
        blocks_again=cached.again,
        keeps_below=cached.keeps_below,
        experts=held.experts,
        expert_load_s=times.expert_s,
        expert_routed=list(times.expert_routed),
        layer_load_s=times.load_s,
        layer_compute_s=times.compute_s,
        token_s=times.token_s,
        step_s=times.step_s,
        sleep_s=times.sleep_s,
        wake_s=times.wake_s,
        asleep=asleep,
        **asdict(counters),
    )
