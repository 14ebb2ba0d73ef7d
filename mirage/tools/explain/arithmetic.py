"""The paper's arithmetic for one tenant alone on the device: layers that hide, and the KV cache
gained. Pure.

T_T is the time to load a layer, T_c the compute time of a layer in a decode step. The number of
layers that hide comes from the deciding code, the time of a step from the simulator's roofline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage.control.hiding import best_slots, break_even, largest_hidden
from mirage.control.rules import Rules
from mirage.control.targets import most_remapped
from mirage.geometry import gained_extents
from mirage.profiles import Hardware, Model
from mirage.protocol import ModelShape
from mirage.simulate.roofline import PS, Roofline, Work
from scheduler.tenants import Tenant

GB = 1e9


@dataclass(frozen=True)
class Subject:
    """A tenant, with all quantities that its arithmetic depends on."""

    tenant: Tenant
    model: Model
    shape: ModelShape
    context: int
    """Tokens of each request in a batch."""
    most_requests: int
    """Most requests of `context` tokens that the engine runs at the same time, by its limit and by
    the device's memory.
    """
    share_blocks: int
    """KV blocks that its share holds while all layers are in place."""


@dataclass(frozen=True)
class Hidden:
    """Layers that can be given away so that all loads hide behind the decode steps of one batch,
    and the KV cache that is gained.
    """

    batch: int
    compute_s: float
    """T_c in seconds."""
    layers_remapped: int
    """Layers given away (`stream_slots` more stream); 0 if not even one can be."""
    stream_slots: int
    kv_bytes: int
    """Bytes of the whole extents that are gained; `kv_blocks` and `kv_tokens` count the same
    extents.
    """
    kv_blocks: int
    kv_tokens: int
    one_layer_gb_s: float | None
    """Slowest link in GB/s with which all loads hide while one layer is given away; None if the
    tenant never gives one, or no link is fast enough.
    """
    all_layers_gb_s: float | None
    """Slowest link in GB/s with which all loads hide while every layer that the tenant may give is
    given away; None if it may give none, or no link is fast enough.
    """


@dataclass(frozen=True)
class Explained:
    """Results for one tenant. Sizes in bytes."""

    name: str
    model: str
    layers: int
    layer_bytes: int
    load_s: float
    """T_T in seconds."""
    most_remapped: int
    """Most layers that the tenant may give: at most `max_percent` per cent of its layers, and so
    few that `floor_layers` layers stay resident beside the slots.
    """
    block_tokens: int
    share_blocks: int
    context: int
    most_requests: int
    hidden: tuple[Hidden, ...]
    """One entry for each requested batch."""

    @property
    def movable_bytes(self) -> int:
        """Bytes of all layers that the tenant may give."""
        return self.most_remapped * self.layer_bytes


def explained(
    subject: Subject, hardware: Hardware, rules: Rules, batches: Sequence[int]
) -> Explained:
    """The arithmetic of one tenant on one device, for each of `batches`."""
    shape = subject.shape
    most = most_remapped(subject.tenant, shape, rules)
    load_s = shape.layer_bytes / (hardware.link_gb_s.value * GB)
    roofline = Roofline(subject.model, hardware)
    return Explained(
        name=subject.tenant.name,
        model=subject.model.title,
        layers=shape.layers,
        layer_bytes=shape.layer_bytes,
        load_s=load_s,
        most_remapped=most,
        block_tokens=shape.block_tokens,
        share_blocks=subject.share_blocks,
        context=subject.context,
        most_requests=subject.most_requests,
        hidden=tuple(
            _hidden(subject, batch, load_s, layer_compute_s(roofline, batch, subject.context), most)
            for batch in batches
        ),
    )


def layer_compute_s(roofline: Roofline, batch: int, context: int) -> float:
    """T_c in seconds of a step in which `batch` requests of `context` tokens decode one token
    each.
    """
    return roofline.compute_ps(Work(batch, batch * context)) / PS / roofline.layers


def hidden_and_slots(
    subject: Subject, load_s: float, compute_s: float, most: int
) -> tuple[int, int]:
    """Largest number of layers, up to `most`, that can be given away so that all loads hide, and
    the number of slots through which layers then stream; (0, 0) if not even one can be given.

    `load_s` and `compute_s` are the times of one layer, T_T and T_c.
    """
    n, streamed = subject.shape.layers, _streamable(subject)
    remapped, stream_slots = largest_hidden(n, load_s, compute_s, most_streamed=streamed)
    if min(remapped, most) <= 0:
        return 0, 0
    if remapped <= most:
        return remapped, stream_slots
    slots = [stream_slots for stream_slots in (1, 2) if most + stream_slots <= streamed]
    return most, best_slots(most, n, load_s, compute_s, slots)


def break_even_gb_s(subject: Subject, remapped: int, compute_s: float) -> float | None:
    """GB/s of the slowest link with which all loads hide while `remapped` layers are given away;
    None if no link is fast enough, or `remapped` is 0. `compute_s` is T_c, the time of one layer.
    """
    if remapped <= 0:
        return None
    ratio = break_even(remapped, subject.shape.layers, most_streamed=_streamable(subject))
    return subject.shape.layer_bytes / (ratio * compute_s) / GB if ratio else None


def _hidden(subject: Subject, batch: int, load_s: float, compute_s: float, most: int) -> Hidden:
    remapped, stream_slots = hidden_and_slots(subject, load_s, compute_s, most)
    shape = subject.shape
    extents = gained_extents(shape, remapped)
    blocks = extents * shape.extent_blocks
    return Hidden(
        batch=batch,
        compute_s=compute_s,
        layers_remapped=remapped,
        stream_slots=stream_slots,
        kv_bytes=extents * shape.extent_bytes,
        kv_blocks=blocks,
        kv_tokens=blocks * shape.block_tokens,
        one_layer_gb_s=break_even_gb_s(subject, min(1, most), compute_s),
        all_layers_gb_s=break_even_gb_s(subject, most, compute_s),
    )


def _streamable(subject: Subject) -> int:
    return subject.shape.layers - subject.tenant.floor_layers
