"""A checked experiment on several devices with its profiles: a `Setup` for each device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from mirage import profiles
from mirage.config import ConfigError
from mirage.geometry import footprint
from mirage.profiles import Hardware
from mirage.protocol import ModelShape
from mirage.simulate import variants
from mirage.simulate.experiment import Experiment, Setup, SimulatedTenant, Workload, overridden
from mirage.simulate.fleet.schema import FleetExperiment, Outage
from mirage.simulate.fleet.shares import filled
from traces import SAMPLE


class FleetSetup:
    """All that a run on several devices needs, checked."""

    def __init__(
        self,
        experiment: FleetExperiment,
        near: Path | None = None,
        known: Mapping[str, variants.Variant] = variants.VARIANTS,
    ) -> None:
        """Check the experiment, whose policies are names in `known`. Profiles that it names by path
        are relative to `near`. Raises `ConfigError` with one line if it cannot be simulated.
        """
        self.experiment, self.near, self.known = experiment, near or Path(), known
        self.models = {t.name: profiles.model(t.model, near) for t in experiment.tenants}
        self.variants = variants.compared(experiment.policies, known)
        devices = experiment.each_device
        self.outages: dict[str, list[Outage]] = {d.name: d.lost for d in devices}
        """Outages of each device, by its name."""
        self._check_names([d.name for d in devices])
        self.placement = _placement(experiment, list(self.outages))
        """Names of the devices of each tenant, sorted."""
        named = {d.hardware or experiment.hardware for d in devices} | {experiment.hardware}
        hardware = {name: profiles.hardware(name, near) for name in named}
        self.hardware = overridden(hardware[experiment.hardware], experiment)
        """Hardware profile of the devices that name no other."""
        if experiment.moving is None:
            used = {device for places in self.placement.values() for device in places}
            self.devices = {
                d.name: self._device(d.name, hardware[d.hardware or experiment.hardware])
                for d in devices
                if d.name in used
            }
            """Set-up of each device that may have a tenant, by its name."""
        else:
            if experiment.roster is None:
                raise ConfigError(
                    "moving works only with a roster: write roster: {}, or leave moving out"
                )
            asked = {d.hardware or experiment.hardware for d in devices}
            kinds = {name: self._kind(name, hardware[name]) for name in sorted(asked)}
            self.devices = {d.name: kinds[d.hardware or experiment.hardware] for d in devices}
            self._check_room()
        self.shapes = {name: self._first(name).shapes[name] for name in self.models}

    def comparing(self, policies: list[str]) -> FleetSetup:
        """A copy of this set-up with other policies. Raises `ConfigError` for a policy that is
        unknown or cannot be simulated here.
        """
        changed = self.experiment.model_copy(update={"policies": policies})
        return FleetSetup(changed, self.near, self.known)

    def tenant(self, name: str) -> SimulatedTenant:
        """The tenant of that name."""
        return self.experiment.tenant(name)

    def max_len(self, tenant: str) -> int:
        """Most tokens of a request to this tenant, prompt and output together."""
        return self._first(tenant).max_len(tenant)

    def variant(self, name: str) -> variants.Variant:
        """The policy of that name. Raises `ConfigError` for one that is not known."""
        return variants.variant(name, self.known)

    def _first(self, tenant: str) -> Setup:
        return self.devices[self.placement[tenant][0]]

    def _device(self, name: str, hardware: Hardware) -> Setup:
        what = f"device {name!r}"
        return self._setup(what, self._tenants(name, hardware), hardware, self._on(name))

    def _setup(
        self,
        what: str,
        tenants: list[SimulatedTenant],
        hardware: Hardware,
        models: Mapping[str, profiles.Model],
    ) -> Setup:
        """Set-up of one device; errors begin with `what`."""
        experiment, workload = self.experiment, self.experiment.workload
        if workload.arrivals == "trace":  # which tells of all tenants; a device draws no requests
            workload = Workload(arrivals="trace", file=Path(SAMPLE))
        own = {field: getattr(experiment, field) for field in Experiment.model_fields}
        own |= {"tenants": tenants, "workload": workload}
        try:
            return Setup(Experiment(**own), self.near, hardware, models, self.known)
        except ConfigError as error:
            raise ConfigError(f"{what}: {error}") from None

    def _shape(self, tenant: SimulatedTenant, hardware: Hardware) -> ModelShape:
        """Shape of a tenant's model on a device that it has for itself."""
        limits, model = self.experiment.limits, self.models[tenant.name]
        longest = min(tenant.max_model_len or limits.max_model_len or model.max_len, model.max_len)
        memory, parts = hardware.memory_bytes, self.experiment.layer_parts
        return profiles.shape(model, hardware, limits.block_tokens, longest, memory, parts)

    def _kind(self, name: str, hardware: Hardware) -> Setup:
        """Set-up of a device on which any model may run that fits. Raises `ConfigError` if none
        fits.
        """
        here, fitting = overridden(hardware, self.experiment), []
        for tenant in self.experiment.tenants:
            shape = self._shape(tenant, here)
            if footprint(shape, 0, shape.min_extents) <= here.memory_bytes:
                fitting.append(tenant)
        if not fitting:
            raise ConfigError(f"devices of kind {name!r} have no room for any of the models")
        models = {tenant.name: self.models[tenant.name] for tenant in fitting}
        return self._setup(f"devices of kind {name!r}", fitting, hardware, models)

    def _check_room(self) -> None:
        for tenant, places in self.placement.items():
            for device in places:
                if tenant not in self.devices[device].models:
                    raise ConfigError(
                        f"placement of {tenant!r}: device {device!r} has no room for it"
                    )

    def _on(self, device: str) -> dict[str, profiles.Model]:
        return {name: m for name, m in self.models.items() if device in self.placement[name]}

    def _tenants(self, device: str, hardware: Hardware) -> list[SimulatedTenant]:
        """Tenants of a device with their shares, in the order of the file; with a roster as the
        file has them. Raises `ConfigError` if they do not fit.
        """
        experiment = self.experiment
        tenants = [t for t in experiment.tenants if device in self.placement[t.name]]
        if experiment.roster is not None:
            return tenants
        hardware = overridden(hardware, experiment)
        shapes = {t.name: self._shape(t, hardware) for t in tenants}
        pressure = {
            t.name: (t.rate or 1.0)
            / len(self.placement[t.name])
            * self.models[t.name].kv_token_bytes
            for t in tenants
        }
        try:
            return filled(tenants, shapes, hardware.memory_bytes, pressure)
        except ConfigError as error:
            raise ConfigError(f"device {device!r}: {error}") from None

    def _check_names(self, devices: list[str]) -> None:
        tenants = [t.name for t in self.experiment.tenants]
        for kind, names in (("tenant", tenants), ("device", devices)):
            if twice := _twice(names):
                raise ConfigError(f"{kind} name {twice!r} is used twice: names must differ")
        self.experiment.workload.check_tenants(tenants)


def _placement(experiment: FleetExperiment, devices: list[str]) -> dict[str, list[str]]:
    written, tenants = experiment.placement, [t.name for t in experiment.tenants]
    if not written and len(devices) == 1:
        return dict.fromkeys(tenants, devices)
    if unknown := sorted(set(written) - set(tenants)):
        raise ConfigError(f"placement of {unknown[0]!r}: no such tenant")
    for tenant in tenants:
        places = written.get(tenant)
        if not places:
            raise ConfigError(f"placement: tenant {tenant!r} is on no device: name one")
        if unknown := sorted(set(places) - set(devices)):
            raise ConfigError(f"placement of {tenant!r}: no device is named {unknown[0]!r}")
        if twice := _twice(places):
            raise ConfigError(f"placement of {tenant!r}: device {twice!r} stands there twice")
    return {tenant: sorted(written[tenant]) for tenant in tenants}


def _twice(names: Iterable[str]) -> str | None:
    """The first name that occurs twice; None if all differ."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
