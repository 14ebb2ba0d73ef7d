"""The target of all tenants' memory, as a pure function of one snapshot (Algorithm 1).

The plan is made anew each time, from nothing: all layers resident, each tenant with the KV
extents that its running requests sit on, the rest of the device free. Then demand is served
in tiers, each over all tenants before the next; within a tier higher priorities first, then
by max-min fairness in bytes:

    running     extents in use, and the least that a tenant can serve with
    growth      more for running requests; first up to each tenant's own share, then beyond
    admission   more for waiting requests; likewise
    cooldown    extents wanted not long ago: the hysteresis
    share       what is left fills each tenant's KV up to its share

With `remap.serve` = growth, admission comes after cooldown and takes no layers; and of what a
tenant holds, waiting requests may use only what no layer pays for (`open_extents`). So idle KV
is lent to newcomers as well, and layers to running requests alone. Beyond the shares newcomers
get idle KV only until `remap.lend_percent` of what can be lent is lent: the rest waits for the
growth of running requests.

With `remap.tbt_ms`, a tenant whose decode step computes for longer than that asks for nothing
for its waiting requests, and opens no more than its share to them.

A tier takes free bytes first, which includes all KV that earlier tiers left idle. Then it
takes layers: of idle tenants in victim order, those already away before more; then of the
asking tenant itself, as many as hide behind its decode steps; and for growth, where the
alternative is to preempt, also such layers of the other active tenants. Layers that no demand
needs any more are restored, active tenants first, then in reverse victim order; that is the
paper's dynamic reversion. Without any demand the plan is each tenant's share.

*Cached prefixes.* Idle KV memory in which a tenant has prefixes that are asked for again is lent
after layers, if by `worth` that is dearer a byte than a layer that may go (`prefixes`).

*What may be lent* is priced before it is given. Layers must be back, or hide, when their owner
runs again. At once, an idle tenant lends what hides behind the decode of a single request, with
which it may wake; and all only after `rest_s` without work. In turns, unfinished requests of one
tenant sit on layers of the suspended ones, so all that is lent moves at every change. Over all
tenants, demand takes no more than where loading the last byte back takes as much of a turn as the
byte adds to the work of one (`lending`). Unless turns drain, it also takes no more than the other
tenants can cover in each tenant's turn, with what that tenant hides itself.

*Experts.* A mixture that is active gives cold experts instead of layers where that is the cheaper
by `worth`: what hides of its layers costs nothing, but of a mixture hardly any does. How many are
worth it, by how often steps route to them and what a load takes, is said in `expert_asks`. An idle
one gives layers.

*Way back for a woken donor.* A tenant that becomes active while others' KV sits on its layers
keeps away more of them than its decode hides only if running requests, their growth up to
their tenant's share included, cannot do without after everything else was tried. Else an active
tenant's layers return at once: neither waiting requests, nor growth beyond a share, nor unused KV
of others can delay them, and no hysteresis does. Where its decode steps would take more than
`BEARABLE` times as long as they compute, and tenants run at once, running requests beyond the
shares of others are called back: preempted, and computed anew once there is room. In turns that
would be so at every change; there the price keeps what is lent small, and a tenant that stops is
told what it gives up (`spilling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf

from mirage.config import Policy
from mirage.control.expert_asks import giving_experts
from mirage.control.hiding import best_beta, largest_alpha
from mirage.control.lending import worth_lending
from mirage.control.prefixes import keeping_prefixes
from mirage.control.rules import Rules
from mirage.control.spilling import Turns
from mirage.control.step_times import nested_step
from mirage.control.targets import Target, base, most_alpha, most_experts
from mirage.control.tenant_state import TenantSnapshot
from mirage.control.water_filling import (
    Ask,
    Fill,
    Row,
    Tier,
    hidden,
    hidden_or_out,
    lends,
    none,
    out,
    still_hidden,
)
from mirage.geometry import footprint
from mirage.units import align_up, ceil_div
from scheduler import victims

BEARABLE = 2.0
"""Times as long as it computes that a woken donor's decode step may take for others' requests."""
CLEARLY = 0.98
"""A step must get that much shorter before another number of slots is worth the copies."""

# Each tier: how far to serve, then layers of idle tenants, own ones, those of other active ones.
GROWTH = [
    Tier(lambda r: min(r.ask.growth, r.ask.share), lends, hidden, hidden_or_out),
    Tier(lambda r: r.ask.growth, lends, hidden, hidden),
]
ADMISSION = [
    Tier(lambda r: min(r.ask.admission, r.ask.share), lends, hidden, none),
    Tier(lambda r: r.ask.admission, lends, hidden, none),
]
COOLDOWN = [Tier(lambda r: r.ask.cooldown, out, still_hidden, none)]


def plan(
    tenants: Sequence[TenantSnapshot],
    device_bytes: int,
    reserved_bytes: int,
    policy: Policy,
    rules: Rules,
    *,
    turns: Turns | None = None,
    now: float = inf,
) -> dict[str, Target]:
    """What each tenant shall hold, by name.

    `turns` is None if tenants run at once; `now` in the seconds of `last_busy`. All `tenants` have
    had their first allotment. Shares are per cent of `device_bytes`, of which `reserved_bytes` are
    kept for tenants that are not among them. The targets fit into the rest, unless running requests
    alone sit on more; no tenant's target is below its least, or below what its own sit on, except
    down to its share with `Target.recall`, if tenants run at once.
    """
    if policy is Policy.STATIC:
        return {t.name: base(t.tenant, t.shape, device_bytes) for t in tenants}
    streams = max(1, sum(t.active for t in tenants))  # which all may, and then share the link
    asks = tuple(
        _ask(
            t,
            device_bytes,
            policy,
            rules,
            streams,
            bool(turns) or now - t.last_busy >= rules.rest_s,
            turns,
        )
        for t in tenants
    )
    if policy is Policy.MIRAGE and turns is None and rules.keep_prefixes:
        asks = keeping_prefixes(tenants, asks)
    candidates = [
        victims.Candidate(t.name, t.active, t.tenant.priority, t.last_busy) for t in tenants
    ]
    donors = tuple(victims.order(candidates, rules.victims))
    free = device_bytes - reserved_bytes - sum(footprint(t.shape, 0, 0) for t in tenants)
    growth_only = policy is Policy.MIRAGE and rules.serve == "growth"
    lend_percent = rules.lend_percent if growth_only else None
    lent = _most_lent(tenants, asks, free, turns) if turns and rules.decode_cap else None
    given = _fill(asks, donors, free, lend_percent, rules.reversion, lent, turns is None)
    return {
        t.name: Target(
            0 if ask.experts else away,
            _beta(t, away, rules, streams) if away and not ask.experts else 0,
            kv,
            free_for_all,
            kv < t.demand.used,
            away if ask.experts else 0,
        )
        for t, ask, (away, kv, free_for_all) in zip(tenants, asks, given, strict=True)
    }


# Two reports in five leave all demand as it was.
@lru_cache(maxsize=64)
def _fill(
    asks: tuple[Ask, ...],
    donors: tuple[str, ...],
    free: int,
    lend_percent: float | None,
    reversion: bool,
    lent: int | None,
    recalls: bool,
) -> list[tuple[int, int, int | None]]:
    """Layers given away, KV extents, and those of them for newcomers too, of each.

    `lent`: most bytes of KV that demand has beyond what no layer pays for; `recalls`: whether
    running requests may be called back. With `lend_percent`, no layers go for admission, and no
    more than that of idle KV.
    """
    admission = lend_percent is None
    rows = [Row(ask) for ask in asks]
    fill = Fill(rows, donors, free)
    fill.keep_running()  # on whatever it takes
    if recalls:
        fill.recall()
    fill.keep_prefixes()
    fill.most_lent = lent
    for tier in [*GROWTH, *(ADMISSION if admission else []), *COOLDOWN]:
        fill.serve(tier)
    if reversion:
        fill.restore()
    else:
        fill.keep_away()
    within, beyond = (tier._replace(idle=none, own=none, others=none) for tier in ADMISSION)
    fill.serve(within)
    kept = 0 if lend_percent is None else fill.keep_back(lend_percent)
    fill.serve(beyond)
    fill.free += kept
    fill.share_out(rows, lambda r: r.ask.share)
    paid = 0 if admission else sum(r.alpha * r.ask.layer_bytes for r in rows)
    return [(r.alpha, r.kv, _open(r, paid)) for r in rows]


def _open(row: Row, lent: int) -> int | None:
    """Extents open to waiting requests: those not funded by `lent` bytes of remapped layers.

    At least its share: that holds the longest request. Of one that is late, no more than that.
    """
    closed = row.kv if row.ask.late else ceil_div(lent, row.ask.extent_bytes)
    open_extents = max(row.ask.share, row.kv - closed)
    return open_extents if open_extents < row.kv else None


def _most_lent(
    tenants: Sequence[TenantSnapshot], asks: Sequence[Ask], pool: int, turns: Turns
) -> int:
    """Bytes that may be lent in turns, where all KV without them is `pool` bytes."""
    rates = [t.shape.layer_bytes / t.report.layer_load_s for t in tenants if t.report.layer_load_s]
    worth = worth_lending(
        pool,
        max(rates, default=0.0) * turns.seconds,
        min((t.staying_part for t in tenants), default=1.0),
        most=inf if turns.drains else covered(asks),
        lending=any(t.layers_out for t in tenants),
    )
    largest = max((a.layer_bytes for a in asks), default=0)
    return worth - worth % max(1, largest)  # what whole layers bring too much comes back as well


def covered(asks: Sequence[Ask]) -> int:
    """Bytes of layers that can be away in each tenant's turn: all others', and its hidden ones."""
    every = sum(a.most * a.layer_bytes for a in asks)
    missing = max(((a.most - a.surely_hidden) * a.layer_bytes for a in asks), default=0)
    return every - missing


def covers(
    tenants: Sequence[TenantSnapshot], name: str, usable_bytes: int, policy: Policy, rules: Rules
) -> bool:
    """Whether all KV in use fits beside the layers that `name` cannot hide, were it its turn.

    `usable_bytes`: of the device, what is kept for tenants that are not here not counted.
    """
    used = sum(t.demand.used * t.shape.extent_bytes for t in tenants)
    away = used + sum(footprint(t.shape, 0, 0) for t in tenants) - usable_bytes
    if away <= 0 or policy is not Policy.MIRAGE:
        return True
    capped = rules.model_copy(update={"decode_cap": True})

    def layers(t: TenantSnapshot) -> int:
        if t.name == name:
            return hidden_alpha(t, t.report.layer_compute_s, capped)
        return most_alpha(t.tenant, t.shape, rules)

    return away <= sum(layers(t) * t.shape.layer_bytes for t in tenants)


# Most events are about one tenant.
@lru_cache(maxsize=64)
def _ask(
    t: TenantSnapshot,
    device_bytes: int,
    policy: Policy,
    rules: Rules,
    streams: int,
    lends_all: bool,
    turns: Turns | None,
) -> Ask:
    shape = t.shape

    def fit(extents: int) -> int:
        return min(max(extents, shape.min_extents), shape.max_extents)

    share = base(t.tenant, shape, device_bytes).kv_extents
    late = policy is Policy.MIRAGE and _late(t, rules)
    layers = policy is Policy.MIRAGE
    ever = most_alpha(t.tenant, shape, rules) if layers else 0
    unfelt = hidden_alpha(t, t.report.layer_compute_s, rules, streams) if layers else 0
    surely = hidden_alpha(t, t.least_compute_s, rules, streams) if layers else 0
    bearable_s = BEARABLE * t.report.layer_compute_s
    bears = hidden_alpha(t, bearable_s, rules, streams) if layers else 0
    ask = Ask(
        name=t.name,
        active=t.active,
        priority=t.tenant.priority,
        extent_bytes=shape.extent_bytes,
        layer_bytes=shape.layer_bytes,
        running=fit(t.demand.used),
        growth=fit(t.demand.growth),
        admission=fit(t.demand.growth if late else t.demand.admission),
        cooldown=fit(_cooldown(fit(t.peak_extents), share, rules.slack_extents)),
        share=share,
        most=ever,
        lends=ever if lends_all else surely,
        surely_hidden=surely,
        hidden=unfelt,
        lately_hidden=hidden_alpha(t, t.peak_compute_s, rules, streams) if layers else 0,
        bears=bears,
        out=t.layers_out,
        late=late,
    )
    return giving_experts(t, ask, most_experts(t.tenant, shape, rules) if layers else 0, turns)


def _late(t: TenantSnapshot, rules: Rules) -> bool:
    """Whether a decode step of the present batch computes for longer than tokens may take.

    Compute alone: were it the step with what streams, a plan would undo what made it so.
    """
    step_s = t.shape.layers * t.report.layer_compute_s
    return rules.tbt_ms is not None and t.active and step_s * 1e3 > rules.tbt_ms


def _cooldown(peak: int, share: int, slack: int) -> int:
    """Extents to keep for a while: those wanted lately, and beyond the share some slack.

    Rounded up to steps of slack + 1, so that a falling demand gives back rarely. No function
    of what is granted now: what one demand was given must not outrank another's in the next
    plan.
    """
    return peak if peak <= share else align_up(peak, slack + 1)


def hidden_alpha(t: TenantSnapshot, t_compute: float, rules: Rules, streams: int = 1) -> int:
    """Layers that an active tenant may give: those whose loads fit behind its decode compute.

    Without `rules.decode_cap`, all that it may ever give. While T_T or T_c is unknown, one:
    the least that lets them be measured. T_T was measured alone; of `streams` tenants that
    stream at once, each has its part of the link.
    """
    ever = most_alpha(t.tenant, t.shape, rules)
    if ever == 0 or not rules.decode_cap:
        return ever
    t_load = t.report.layer_load_s * streams
    if t_load <= 0 or t_compute <= 0:
        return min(1, ever)
    n = t.shape.layers
    return min(ever, _largest_alpha(n, t_load, t_compute, (1, 2), _streamable(t))[0])


# The times of a tenant that does not step stay as they are from plan to plan.
_largest_alpha = lru_cache(maxsize=256)(largest_alpha)


def _beta(t: TenantSnapshot, alpha: int, rules: Rules, streams: int) -> int:
    """Slots for `alpha` layers. Kept while alpha stays, unless others make a shorter step."""
    if alpha == 0:
        return 1
    fitting = [b for b in _betas(rules) if alpha + b <= _streamable(t)] or [1]
    sent = t.allotment.beta if t.allotment and t.allotment.alpha == alpha else 0
    times = t.shape.layers, t.report.layer_load_s * streams, t.report.layer_compute_s
    if min(times) <= 0:
        return sent if sent in fitting else max(fitting)
    best = best_beta(alpha, *times, fitting)
    if sent not in fitting:
        return best
    better = nested_step(alpha, best, *times) < CLEARLY * nested_step(alpha, sent, *times)
    return best if better else sent


def _betas(rules: Rules) -> tuple[int, ...]:
    return (1, 2) if rules.beta == "dynamic" else (rules.beta,)


def _streamable(t: TenantSnapshot) -> int:
    return t.shape.layers - t.tenant.floor_layers
