"""Keys, limits of clients and certificates of a cluster, changed while it is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mirage.config import HttpSection
from mirage.errors import CommandFailed, InputRefused
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.server_keys import ServerKeys
from mirage.serve.apply.difference import TLS, difference
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.revision import Revision
from mirage.serve.apply.said import NOTHING, of_http
from mirage.serve.apply.source import Written
from mirage.serve.machine.cluster import ServedCluster, served_cluster
from mirage.serve.machine.cluster_servers import ClusterServers
from mirage.serve.said import say


def with_own(clients: tuple[AccessKey, ...] | None, own: AccessKey) -> tuple[AccessKey, ...]:
    """Keys of clients, and the cluster's own. Raises `InputRefused` if one has its name."""
    if any(key.name == own.name for key in clients or ()):
        raise InputRefused(f"--keys: a key is named {own.name!r}, as the cluster's own: rename it")
    return (*(clients or ()), own)


class ClusterApplier:
    """Has all machines do as files say now, one change at a time; see `AppliesConfigs`.

    Of the file the section `http` alone may change: for the rest another controller begins.
    """

    def __init__(self, plan: ServedCluster, wanted: Written, keys: ServerKeys) -> None:
        """`wanted` is what the `plan` was made of. `servers` has to be set."""
        self.plan, self.wanted, self._keys = plan, wanted, keys
        self.source = plan.source
        self.servers: ClusterServers
        self.revision = Revision()
        self._lock = asyncio.Lock()

    @property
    def http(self) -> HttpSection:
        """See `AppliesConfigs`."""
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
        """See `AppliesConfigs`. All machines that are there are asked before anything changes."""
        async with self._lock:
            fresh()
            wanted = edit(self.wanted)
            plan = served_cluster(self.source, wanted, self.plan.options)
            keys = _limits(self.plan, plan, self.wanted, wanted)
            lines = of_http(keys, dry_run=dry_run)
            if keys:
                await self.servers.would(plan)
            if keys and not dry_run:
                self.plan, self.wanted = plan, wanted
                lines += _late(await self.servers.has(plan))
                self.revision.grows()
            return ApplyTold(
                applied=bool(keys) and not dry_run,
                revision=self.revision.number,
                added=(),
                changed=(),
                removed=(),
                roster=(),
                http=keys,
                fitting=(),
                awaited={},
                lines=tuple(lines) or (NOTHING,),
            )

    async def keys(self) -> str:
        """Have the keys that their source has now at all machines; a line about them.

        Raises `InputRefused`.
        """
        async with self._lock:
            own = self.plan.options.keys[-1]
            line = await self._keys.again()
            keys = with_own(self._keys.table.keys, own)
            self.plan = self.plan._replace(options=self.plan.options._replace(keys=keys))
            return "; ".join([line, *_late(await self.servers.has(self.plan))])

    async def after_hangup(self) -> None:
        """Read all again, and say so; what has a mistake stays as it was."""
        if self._keys.table.keys is not None:
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
                late = _late(await self.servers.has(self.plan))
            say("; ".join(["SIGHUP: each machine reads its certificate again", *late]))


def _limits(
    before: ServedCluster, after: ServedCluster, had: Written, wanted: Written
) -> tuple[str, ...]:
    """Limits of clients that are not as they were. Raises `CommandFailed` for other changes."""
    change = difference(before.common, after.common)
    keys = dict.fromkeys((*had.raw, *wanted.raw))
    others = [k for k in keys if k != "http" and repr(had.raw.get(k)) != repr(wanted.raw.get(k))]
    if had.folder != wanted.folder:
        others.append("its folder")
    if TLS in change.fixed:
        raise CommandFailed(
            f"{TLS} cannot come or go while routers run: mirage node leave ends that of a machine"
        )
    if others:
        raise CommandFailed(
            f"{', '.join(others)} cannot change while this controller runs: start mirage serve "
            "--cluster again, which what is served does not notice"
        )
    return change.http


def _late(names: list[str]) -> list[str]:
    """Words about servers that could not be told."""
    if not names:
        return []
    return [f"{', '.join(names)}: away, and will hear of it once they answer"]
