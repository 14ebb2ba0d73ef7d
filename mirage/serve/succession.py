"""Choice at a server's start: to take over the engines that another server left, or start new
ones.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from mirage.config import Config, ConfigError, HttpSection
from mirage.processes.marks import MarkedProcess, boot_id, mark_of
from mirage.serve.admin.one_server import gpu_of
from mirage.serve.adoption.code import code_of_engines
from mirage.serve.adoption.left import LeftRun, left_runs
from mirage.serve.adoption.record import RECORD_FORM, ConfigRecord, RouterRecord, RunRecord
from mirage.serve.apply.difference import difference
from mirage.serve.apply.recorded import config_of, found_record
from mirage.serve.apply.source import Written
from mirage.serve.launch.preflight import Preflight
from mirage.serve.logs.progress import say
from mirage.serve.routing.address import url_of
from mirage.serve.rundir.folders import RunDir

OF_SERVERS = frozenset({"http", "hang_s", "lease_s", "warm_starts", "replay"})
"""Top-level keys of a configuration that may differ when engines are taken over, because they
concern only the server."""


class Succession(NamedTuple):
    """Run of a killed server that this server takes over, and the configuration to go on with: the
    killed server's, but with this server's own values of `OF_SERVERS`.
    """

    left: LeftRun
    config: Config
    """Configuration as it was declared; shares may be ``auto``."""
    found: Preflight
    written: Written


def succession(declared: Config, device: str) -> Succession | None:
    """Newest run left on the device that this server can take over; None if there is none.

    All other runs are ended, and the reason is printed: newer ones that cannot be taken over, and
    older ones, whose engines would keep memory of the device.
    """
    found: Succession | None = None
    for run in left_runs(device):
        why = "those of a later server are taken over"
        try:
            if found is None:
                found = _successor(run, declared)
                continue
        except ConfigError as error:
            why = str(error)
        ended = ", ".join(run.end()) or "none was left"
        say(f"engines of process {run.record.server.pid}, which died, are ended: {why}")
        say(f"ended: {ended}")
    return found


def _successor(run: LeftRun, declared: Config) -> Succession:
    """Succession to a run. Raises `ConfigError` with the reason if it cannot be taken over."""
    record = run.record
    if not run.same_boot:
        raise ConfigError("the machine has been started anew since")
    if not declared.lease_s:
        raise ConfigError("lease_s is 0")
    if record.code != code_of_engines():
        raise ConfigError("MIRAGE, vLLM or Python are other ones now")
    written, before = config_of(record.config)
    fixed = [key for key in difference(before, declared).fixed if _head(key) not in OF_SERVERS]
    if fixed:
        raise ConfigError(f"{', '.join(fixed)} is not as it was")
    own = {key: getattr(declared, key) for key in OF_SERVERS}
    config = before.model_copy(update=own)
    told = record.found
    tenants = [t.model_copy(update={"share": told.shares.get(t.name)}) for t in config.tenants]
    served = config.model_copy(update={"tenants": tenants})
    found = Preflight(told.fits, told.refused, told.adapters, served)
    return Succession(run, config, found, written)


def router_left(
    left: LeftRun | None, host: str, port: int, http: HttpSection
) -> tuple[RouterRecord, MarkedProcess] | None:
    """Router that the killed server left, if its host, port and scheme are still right; else it is
    ended.

    None if there is no such router.
    """
    if left is None or (router := left.record.router) is None:
        return None
    same = router.host == host and router.url == url_of(host, router.port, http)
    if same and port in (0, router.port):
        if (process := MarkedProcess.found(router.process)) is not None:
            return router, process
    else:
        say("the router that was left has another address: it is ended")
    left.end_router()
    return None


def device_name(config: Config, file: Path) -> str:
    """Name of the device in records: the GPU, or host memory with the configuration file."""
    return f"gpu {gpu_of(config)}" if config.device.kind == "cuda" else f"host {file.resolve()}"


def run_record(
    device: str,
    rundir: RunDir,
    lease_s: float,
    config: ConfigRecord,
    found: Preflight,
) -> RunRecord:
    """Record of this process's run, at its beginning."""
    server = mark_of(os.getpid())
    assert server is not None, "this process lives"
    folders = [str(folder) for folder in rundir.folders]
    return RunRecord(
        RECORD_FORM,
        device,
        boot_id(),
        code_of_engines(),
        server,
        lease_s,
        folders,
        config,
        found_record(found),
    )


def _head(key: str) -> str:
    return key.split(".", 1)[0]
