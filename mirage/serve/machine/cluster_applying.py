"""Tenants, rules, limits and keys of a cluster, changed while it is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from mirage.config import HttpSection
from mirage.errors import CommandFailed, InputRefused
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.server_keys import ServerKeys
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.revision import Revision
from mirage.serve.apply.said import NOTHING
from mirage.serve.apply.source import Written
from mirage.serve.apply.state_file import KeptState
from mirage.serve.launch.vllm_facts import Probe
from mirage.serve.logs.progress import say
from mirage.serve.machine.applied import machine_told
from mirage.serve.machine.calls import APPLY_S, DeviceAway, DeviceRefused, refusal_of
from mirage.serve.machine.cluster import KnownCluster, ServedCluster, served_cluster
from mirage.serve.machine.cluster_change import (
    ClusterChange,
    ClusterNow,
    above_change,
    check_away,
    cluster_change,
)
from mirage.serve.machine.cluster_controller import ClusterController

NOT_KEPT = "the next controller begins with {} again: apply that, or start one with --state FILE"
Parts = Mapping[str, ApplyTold | None]
"""Answers of devices; None for one whose server is away."""


def with_own(clients: tuple[AccessKey, ...] | None, own: AccessKey) -> tuple[AccessKey, ...]:
    """Keys of clients, and the cluster's own key, which is the last one.

    Raises `InputRefused` if a client's key has the name of the cluster's own.
    """
    if any(key.name == own.name for key in clients or ()):
        raise InputRefused(f"--keys: a key is named {own.name!r}, as the cluster's own: rename it")
    return (*(clients or ()), own)


class ClusterMeans(NamedTuple):
    """Objects by which a cluster's files are applied."""

    keys: ServerKeys
    probe: Probe
    state: KeptState
    """File that keeps what is applied."""


class ClusterApplier:
    """Applies files to the devices of all machines, one change at a time; see `AppliesConfigs`.

    All devices that can be reached apply a file, or none does; a device that is away gets it once
    it is back.
    """

    def __init__(
        self, plan: ServedCluster, wanted: Written, known: KnownCluster, means: ClusterMeans
    ) -> None:
        """`wanted` is the file that `plan` was made of. The caller has to set `controller`."""
        self.plan, self.wanted, self.known, self._means = plan, wanted, known, means
        self.source = plan.source
        self.controller: ClusterController
        self.revision = Revision()
        self._lock = asyncio.Lock()
        self._having: asyncio.Future[ApplyTold] | None = None
        """Task that makes the present change, or made the last one."""

    @property
    def http(self) -> HttpSection:
        """Limits of clients that are in force now, on all machines."""
        return self.plan.common.http

    async def apply(
        self,
        edit: Callable[[Written], Written],
        *,
        fresh: Callable[[], None] = lambda: None,
        drain_s: float | None = None,
        dry_run: bool = False,
        facts: bool = False,
    ) -> ApplyTold:
        """Apply the file that `edit` makes of the present one to the devices of all machines, as
        `AppliesConfigs` says. If a device's configuration changes, the routers that are there and
        the devices with changes do dry runs before anything changes."""
        async with self._lock:
            if self._having is not None:
                await asyncio.wait([self._having])
            fresh()
            wanted = edit(self.wanted)
            change = await self._change(wanted)
            parts = await self._would(change, drain_s, facts=dry_run and facts)
            fresh()
            if dry_run or _is_none(change, parts):
                if not dry_run:
                    await asyncio.to_thread(self._means.state.keep, wanted)
                    self._has(wanted, change)
                return self._told(change, parts, dry_run=dry_run)
            self._having = asyncio.ensure_future(self._have(wanted, drain_s))
            return await asyncio.shield(self._having)

    async def keys(self) -> str:
        """Read the keys from their source again, and replace those of all machines. Returns a line
        for the operator. Raises `InputRefused` if they cannot be read or one has the name of the
        cluster's own key.
        """
        async with self._lock:
            own, before = self.plan.options.keys[-1], self._means.keys.table
            line = await self._means.keys.again()
            try:
                keys = with_own(self._means.keys.table.keys, own)
            except InputRefused:
                self._means.keys.table = before
                raise
            self.plan = self.plan._replace(options=self.plan.options._replace(keys=keys))
            return "; ".join([line, *_late(await self._again())])

    async def after_hangup(self) -> None:
        """Read keys, file and certificate again after SIGHUP, with a log line about each; a source
        that has a mistake changes nothing.
        """
        if self._means.keys.table.keys is not None:
            try:
                say(f"SIGHUP: {await self.keys()}")
            except InputRefused as error:
                say(f"SIGHUP: the keys stay as they were: {error}")
        try:
            told = await self.apply(lambda before: self.source.written())
        except (InputRefused, CommandFailed) as error:
            say(f"SIGHUP: nothing is applied: {error}")
        else:
            say(f"SIGHUP: {self.source.path}: {'; '.join(told.lines)}")
        if self.http.tls is not None:
            async with self._lock:
                late = _late(await self._again())
            say("; ".join(["SIGHUP: each machine reads its certificate again", *late]))

    # -- a file ----------------------------------------------------------------------------

    async def _change(self, wanted: Written) -> ClusterChange:
        """Change from what is served to the file `wanted`. It takes seconds if vLLM has to be asked
        about models. Raises `ConfigError` for a file that cannot be served, and `CommandFailed` for
        a change that needs another start or more host memory.
        """
        return await asyncio.to_thread(self._changed, wanted, self.controller.now)

    def _changed(self, wanted: Written, now: ClusterNow) -> ClusterChange:
        plan = served_cluster(self.source, wanted, self.plan.options)
        plan = plan._replace(file=plan.file._replace(path=self.plan.file.path))
        above_change(self.plan, plan)  # before vLLM is asked
        known = self.known
        if _models(plan) != _models(self.plan):
            known = plan.known(self._means.probe, known.models)
        return cluster_change(self.plan, plan, known, now)

    async def _would(
        self, change: ClusterChange, drain_s: float | None, *, facts: bool
    ) -> dict[str, ApplyTold | None]:
        """Answers of the dry runs of all devices that the change concerns; None where the server is
        away.

        Raises `ConfigError` for tenants that cannot be served, and `CommandFailed` if a router or a
        device refuses for another reason.
        """
        if differ := self._differ(change):
            await self.controller.servers.would(change.plan)
        asked = (self._part(name, change, drain_s, facts=facts) for name in differ)
        parts = dict(zip(differ, await asyncio.gather(*asked), strict=True))
        away = [name for name, part in parts.items() if part is None]
        check_away(change, self.plan, [*away, *change.above.devices])
        return parts

    async def _part(
        self, name: str, change: ClusterChange, drain_s: float | None, *, facts: bool
    ) -> ApplyTold | None:
        tenants = change.change.tenants[name]
        try:
            device = self.controller.devices[name]
            return await device.would(tenants, change.plan, drain_s, facts=facts)
        except DeviceAway:
            return None
        except DeviceRefused as error:
            raise refusal_of(error) from None

    async def _have(self, wanted: Written, drain_s: float | None) -> ApplyTold:
        """Apply a file on all devices that are there or, if one refuses, on none; moves of models
        follow later.
        """
        servers = self.controller.servers
        async with self.controller.still():
            change, had = await self._change(wanted), self.controller.now.tenants
            differ = self._differ(change)
            await asyncio.to_thread(self._means.state.keep, wanted)
            told = await servers.has(change.plan, change.change.tenants, drain_s, APPLY_S)
            for error in told.refused.values():
                await servers.has(self.plan, had, limit_s=APPLY_S)
                await asyncio.to_thread(self._means.state.keep, self.wanted)
                raise refusal_of(error)
            self._has(wanted, change)
            self.controller.holds(change)
            self.revision.grows()
            parts = {name: told.parts.get(name) for name in differ}
            routers = [name for name in told.late if name.startswith("machine ")]
            answer = self._told(change, parts, dry_run=False)
            lines = [*(one for one in answer.lines if one != NOTHING), *_late(routers)]
            if not await asyncio.to_thread(self._means.state.outlives, wanted):
                lines.append(NOT_KEPT.format(self.source.path))
            return msgspec.structs.replace(answer, lines=tuple(lines) or (NOTHING,))

    def _has(self, wanted: Written, change: ClusterChange) -> None:
        self.plan, self.wanted, self.known = change.plan, wanted, change.known

    async def _again(self) -> list[str]:
        """Send the present file and keys to all servers; return the names of those that have not
        got them."""
        servers = self.controller.servers
        return (await servers.has(self.plan, self.controller.now.tenants)).late

    def _differ(self, change: ClusterChange) -> list[str]:
        tenants, devices = change.change.tenants, self.controller.devices.items()
        return [name for name, one in devices if one.differs(tenants[name], change.plan)]

    def _told(self, change: ClusterChange, parts: Parts, *, dry_run: bool) -> ApplyTold:
        devices = self.controller.devices
        away = {n for n, part in parts.items() if part is None} | self.controller.now.lost
        away |= {*change.above.devices}
        return machine_told(
            change.change,
            change.above,
            change.decided,
            parts,
            self.revision.number,
            dry_run=dry_run,
            away=away,
            label=lambda name: devices[name].label,
        )


def _is_none(change: ClusterChange, parts: Parts) -> bool:
    """True if the change has no effect; `parts` are the answers of the devices' dry runs."""
    still = not change.change.steps and not any(change.above)
    return still and all(part is not None and part.lines == (NOTHING,) for part in parts.values())


def _models(plan: ServedCluster) -> tuple[str, object]:
    """Keys of a cluster's file on which the facts for placements depend, as text, and its rules of
    placement; if neither changes, the known facts still hold."""
    config = plan.file.common
    what = config.tenants, config.roster, plan.file.named, plan.machine_of
    return repr(what), plan.file.placement


def _late(names: list[str]) -> list[str]:
    """Words about servers, by their names, that have not got the present file yet; empty if all
    have it."""
    if not names:
        return []
    return [f"{', '.join(names)}: away, and will hear of it once they answer"]
