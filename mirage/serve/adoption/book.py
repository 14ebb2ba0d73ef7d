"""Record of a server's processes and configuration in a file, kept up to date as they change."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from mirage.private_file import replace_private
from mirage.processes.marks import ProcessMark, mark_of
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.adoption.record import (
    ConfigRecord,
    EngineRecord,
    FoundRecord,
    RouterRecord,
    RunRecord,
)

logger = logging.getLogger("mirage.serve.adoption")


class RunBook:
    """Record of a server's run, written to `path` at each change; None writes nothing."""

    def __init__(
        self,
        path: Path | None = None,
        record: RunRecord | None = None,
        reaper: ReaperClient | None = None,
    ) -> None:
        self._path, self._record, self._reaper = path, record, reaper
        self._begun = False
        self._failure = ""

    def starts(self) -> None:
        """Write the record for the first time: from now on another server can take this run
        over.
        """
        self._begun = True
        self._has()

    def began(self, tenant: str, pid: int, order: str, log: Path) -> None:
        """Note that an engine was started, whose API server is process `pid`.

        `order` is the hash of its start, `log` the file of its log: see `EngineRecord`.
        """
        if (server := mark_of(pid)) is not None:
            self._engine(tenant, EngineRecord(server, order, str(log)))

    def goes_on(self, tenant: str, engine: EngineRecord) -> None:
        """Note that an engine that a killed server left now belongs to this run."""
        self._engine(tenant, engine)

    def came(self, tenant: str, pid: int) -> None:
        """Note that the engine's core has said hello from process `pid`."""
        if (engine := self._known(tenant)) is not None:
            self._engine(tenant, replace(engine, core=mark_of(pid)))

    def serves(self, tenant: str) -> None:
        """Note that the engine has computed its first step."""
        if (engine := self._known(tenant)) is not None:
            self._engine(tenant, replace(engine, serves=True))

    def made(self, tenant: str, semaphores: Mapping[str, int]) -> None:
        """Note semaphores that the engine has made in /dev/shm: inodes by their names."""
        if (engine := self._known(tenant)) is not None:
            self._engine(tenant, replace(engine, semaphores={**engine.semaphores, **semaphores}))

    def over(self, tenant: str) -> None:
        """Remove a tenant's engine, whose processes have all ended, from the record."""
        if self._known(tenant) is not None:
            self._engine(tenant, None)

    def keeper(self, pid: int | None) -> None:
        """Note that the keeper of weights is process `pid`; None if there is none."""
        self._has(keeper=None if pid is None else mark_of(pid))

    def router(self, router: RouterRecord) -> None:
        """Note the router that serves from now on."""
        self._has(router=router)

    def declares(self, config: ConfigRecord, found: FoundRecord) -> None:
        """Record that another configuration is served, for the server that may adopt this run."""
        self._has(config=config, found=found)

    def _known(self, tenant: str) -> EngineRecord | None:
        return None if self._record is None else self._record.engines.get(tenant)

    def _engine(self, tenant: str, engine: EngineRecord | None) -> None:
        if self._record is not None:
            others = {n: e for n, e in self._record.engines.items() if n != tenant}
            self._has(engines=others if engine is None else {**others, tenant: engine})

    def _has(self, **changes: Any) -> None:
        if self._path is None or self._record is None:
            return
        reaper: ProcessMark | None = None if self._reaper is None else mark_of(self._reaper.pid)
        self._record = replace(self._record, reaper=reaper, **changes)
        if not self._begun:
            return
        try:
            replace_private(self._path, msgspec.json.encode(self._record), lasting=False)
        except OSError as error:
            if str(error) != self._failure:
                logger.error("%s: not written (%s): engines are not adopted", self._path, error)
            self._failure = str(error)
        else:
            self._failure = ""
