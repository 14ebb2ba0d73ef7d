"""Row of a tenant in a plan, made of its snapshot: its demand and its units to give. Pure."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from mirage.config import Policy
from mirage.control.expert_asks import giving_experts
from mirage.control.hidden_layers import hidden_each
from mirage.control.rows import TenantRow
from mirage.control.rules import Rules
from mirage.control.spilling import TurnLengths
from mirage.control.targets import most_experts, most_remapped, share_extents
from mirage.control.tenant_state import TenantSnapshot
from mirage.units import align_up

GIVES_NO_MORE = {"lends": 0, "surely_hidden": 0, "hidden": 0, "lately_hidden": 0}
"""Fields of a row whose tenant is above `max_cost_ms`: only layers whose memory running requests
use stay away."""
BEARABLE = 2.0
"""Multiple of its compute time that the decode step of a woken tenant may take while running
requests of others use the memory of its layers."""


class Terms(NamedTuple):
    """Terms of a plan that are the same for all its tenants."""

    device_bytes: int
    """Bytes of device memory of which shares are per cent."""
    policy: Policy
    rules: Rules
    streams: int
    """Number of tenants that may stream at the same time and then share the link."""
    turns: TurnLengths | None
    """Length of turns; None under spatial sharing, where tenants run at once."""


def row_of(t: TenantSnapshot, terms: Terms, rests: bool) -> TenantRow:
    """Return the row of a tenant. `rests` is True if it lends all that it may while it is idle.
    The row is kept for later plans: copy it, do not change it."""
    shape, rules = t.shape, terms.rules
    moves = terms.policy is Policy.MIRAGE
    ever = most_remapped(t.tenant, shape, rules) if moves else 0

    least, most = shape.min_extents, shape.max_extents

    def fit(extents: int) -> int:
        enough = extents if extents > least else least
        return enough if enough < most else most

    now_s = t.report.layer_compute_s
    computes = t.least_compute_s, now_s, t.peak_compute_s, BEARABLE * now_s
    surely, hidden, lately, bears = hidden_each(t, ever, computes, rules, terms.streams)
    late = moves and _late(t, rules)
    share = share_extents(t.tenant, shape, terms.device_bytes)
    row = TenantRow(
        name=t.name,
        active=t.active,
        priority=t.tenant.priority,
        extent_bytes=shape.extent_bytes,
        unit_bytes=shape.layer_bytes,
        running=fit(t.used_extents),
        growth=fit(t.growth_extents),
        admission=fit(t.growth_extents if late else t.admission_extents),
        cooldown=fit(_cooldown(fit(t.peak_extents), share, rules.slack_extents)),
        share=share,
        most=ever,
        lends=ever if rests else surely,
        surely_hidden=surely,
        hidden=hidden,
        lately_hidden=lately,
        bears=bears,
        out=t.layers_out,
        late=late,
    )
    if experts := most_experts(t.tenant, shape, rules) if moves else 0:
        row = giving_experts(t, row, experts, terms.turns)
    return replace(row, **GIVES_NO_MORE) if t.costly else row


def _late(t: TenantSnapshot, rules: Rules) -> bool:
    """True if a decode step of the present batch computes for longer than `rules.tbt_ms`.

    Loads of streamed layers are left out: otherwise a plan would undo what made the step long.
    """
    step_s = t.shape.layers * t.report.layer_compute_s
    return rules.tbt_ms is not None and t.active and step_s * 1e3 > rules.tbt_ms


def _cooldown(peak: int, share: int, slack: int) -> int:
    """Return the extents to keep for a while: those wanted lately, with some slack beyond the
    share.

    They are rounded up to a multiple of slack + 1, so that a falling demand gives memory back
    rarely. The present grant is not used: what one demand was given must not outrank another in the
    next plan.
    """
    return peak if peak <= share else align_up(peak, slack + 1)
