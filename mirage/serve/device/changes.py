"""Changes of a served device's tenants: some are added, declared anew, or removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mirage.arguments.check import normalised
from mirage.config import Config, TenantSection
from mirage.control.arbiter import Arbiter
from mirage.control.profiled import UNPROFILED, Profiled
from mirage.control.roster.states import GONE, LifeState
from mirage.control.targets import entitled
from mirage.serve.device.tenants import DeviceTenants
from mirage.serve.device.tiers import TierPool
from mirage.serve.device.weights_keeper import WeightsKeeper
from mirage.serve.fit.fit import Fit
from mirage.serve.launch.preflight import speeds
from mirage.serve.roster.attendance import Attendance
from mirage.serve.roster.declared import bytes_of, rules_of, spec_of, switch_times

OF_WEIGHTS = frozenset(
    {
        *("runner", "convert", "model_impl", "hf_overrides", "load_format", "download_dir"),
        *("safetensors_load_strategy", "safetensors_prefetch_num_threads", "use_tqdm_on_load"),
        *("safetensors_prefetch_block_size", "kv_cache_dtype", "enable_lora", "enforce_eager"),
        *("attention_backend", "attention_config", "enable_flashinfer_autotune"),
        *("compilation_config", "optimization_level", "limit_mm_per_prompt", "media_io_kwargs"),
        *("mm_processor_kwargs", "mm_processor_cache_gb", "mm_hasher_algorithm"),
        *("interleave_mm_strings", "skip_mm_profiling"),
    }
)
"""Arguments of vLLM that are part of the identity of weights (`mirage/engine/identity.py`)."""


def weights_of(tenant: TenantSection) -> tuple[Path, dict[str, Any]]:
    """Model, and values of the arguments, that decide about a tenant's weights.

    When they change, weights that are kept for the tenant are outdated.
    """
    args = normalised(tenant.engine_args)
    return tenant.model, {key: args[key] for key in OF_WEIGHTS & args.keys()}


class DomainChange(NamedTuple):
    """Change of a device's tenants. Running requests have `drain_s` seconds to end.

    None leaves the time to the roster's rules.
    """

    config: Config
    """Whole configuration after the change, with numbers for shares that are ``auto``."""
    removed: tuple[str, ...]
    declared: tuple[TenantSection, ...]
    """Tenants that are new, or declared anew."""
    fits: Mapping[str, Fit]
    """Fits of tenants that are new, or whose engines have to start anew."""
    adapters: Mapping[str, dict[str, str]]
    profiled: Mapping[str, Profiled] = UNPROFILED
    drain_s: float | None = None


class TenantChanges:
    """Changes of tenants in all parts of a server together. Engines follow as the roster orders."""

    def __init__(
        self,
        tenants: DeviceTenants,
        arbiter: Arbiter,
        tiers: TierPool,
        weights: WeightsKeeper,
        attendance: Attendance,
        make: Callable[[TenantSection, DomainChange], None],
        unmake: Callable[[str], None],
    ) -> None:
        """`make` creates all objects of a new tenant, and begins to keep its engine running.

        `unmake` begins to remove them again, and is only called for a tenant without an engine.
        """
        self._tenants, self._arbiter, self._tiers = tenants, arbiter, tiers
        self._weights = weights
        self._attendance, self._make, self._unmake = attendance, make, unmake

    def apply(self, change: DomainChange) -> None:
        """Remove tenants, and add tenants or declare them anew, as `change` says."""
        self._weights.declares(change.config)
        self._attendance.roster.ruled(rules_of(change.config))
        for name in change.removed:
            self._remove(name, change.drain_s)
        for tenant in change.declared:
            self._declare(tenant, change)
            if tenant.name in self._tenants.managers:
                self._redeclare(tenant, change)
            else:
                self._make(tenant, change)
        self._attendance.settle()

    def _remove(self, name: str, drain_s: float | None) -> None:
        if name in self._tenants.managers:
            self._tenants.managers[name].backend.leaves = True
            self._attendance.remove(name, drain_s)
        else:
            self._unmake(name)

    def _declare(self, tenant: TenantSection, change: DomainChange) -> None:
        """Declare a tenant to the arbiter, the tiers and the roster.

        If its engine need not start anew, its bytes and times stay as they are.
        """
        self._arbiter.declares(entitled(tenant), change.profiled.get(tenant.name))
        self._tiers.declares(tenant)
        if tenant.name in change.fits:
            own = bytes_of(change.config, tenant, change.fits[tenant.name])
            times = switch_times(own, speeds(change.config.device).link)
        else:
            member = self._attendance.roster.members[tenant.name]
            own, times = member.next_own, member.times
        self._attendance.declares(spec_of(tenant), own, times)

    def _redeclare(self, tenant: TenantSection, change: DomainChange) -> None:
        name, manager = tenant.name, self._tenants.managers[tenant.name]
        before = self._tenants.sections[name]
        same = weights_of(before) == weights_of(tenant)
        if not same:
            lives = self._attendance.roster.members[name].state not in GONE
            self._weights.forget(name, lives=lives)
        self._tenants.sections[name] = tenant
        manager.backend.declares(tenant)
        left, manager.backend.leaves = manager.backend.leaves, False
        if name not in change.fits:
            if before.adapters != tenant.adapters:
                manager.adapters.changed()
            return
        manager.backend.adapters = change.adapters[name]
        manager.declares(change.config, tenant, change.fits[name])
        if not left:
            self._restart(name, change.drain_s)

    def _restart(self, name: str, drain_s: float | None) -> None:
        """Restart the engine of a tenant, if it has one; a sleeping tenant is only stopped."""
        member = self._attendance.roster.members[name]
        self._attendance.roster.mended(name)
        if member.state is LifeState.SLEEPING:
            self._attendance.wish(name, LifeState.STOPPED)
        elif member.state not in GONE:
            self._attendance.restart(name, drain_s)
