"""Configuration as a whole: all sections, and what must hold between them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from mirage.config.device import DeviceSection
from mirage.config.http import HttpSection
from mirage.config.remap import Remap
from mirage.config.replay import Replay
from mirage.config.roster import RosterSection
from mirage.config.sharing import Policy, SharingSection
from mirage.config.strict import Strict
from mirage.config.tenant import TenantSection
from mirage.config.tiers import HostTier, TiersSection, check_peers
from mirage.config.values import Count, FilePath
from mirage.config.weights import KeeperSection, WeightsSection

ON_GPU = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
"""Defaults of a tenant on a GPU: those that vLLM's server has on a large one."""
HANG_S = 30.0
LEASE_S = 600.0
LEAST_HANG_S = 5.0
"""Smallest `hang_s` in seconds: an engine sends ten signs of life in this time."""


class Config(Strict):
    """One configuration file: the device, its tenants, how they share it, what to replay."""

    INSTEAD: ClassVar = {"models": "use tenants, with an entry for each model"}

    device: DeviceSection
    tenants: list[TenantSection]
    sharing: SharingSection = SharingSection()
    remap: Remap = Remap()
    roster: RosterSection = RosterSection()
    tiers: TiersSection = TiersSection()
    keeper: KeeperSection = KeeperSection()
    weights: WeightsSection = WeightsSection()
    http: HttpSection = HttpSection()
    replay: Replay = Replay()
    policy: Annotated[Policy, Field(strict=False)] = Policy.MIRAGE
    hang_s: float = Field(default=HANG_S, ge=LEAST_HANG_S, le=1e6)
    """Seconds without a sign of life, or without progress, after which an engine is ended."""
    warm_starts: bool | Literal["auto"] = "auto"
    """True if engines start as forks of a process that has imported vLLM; ``auto``: on a host they
    do.
    """
    lease_s: float = Field(default=LEASE_S, ge=0, le=1e6)
    """Seconds for which engines go on after their server was killed, unless another server takes
    them over.
    """
    adapter_folders: list[FilePath] = Field(default_factory=list)
    """Folders in which the folders of all tenants' `adapters` must lie. Empty: no tenant may have
    `adapters`.
    """
    block_tokens: Count = 32
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"

    @model_validator(mode="before")
    @classmethod
    def _batches_as_large_as_the_device_bears(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if "devices" in data:
            raise ValueError(
                "devices works only with check, serve and fetch: write one device here"
            )
        device, tenants = data.get("device"), data.get("tenants")
        on_gpu = isinstance(device, dict) and device.get("kind") == "cuda"
        if not on_gpu or not isinstance(tenants, list):
            return data
        return data | {"tenants": [ON_GPU | t if isinstance(t, dict) else t for t in tenants]}

    @model_validator(mode="after")
    def _tenants_fit_together(self) -> Config:
        if not self.tenants and not self.device.name:
            raise ValueError("tenants: found [], write 1 entry or more")
        names = [t.name for t in self.tenants]
        if twice := {n for n in names if names.count(n) > 1}:
            raise ValueError(f"tenant name {sorted(twice)[0]!r} is used twice: names must differ")
        _owners(self.tenants)
        if unknown := set(self.replay.traffic.weights) - set(names):
            raise ValueError(f"traffic weight for {sorted(unknown)[0]!r}: no such tenant")
        self._check_traces(names)
        return self

    @model_validator(mode="after")
    def _peers_are_devices_like_it(self) -> Config:
        if (peer := self.tiers.peer) is not None:
            check_peers(peer, self.device)
        return self

    def _check_traces(self, names: list[str]) -> None:
        traces = self.replay.trace
        if not traces:
            raise ValueError("replay.trace is empty: name a trace, or one for each tenant")
        if isinstance(traces, str):
            return
        if unknown := set(traces) - set(names):
            known = ", ".join(names)
            raise ValueError(
                f"replay.trace for {sorted(unknown)[0]!r}: no such tenant, choose from {known}"
            )
        if unnamed := [name for name, file in traces.items() if not file]:
            raise ValueError(f"replay.trace for {unnamed[0]!r} is empty: name a file")

    @property
    def names(self) -> dict[str, str]:
        """Owner in words (``tenant 'a'``) of each name and alias that requests may use, without
        adapters.
        """
        return _owners(self.tenants)

    @property
    def rostered(self) -> bool:
        """True if tenants sleep and wake as requests need them: section `roster` or a tenant's key
        for it is written, a share is ``auto``, or the shares exceed the device.
        """
        if "roster" in self.model_fields_set or any(t.comes_and_goes for t in self.tenants):
            return True
        return sum(t.percent for t in self.tenants) > 100 + 1e-9

    @property
    def host_tier(self) -> HostTier | None:
        """The host pool that is served: None with policy `static`, whose engines are as vLLM has
        them.
        """
        return None if self.policy is Policy.STATIC else self.tiers.host

    def max_percent(self, tenant: TenantSection) -> float:
        """Per cent of a tenant's layers that may be given away at most: the tenant's own limit, or
        else that of `remap`.
        """
        own = tenant.max_percent
        return self.remap.max_percent if own is None else own

    @property
    def starts_warm(self) -> bool:
        """True if engines start as forks of a process that has imported vLLM."""
        return self.device.kind == "host" if self.warm_starts == "auto" else self.warm_starts

    def keeps_weights(self, tenant: TenantSection) -> bool:
        """True if a tenant's weights may stay in host memory after its engine has ended.

        Layers that never move have no copy in host memory.
        """
        moves = self.policy is Policy.MIRAGE and self.max_percent(tenant) > 0
        return moves and tenant.keep_weights == "host"

    def tenant(self, name: str) -> TenantSection:
        """Tenant of that name. Raises `KeyError` if there is none."""
        return next((t for t in self.tenants if t.name == name), None) or _no_tenant(name)


def _owners(tenants: list[TenantSection]) -> dict[str, str]:
    """Owner in words of each tenant's name and alias. Raises `ValueError` for a name with two
    owners.
    """
    owners = {tenant.name: f"tenant {tenant.name!r}" for tenant in tenants}
    for tenant in tenants:
        for alias in tenant.aliases:
            if alias in owners:
                raise ValueError(
                    f"alias {alias!r} of tenant {tenant.name!r} is the name of {owners[alias]}: "
                    "names must differ"
                )
            owners[alias] = f"an alias of tenant {tenant.name!r}"
    return owners


def _no_tenant(name: str) -> TenantSection:
    raise KeyError(name)
