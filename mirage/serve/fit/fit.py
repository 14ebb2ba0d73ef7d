"""Fit of each tenant into its share, and the number of KV blocks that it starts with.

Computed from the configuration and vLLM's facts about the models (`ModelFacts`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage.config import NO_EXPERTS, Config, Policy, TenantSection
from mirage.control.targets import entitled
from mirage.facts import NO_KV, ExpertFacts, KVGroups, ModelFacts
from mirage.geometry import least_blocks
from mirage.serve.fit.page_size import PageSize, PageSizes, page_size
from mirage.units import align_up, ceil_div, size, sizes
from vmm.space import extent_blocks

LEAST_SHARE = 1e-6
"""Least share, in per cent."""


@dataclass(frozen=True)
class Fit:
    """Memory of a tenant at its start. Layers are rounded up to pages; blocks include the null
    block.

    `base_blocks` fill the part of the share that parameters leave. `max_blocks` is the size of
    vLLM's block pool: the most blocks that could ever be granted. `min_blocks` hold one request of
    `max_model_len` tokens. A model without a KV cache has no blocks.
    """

    page: PageSize
    grant_bytes: int
    layers: int
    layer_bytes: int
    fixed_bytes: int
    block_bytes: int
    extent_blocks: int
    base_blocks: int
    max_blocks: int
    min_blocks: int
    movable_layers: int
    """Number of layers that may be given away at the same time."""
    stays: str | None = None
    """Reason why no layer can move; None if layers can, or if the policy moves none."""
    architecture: str = ""
    quantisation: str = ""
    kv: KVGroups = NO_KV
    experts: ExpertFacts | None = None
    """Experts that may be given away; None if there are none."""
    experts_stay: str | None = None
    """Reason why no experts may be given away; None if some may, or if none were asked for."""

    @property
    def parameter_bytes(self) -> int:
        return self.fixed_bytes + self.layers * self.layer_bytes

    @property
    def extent_bytes(self) -> int:
        return self.extent_blocks * self.block_bytes

    @property
    def spare_bytes(self) -> int:
        """Bytes of the share that neither parameters nor whole KV extents use."""
        return self.grant_bytes - self.parameter_bytes - self.base_blocks * self.block_bytes


def fit(config: Config, facts: Mapping[str, ModelFacts]) -> tuple[dict[str, Fit], dict[str, str]]:
    """Fit of each tenant that has `facts`; and the reason for each that does not fit; both by
    name.
    """
    asked = [t for t in config.tenants if t.name in facts]
    page = page_size(config.device.page, (_sizes(config, t, facts[t.name]) for t in asked))
    problems = {
        t.name: _floor_too_high(t, facts[t.name])
        or _too_large(config, t, facts[t.name], page.bytes)
        for t in asked
    }
    fitting = [t for t in asked if problems[t.name] is None]
    unmovable = {t.name: _unmovable_bytes(config, t, facts[t.name], page.bytes) for t in fitting}
    # Where tenants come and go, all others may be away.
    beside = 0 if config.rostered else sum(unmovable.values())
    movable = {t.name: config.device.memory - (beside or unmovable[t.name]) for t in fitting}
    fits = {t.name: _fit_tenant(config, t, facts[t.name], movable[t.name], page) for t in fitting}
    return fits, {name: problem for name, problem in problems.items() if problem is not None}


def with_shares(config: Config, facts: Mapping[str, ModelFacts]) -> Config:
    """`config` with numbers for shares that are ``auto``: enough for parameters, one request and a
    page.

    A tenant without `facts` gets the least share that there is.
    """
    if all(t.share is not None for t in config.tenants):
        return config
    asked = [t for t in config.tenants if t.name in facts]
    page = page_size(config.device.page, (_sizes(config, t, facts[t.name]) for t in asked)).bytes
    tenants = [
        t if t.share is not None else t.model_copy(update={"share": _auto(config, t, facts, page)})
        for t in config.tenants
    ]
    return config.model_copy(update={"tenants": tenants, "roster": config.roster})


def _auto(
    config: Config, tenant: TenantSection, facts: Mapping[str, ModelFacts], page: int
) -> float:
    """Share in per cent, rounded up to millionths of a per cent; at most 100.

    It has a page more than is needed: an engine may hold a few bytes that vLLM does not tell of.
    """
    if (known := facts.get(tenant.name)) is None:
        return LEAST_SHARE
    needed = parameter_bytes(known, page) + least_kv_bytes(known, page) + page
    return min(100.0, ceil_div(needed * 10**8, config.device.memory) / 1e6)


def _sizes(config: Config, tenant: TenantSection, facts: ModelFacts) -> PageSizes:
    return PageSizes(
        name=tenant.name,
        layer_bytes=facts.layer_bytes,
        layers=facts.layers,
        fixed_bytes=facts.fixed_bytes,
        run_bytes=facts.block_bytes // facts.block_runs if facts.block_bytes else 0,
        runs=facts.block_runs,
        share_bytes=config.device.memory
        if tenant.share is None
        else entitled(tenant).share_bytes(config.device.memory),
        request_blocks=least_blocks(facts.kv.request_blocks),
    )


def _fit_tenant(
    config: Config, tenant: TenantSection, facts: ModelFacts, movable: int, paged: PageSize
) -> Fit:
    page = paged.bytes
    blocks = _extent_blocks(facts, page)
    extent_bytes = blocks * facts.block_bytes
    grant = entitled(tenant).share_bytes(config.device.memory)
    base = (grant - parameter_bytes(facts, page)) // extent_bytes if extent_bytes else 0
    most = base
    if extent_bytes and config.policy is not Policy.STATIC:
        most = max(base, movable // extent_bytes)
    asked = config.policy is Policy.MIRAGE and config.remap.experts and facts.stays is None
    stay = _experts_stay(facts, page) if asked else NO_EXPERTS
    return Fit(
        page=paged,
        grant_bytes=grant,
        layers=facts.layers,
        layer_bytes=align_up(facts.layer_bytes, page),
        fixed_bytes=facts.fixed_bytes,
        block_bytes=facts.block_bytes,
        extent_blocks=blocks,
        base_blocks=base * blocks,
        max_blocks=most * blocks,
        min_blocks=least_blocks(facts.kv.request_blocks),
        movable_layers=_movable_layers(config, tenant, facts),
        stays=facts.stays if config.policy is Policy.MIRAGE else None,
        architecture=facts.architecture,
        quantisation=facts.quantisation,
        kv=facts.kv,
        experts=None if stay else facts.experts,
        experts_stay=stay if asked else None,
    )


def _experts_stay(facts: ModelFacts, page: int) -> str | None:
    return facts.experts.stay(page) if facts.experts else facts.experts_stay


def _floor_too_high(tenant: TenantSection, facts: ModelFacts) -> str | None:
    """Reason why `floor_layers` cannot be kept; None if the model has as many layers."""
    if tenant.floor_layers <= facts.layers:
        return None
    return (
        f"floor_layers is {tenant.floor_layers}, its model has {facts.layers} layers: lower it, or "
        "set max_percent to 0 if none shall ever move"
    )


def _too_large(config: Config, tenant: TenantSection, facts: ModelFacts, page: int) -> str | None:
    """Reason why a share is too small for parameters and one request; None if it is large
    enough.
    """
    grant = entitled(tenant).share_bytes(config.device.memory)
    parameters = parameter_bytes(facts, page)
    kv = least_kv_bytes(facts, page)
    if grant >= parameters + kv:
        return None
    needed, share = sizes(parameters + kv, grant)
    return (
        f"it does not fit: it needs {needed} (parameters {size(parameters)}, "
        f"KV cache for max_model_len {tenant.max_model_len} {size(kv)}), its share of "
        f"{tenant.percent:g} % is {share}: raise the share or device.memory, or lower "
        "max_model_len"
    )


def least_kv_bytes(facts: ModelFacts, page: int) -> int:
    """Bytes of KV extents that one request of the greatest length needs."""
    blocks = align_up(least_blocks(facts.kv.request_blocks), _extent_blocks(facts, page))
    return blocks * facts.block_bytes


def _extent_blocks(facts: ModelFacts, page: int) -> int:
    """Number of KV blocks in an extent: the fewest that fill whole pages in each of the runs of
    memory over which a block is spread. 1 if the model has no KV cache.
    """
    if not facts.block_bytes:
        return 1
    return extent_blocks(facts.block_bytes // facts.block_runs, page)


def parameter_bytes(facts: ModelFacts, page: int) -> int:
    """Bytes of all parameters: those of each layer rounded up to whole pages of `page` bytes, and
    the fixed bytes as they are."""
    return facts.fixed_bytes + facts.layers * align_up(facts.layer_bytes, page)


def _movable_layers(config: Config, tenant: TenantSection, facts: ModelFacts) -> int:
    """Number of the tenant's layers that may be given away at the same time, under the policy."""
    if config.policy is not Policy.MIRAGE or facts.stays is not None:
        return 0
    return int(facts.layers * config.max_percent(tenant) / 100)


def _unmovable_bytes(config: Config, tenant: TenantSection, facts: ModelFacts, page: int) -> int:
    """Bytes of parameters that can never be given away."""
    moves = _movable_layers(config, tenant, facts) * align_up(facts.layer_bytes, page)
    return parameter_bytes(facts, page) - moves
