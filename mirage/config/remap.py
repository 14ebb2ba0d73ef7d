"""Section `remap`: rules by which the controller moves memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from mirage.config.strict import Strict
from mirage.config.values import Whole

NO_EXPERTS = "remap.experts is false"
"""Reason why a model's experts stay where they are: the key `remap.experts` is false."""
Kept = Literal["nothing", "soon", "lent", "asked"]
"""Rule for the KV blocks that new requests leave free for the growth of running ones. `nothing`:
none. `soon`: those that running requests need in half of `lookahead_steps`. `asked`: all that
running requests ask for beyond those in use. `lent`: as `soon`, but more while layers are lent: the
model's own under spatial sharing, any model's under temporal sharing (`Wants.left_free`).
"""


class Remap(Strict):
    """Rules by which the controller moves memory (see docs/architecture.md, Deciding)."""

    serve: Literal["growth", "admission"] = "admission"
    """`growth`: layers make room for the growth of running requests alone; `admission`: also for
    waiting requests.
    """
    lend_percent: float = Field(default=75, ge=0, le=100)
    """With `serve: growth`: most KV memory beyond their tenants' shares that waiting requests get,
    in per cent of all KV memory that can be lent beyond shares. The rest is for the growth of
    running requests.
    """
    tbt_ms: PositiveFloat | None = None
    """Target time between tokens in milliseconds: while a model's decode step computes for longer,
    its waiting requests get no memory beyond its share.
    """
    favour: Literal["latency", "throughput"] = "latency"
    """KV memory that new requests leave free for running ones while layers are lent: layers of
    their own model under spatial sharing, of any model under temporal sharing.

    `latency`: few requests are preempted. Under spatial sharing the growth of running requests in
    twice `lookahead_steps` is left free, or half of their expected growth if that is more, but no
    more than the model's own lent layers hold (or than `throughput` leaves, if that is more). Under
    temporal sharing all that running requests ask for is left free, or half of their expected
    growth if that is more and turns do not drain. In turns that drain, up to a quarter of the lent
    layers' memory is left free in addition while all requests of the turn grow.

    `throughput`: the growth of running requests in half of `lookahead_steps`.
    """
    max_percent: float = Field(default=95, ge=0, le=100)
    """Most of a model's layers that may be given away, in per cent (the remapping percentage)."""
    experts: bool = False
    """True if an active mixture-of-experts model may give away experts that it rarely routes to."""
    rest_s: float = Field(default=30, ge=0, le=1e6)
    """Spatial sharing: idle time in seconds after which, at the latest, a model lends all layers
    that it may. Before that it lends only as many as it can stream without slowing the decode of a
    single request.
    """
    headroom_extents: Whole = 2
    """Free KV extents that an engine requests ahead of need (the low-water mark)."""
    lookahead_steps: Whole = 16
    """Decode steps of the running requests whose KV blocks an engine requests in advance, beside
    `headroom_extents`.
    """
    slack_extents: Whole = 4
    """A falling demand for KV memory beyond the share is rounded up to a multiple of
    (`slack_extents` + 1) extents, so that memory is handed back rarely.
    """
    hysteresis_s: float = Field(default=0.5, ge=0, le=1e6)
    """Seconds for which an engine must hold surplus memory before it hands it back."""
