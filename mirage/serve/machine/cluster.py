"""File of `mirage serve --cluster`: devices of several machines, and the orders by which agents
start servers there.

An agent is the process that starts and watches one device server or router on its machine. A door
is the address at which the routers of other machines reach a device.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mirage.config import Config, ConfigError, TenantSection
from mirage.control.placement.facts import PlaceMachine, PlacementFacts
from mirage.facts import ModelFacts
from mirage.folder.model_config import check_is_folder
from mirage.machines.agent import AgentOrder
from mirage.machines.seam import MachineThere
from mirage.serve.access.forms import AccessKey
from mirage.serve.apply.recorded import config_record
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.fit.fit import fit, with_shares
from mirage.serve.launch.host_limits import host_parts
from mirage.serve.launch.vllm_facts import Probe
from mirage.serve.logs.logs import LogFormat
from mirage.serve.logs.progress import say
from mirage.serve.machine.judge_scenes import judge_scenes
from mirage.serve.machine.known import NONE_KNOWN, KnownModel, KnownModels, asked
from mirage.serve.machine.machine_router import PROGRAM as ROUTER
from mirage.serve.machine.machine_router import RouterOrder
from mirage.serve.machine.model_facts import place_device, place_models
from mirage.serve.machine.parts import MachineFile, machine_file, without_machines
from mirage.serve.machine.tethered import TetheredOrder
from mirage.serve.models.hubs import outlined
from mirage.serve.models.stored import is_here
from mirage.serve.roster.declared import DISK_BYTES_S
from mirage.serve.whatif.forms import Scene

LEASE_S = 3600.0
"""Seconds for which a device server goes on without an agent, if no option says otherwise."""
ENGINES_S = 300.0
"""Seconds for which engines go on without their device server, if the file has no `lease_s`."""
UNCOUNTED = 2**60
"""Bytes of host memory that are assumed for a machine that has not told its own: no limit."""


class ClusterOptions(NamedTuple):
    """Options of `mirage serve --cluster`, and keys: those of clients, and the cluster's own."""

    keys: tuple[AccessKey, ...]
    token: str
    """Token of the key with which devices let routers of other machines in; that key is one of
    `keys`.
    """
    port: int
    """Port of the router on each machine."""
    log_format: LogFormat
    lease_s: float
    program: tuple[str, ...]
    """Arguments of Python that run a device's server."""
    startup_timeout_s: float | None = None
    """Seconds until an engine has to be ready; None leaves the default of its device."""


class KnownCluster(NamedTuple):
    """Facts about devices and models, and inputs of simulations, by which models are placed."""

    facts: PlacementFacts
    """Facts about devices and models, without load."""
    scenes: dict[str, Scene]
    """Inputs of simulations as `judge_scenes` makes them, by device."""
    models: KnownModels = NONE_KNOWN
    """Models that vLLM was asked about, and those whose folders are not there."""


class ServedCluster(NamedTuple):
    """File whose devices are in several machines, with the options of the cluster's controller,
    the process of `mirage serve --cluster`.
    """

    file: MachineFile
    source: ConfigSource
    folder: Path
    sections: dict[str, dict[str, Any]]
    """Sections of the devices as their servers get them, by device."""
    machine_of: dict[str, str]
    options: ClusterOptions

    @property
    def models(self) -> list[str]:
        """Names of all tenants."""
        return list(self.file.named)

    @property
    def stored(self) -> dict[str, str]:
        """Names that the tenants' models have in stores of weights, by tenant; without tenants
        whose model is a folder or a hub's."""
        return {one.name: one.stored for one in self.file.common.tenants if one.stored}

    def written(self, device: str, tenants: Collection[str]) -> Written:
        """Configuration for the server of one device, with these tenants: the part of the cluster's
        file that the device gets, in the file's keys, not yet validated.
        """
        part = self.file.part(device, tenants)
        raw = part.raw | {"device": self.sections[device]}
        return Written(raw, part.path, self.folder)

    def order(self, device: str, address: str, wanted: Written) -> bytes:
        """Order, as JSON for an agent, to start a device's server at `address` with the
        configuration `wanted`."""
        engines_s = None if "lease_s" in wanted.raw else ENGINES_S
        options, record = self.options, config_record(self.source, wanted)
        level = logging.getLogger("mirage").getEffectiveLevel()
        server = TetheredOrder(
            device,
            record,
            engines_s,
            address,
            options.keys,
            level,
            options.log_format,
            options.startup_timeout_s,
        )
        return self._agent(options.program, msgspec.json.encode(server))

    def router_order(self, name: str, machine: MachineThere, doors: dict[str, str]) -> bytes:
        """Start parameters (order) of the router of a machine, as JSON; `name` is the name by which
        the agent knows the router.

        `doors` are the URLs of the devices' doors, by device.
        """
        options = self.options
        return msgspec.json.encode(
            RouterOrder(
                name,
                machine.name,
                config_record(self.source, self._whole),
                machine.address,
                options.port,
                options.keys,
                options.token,
                doors,
                logging.getLogger("mirage").getEffectiveLevel(),
                options.log_format,
            )
        )

    def router_agent(self, order: bytes) -> bytes:
        """Order, as JSON, for the agent that starts a router with `order` (see `router_order`)."""
        return self._agent(ROUTER, order)

    def taken(self, machine: str) -> int:
        """Bytes of host memory that devices of a machine take, with their tiers."""
        devices = (name for name, at in self.machine_of.items() if at == machine)
        parts = (host_parts(self.source.declared(self.written(name, ()))) for name in devices)
        return sum(map(sum, parts))

    @property
    def common(self) -> Config:
        """Configuration as if all tenants were on the first device, for the sections that hold for
        all devices.
        """
        return self.source.declared(self._whole)

    @property
    def _whole(self) -> Written:
        return Written(self.file.whole, self.file.path, self.folder)

    def _agent(self, program: tuple[str, ...], server: bytes) -> bytes:
        hang_s = self.file.common.hang_s
        return msgspec.json.encode(AgentOrder(0, self.options.lease_s, hang_s, program, server))

    def known(self, probe: Probe, models: KnownModels = NONE_KNOWN) -> KnownCluster:
        """Facts about devices and models, and inputs of simulations (scenes), for a placement.
        Raises `ConfigError` if vLLM cannot be asked or a file cannot be read.

        vLLM is asked about models that are on this machine or at a hub, but not again about those
        in `models`, unless it has refused a folder, which may have been corrected since. Of a model
        that only other machines' stores have, just the share is known, and no simulation includes
        it.
        """
        config = self.common
        here = [t for t in config.tenants if t.stored is None or is_here(config.weights, t.stored)]
        missing = {t.name: KnownModel(t, None, why) for t in here if (why := _lacks(t))}
        here = [tenant for tenant in here if tenant.name not in missing]
        models = {name: one for name, one in models.items() if one.facts or not one.is_folder}
        if not here:
            return KnownCluster(self._facts(config, {}), {}, missing)
        with outlined(config.model_copy(update={"tenants": here}), say) as seen:
            named, placed = _sections(here), _sections(seen.tenants)
            found = _instead(asked(seen, probe, _instead(models, named, placed)), placed, named)
            told = {name: one.facts for name, one in found.items() if one.facts is not None}
            facts = self._facts(config, told)
            scenes = judge_scenes(seen, told, facts, self.file.devices)
            return KnownCluster(facts, scenes, found | missing)

    def unfit(self, device: str, tenants: Collection[str], models: KnownModels) -> dict[str, str]:
        """Reasons why tenants cannot be served by a device, by tenant, without asking its server:
        vLLM has refused the model, or the share is too small.
        """
        told = {n: models[n] for n in tenants if n in models}
        facts = {name: one.facts for name, one in told.items() if one.facts is not None}
        found = {name: one.why for name, one in told.items() if one.why}
        if facts:
            here = self.source.declared(self.written(device, tenants))
            found |= fit(with_shares(here, facts), facts)[1]
        return found

    def _facts(self, config: Config, told: Mapping[str, ModelFacts]) -> PlacementFacts:
        file, machines = self.file, dict.fromkeys(self.machine_of.values())
        return PlacementFacts(
            tuple(
                place_device(name, section, self.machine_of[name])
                for name, section in file.devices.items()
            ),
            tuple(PlaceMachine(name, UNCOUNTED, DISK_BYTES_S) for name in machines),
            tuple(place_models(config, told, file.devices, file.placement, file.named)),
            (),
        )


def _lacks(tenant: TenantSection) -> str:
    """Reason why vLLM cannot be asked about a tenant's folder on this machine; empty if it can."""
    if tenant.hub is None and tenant.stored is None:
        try:
            check_is_folder(Path(tenant.model))
        except ConfigError as error:
            return str(error)
    return ""


def _sections(tenants: Iterable[TenantSection]) -> dict[str, TenantSection]:
    return {tenant.name: tenant for tenant in tenants}


def _instead(
    models: KnownModels, before: Mapping[str, TenantSection], after: Mapping[str, TenantSection]
) -> dict[str, KnownModel]:
    """Known models in whose sections the tenant's model of `before`, a name or a folder, is
    replaced by that of `after`; those with another model are left out.
    """
    return {
        name: one._replace(section=one.section.model_copy(update={"model": after[name].model}))
        for name, one in models.items()
        if name in before and before[name].model == one.section.model
    }


def served_cluster(
    source: ConfigSource, written: Written, options: ClusterOptions
) -> ServedCluster:
    """Cluster that the file `written` describes, with `options`. Raises `ConfigError` for an
    invalid file.

    If the options of `source` switch TLS off, routers of machines do not get the key `http.tls`.
    """
    raw, machine_of = without_machines(written.raw, written.path)
    if not source.tls and isinstance(http := raw.get("http"), dict):
        raw["http"] = {key: value for key, value in http.items() if key != "tls"}
    file = machine_file(raw, written.path, written.folder)
    sections = {}
    for one in written.raw["devices"]:
        section = dict(file.part(one["name"], ()).raw["device"])
        section.pop("index", None)
        sections[one["name"]] = section | {k: one[k] for k in ("index",) if k in one}
    return ServedCluster(file, source, written.folder, sections, machine_of, options)
