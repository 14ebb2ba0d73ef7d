"""Application of a file with several devices while they serve: on all of them, or on none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from mirage.config import HttpSection
from mirage.errors import CommandFailed
from mirage.serve.apply.difference import changed_keys, difference
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.revision import Revision
from mirage.serve.apply.said import NOTHING
from mirage.serve.apply.source import Written
from mirage.serve.apply.state_file import KeptState
from mirage.serve.clients.certificate import check_tls
from mirage.serve.launch.vllm_facts import Probe
from mirage.serve.machine.applied import AboveChange, machine_told
from mirage.serve.machine.calls import DeviceAway, DeviceRefused, refusal_of
from mirage.serve.machine.change import MachineChange, machine_change, places_in
from mirage.serve.machine.declared import PlacedMachine
from mirage.serve.machine.moving import MachineMoves
from mirage.serve.machine.served_device import ServedDevice
from mirage.serve.routing.desk import RouterDesk


class MachinePlan(NamedTuple):
    """Difference between the tenants that devices have now and a wanted configuration."""

    machine: PlacedMachine
    change: MachineChange
    differ: tuple[str, ...]
    """Devices whose configurations the change alters before any model moves, even if the
    alteration has no effect.
    """
    above: AboveChange
    """Changed keys that concern no device."""

    def is_none(self, parts: Mapping[str, ApplyTold]) -> bool:
        """True if the difference has no effect; `parts` are answers of the devices' dry runs."""
        still = not self.change.steps and not any(self.above)
        return still and all(one.lines == (NOTHING,) for one in parts.values())


class MachineApplier:
    """Applies files to the machine's devices, one file at a time; see `AppliesConfigs`."""

    def __init__(
        self,
        devices: Mapping[str, ServedDevice],
        machine: PlacedMachine,
        moves: MachineMoves,
        probe: Probe,
        desk: RouterDesk,
        state: KeptState,
    ) -> None:
        """`desk` sends new limits to the router, which all devices share. What is applied is kept
        in `state`.
        """
        self._state = state
        self._devices, self._machine = devices, machine
        self._moves, self._probe, self._desk = moves, probe, desk
        self.source, self.wanted = machine.declared.source, machine.declared.written
        self.revision = Revision()
        self._lock = asyncio.Lock()
        self._having: asyncio.Future[ApplyTold] | None = None
        """Task that makes the present change, or made the last one."""

    @property
    def http(self) -> HttpSection:
        """Limits of clients that are in force now, on all devices."""
        return self._machine.declared.common.http

    async def apply(
        self,
        edit: Callable[[Written], Written],
        *,
        fresh: Callable[[], None] = lambda: None,
        drain_s: float | None = None,
        dry_run: bool = False,
        facts: bool = False,
    ) -> ApplyTold:
        """Apply the file that `edit` makes of the present one to all devices, or to none: each
        device whose configuration changes first does a dry run, and with `dry_run` nothing more.

        `fresh` raises if the present file is no longer the one that the caller knows. Running
        requests of tenants that stop have `drain_s` seconds, None for the roster's own time. With
        `facts` a dry run returns the facts for a simulation of each device. Raises
        `ConfigError` for a configuration that cannot be served, and `CommandFailed` for one that
        needs another start of the server, or if a device's server does not answer.
        """
        async with self._lock:
            if self._having is not None:
                await asyncio.wait([self._having])
            fresh()
            wanted = edit(self.wanted)
            plan = await self._plan(wanted)
            parts = await self._would(plan, drain_s, facts=dry_run and facts)
            fresh()
            if dry_run or plan.is_none(parts):
                if not dry_run:
                    await asyncio.to_thread(self._state.keep, wanted)
                    self._holds(wanted, plan)
                return self._told(plan, parts, dry_run=dry_run)
            self._having = asyncio.ensure_future(self._have(wanted, drain_s))
            return await asyncio.shield(self._having)

    async def _plan(self, wanted: Written) -> MachinePlan:
        """Difference between the devices' present tenants and the configuration `wanted`. It takes
        seconds if vLLM has to be asked about models."""
        return await asyncio.to_thread(self._planned, wanted, self._present)

    @property
    def _present(self) -> dict[str, frozenset[str]]:
        return {name: one.tenants for name, one in self._devices.items()}

    def _planned(self, wanted: Written, present: Mapping[str, frozenset[str]]) -> MachinePlan:
        there = places_in(present)
        declared = self._machine.declared.instead(wanted)
        machine = declared.placed_beside(there, self._machine.known, self._probe)
        named = declared.file.named
        places = {
            name: named[name] or there.get(name, at.devices)
            for name, at in machine.first.places.items()
        }
        change = machine_change(present, places)
        devices = self._devices.items()
        differ = tuple(n for n, one in devices if one.differs(change.tenants[n], declared))
        http = declared.common.http
        limits = difference(self._machine.declared.common, declared.common).http
        if limits:
            check_tls(http)
        rules = self._machine.declared.file.placement, declared.file.placement
        above = AboveChange(limits, tuple(changed_keys(*rules, "placement")))
        return MachinePlan(machine, change, differ, above)

    async def _would(
        self, plan: MachinePlan, drain_s: float | None, *, facts: bool
    ) -> dict[str, ApplyTold]:
        """Answers of the devices' dry runs. Raises `CommandFailed` if a device's server is away,
        and the error that `refusal_of` makes of a device's refusal."""
        tenants, declared = plan.change.tenants, plan.machine.declared
        asked = (
            self._devices[n].would(tenants[n], drain_s, declared, facts=facts) for n in plan.differ
        )
        try:
            return dict(zip(plan.differ, await asyncio.gather(*asked), strict=True))
        except DeviceAway as error:
            raise CommandFailed(str(error)) from None
        except DeviceRefused as error:
            raise refusal_of(error) from None

    async def _have(self, wanted: Written, drain_s: float | None) -> ApplyTold:
        """Apply a configuration on all devices or, if one refuses, on none; moves of models follow
        later.
        """
        async with self._moves.still():
            plan = await self._plan(wanted)
            had, parts = self._present, dict[str, ApplyTold | None]()
            await asyncio.to_thread(self._state.keep, wanted)
            for name in plan.differ:
                try:
                    parts[name] = await self._serves(name, plan, drain_s)
                except DeviceRefused as error:
                    await self._goes_back({other: had[other] for other in parts})
                    await asyncio.to_thread(self._state.keep, self.wanted)
                    raise refusal_of(error) from None
            self._holds(wanted, plan)
            self.revision.grows()
            if plan.above.http:
                self._desk.limits(self.http)
                await self._desk.seen()
            return self._told(plan, parts, dry_run=False)

    async def _serves(
        self, name: str, plan: MachinePlan, drain_s: float | None
    ) -> ApplyTold | None:
        """Apply a device's part of the plan and return its answer. None if the device's server is
        away; its next start begins with that part.

        Raises `DeviceRefused` if the server refuses.
        """
        tenants, declared = plan.change.tenants[name], plan.machine.declared
        try:
            return await self._devices[name].serves_of(declared, tenants, drain_s)
        except DeviceAway:
            return None

    async def _goes_back(self, had: Mapping[str, frozenset[str]]) -> None:
        """Apply their earlier tenants to these devices again, because another device has refused
        the change.
        """
        for name, tenants in had.items():
            with suppress(DeviceAway, DeviceRefused):
                await self._devices[name].serves_of(self._machine.declared, tenants, None)

    def _holds(self, wanted: Written, plan: MachinePlan) -> None:
        self.wanted, self._machine = wanted, plan.machine
        for device in self._devices.values():
            device.declared = plan.machine.declared
        machine = plan.machine
        self._moves.knows(machine.facts, machine.scenes, machine.declared.file.placement)
        self._moves.orders(plan.change)

    def _told(
        self, plan: MachinePlan, parts: Mapping[str, ApplyTold | None], *, dry_run: bool
    ) -> ApplyTold:
        change, named = plan.change, plan.machine.declared.file.named
        decided = {n: plan.machine.first.places[n] for n in change.added if not named[n]}
        number = self.revision.number
        return machine_told(change, plan.above, decided, parts, number, dry_run=dry_run)
