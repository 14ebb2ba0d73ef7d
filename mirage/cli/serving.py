"""Run of `mirage serve` by its options: on a cluster, on several devices, or on one. What only the
first two need is imported for them alone: simulations of placements, and numpy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirage.cli.options import LogLevel
from mirage.config import Policy
from mirage.errors import InputRefused
from mirage.processes.hangup import HangUps
from mirage.serve.access.server_keys import ServerKeys, key_source
from mirage.serve.adoption.left import left_models
from mirage.serve.apply.applier import Origin
from mirage.serve.apply.source import ConfigSource, has_devices
from mirage.serve.apply.state_file import KeptState, StateFile
from mirage.serve.launch.programs import Means
from mirage.serve.launch.vllm_facts import Probe
from mirage.serve.logs.logs import LogFormat, LogPlan, log_by
from mirage.serve.logs.progress import LOOKING, say, telling
from mirage.serve.models.step_times import profiled
from mirage.serve.proposal.proposed import source_of
from mirage.serve.proposal.words import TRUST
from mirage.serve.rundir.ready_file import ReadyFile
from mirage.serve.service.manager import service_manager
from mirage.serve.service.passed import address_of, passed_sockets
from mirage.serve.succession import device_name
from mirage.serve.supervisor import ServeOptions, serve
from mirage.serve.until_signal import signals_exit

if TYPE_CHECKING:
    from mirage.serve.machine.declared import PlacedMachine

HOST = "127.0.0.1"
"""Address to listen on, if none is named."""


@dataclass(frozen=True)
class ServeRequest:
    """Options of `mirage serve` as parsed from the command line; no configuration is read yet."""

    words: Sequence[str]
    """A configuration file, or models."""
    policy: Policy | None
    host: str | None
    port: int
    ready_file: Path | None
    log_dir: Path | None
    log_level: LogLevel
    log_format: LogFormat
    log_file: Path | None
    access_log: Path | None
    startup_timeout_s: float | None
    all_or_nothing: bool
    state: Path | None
    keys: Path | None
    no_keys: bool
    memory: str | None
    tiers: bool
    lease_s: float | None
    tls: bool
    write_config: Path | None
    cluster: bool
    take_over: bool
    trusted: Sequence[str]
    """Models whose own code may run."""
    ask_socket: Path | None


def serve_asked(asked: ServeRequest, means: Means) -> int:
    """Serve as the options say until a signal, or only write the proposed configuration with
    `--write-config`; return the exit code.

    Raises `InputRefused` for errors that the user can correct, and `CommandFailed` for others.
    """
    if asked.cluster:
        check_for_cluster(asked)
    options = _options(asked)
    if asked.cluster:
        return _serve_on_machines(asked, options.keys, means)
    if asked.take_over:
        raise InputRefused("--take-over works only with --cluster: add that, or leave it out")
    options.service.status(LOOKING)
    if asked.ask_socket is not None:
        means = replace(means, probe=asked.ask_socket)
    ReadyFile(asked.ready_file).prepare()
    machine: PlacedMachine | None = None
    with signals_exit(HangUps()):
        source = _source(asked, means)
        if asked.write_config is not None:
            return 0
        origin = _origin(asked, source)
        if has_devices(origin.written.raw):
            machine = _placed(origin, means.probe)
        else:
            _fetch(origin)
    if machine is not None:
        from mirage.serve.machine.server import serve_devices

        kept = KeptState(origin.state, source.path, origin.written, origin.sha256)
        return serve_devices(machine, kept, options, means)
    config = source.config(origin.written)
    return serve(config, origin, options, means, profiled(config))


def check_for_cluster(asked: ServeRequest) -> None:
    """Raise `InputRefused` for an option that has no meaning for the machines of a cluster, and for
    more than one file.
    """
    options = {
        "--host": (asked.host is not None, "mirage node start and join have --host"),
        "--no-keys": (asked.no_keys, "routers of machines ask for a key: name --keys FILE"),
        "--memory": (asked.memory is not None, "write memory in each of devices"),
        "--ready-file": (asked.ready_file, "leave it out, and ask /ready of a machine's address"),
        "--log-dir": (asked.log_dir, "leave it out, because engines log on their machines"),
        "--access-log": (asked.access_log, "leave it out, because requests go to other processes"),
        "--all-or-nothing": (
            asked.all_or_nothing,
            "leave it out, because machines start alone",
        ),
        "--write-config": (asked.write_config, "leave it out, because only a file is served"),
        TRUST: (asked.trusted, "write engine_args: {trust_remote_code: true} of the tenant"),
    }
    for option, (given, instead) in options.items():
        if given:
            raise InputRefused(f"{option} cannot be used with --cluster: {instead}")
    if len(asked.words) > 1:
        raise InputRefused(f"--cluster takes one configuration file, not {' '.join(asked.words)}")


def _options(asked: ServeRequest) -> ServeOptions:
    """Options that add to the configuration, checked: log files, addresses and keys. This call also
    sets up the log of this process by them. Raises `InputRefused` for an option that cannot be
    used.
    """
    logs = LogPlan(asked.log_format, asked.log_file, asked.access_log)
    logs.check()
    log_by(logs, asked.log_level.value.upper())
    service, passed = service_manager(os.environ), passed_sockets(os.environ)
    if passed and asked.cluster:
        raise InputRefused(
            "LISTEN_FDS cannot be used with --cluster: the router of each machine opens its own "
            "address, so remove the socket unit, and name --port"
        )
    addresses = [address_of(one) for one in passed] or [
        (HOST if asked.host is None else asked.host, asked.port)
    ]
    access = ServerKeys(key_source(asked.keys, os.environ), open_to_all=asked.no_keys)
    for host, _ in addresses:
        access.check_listening(host)
    return ServeOptions(
        *addresses[0],
        asked.ready_file,
        asked.log_dir,
        asked.startup_timeout_s,
        asked.all_or_nothing,
        access,
        logs,
        passed,
        service,
    )


def _serve_on_machines(asked: ServeRequest, keys: ServerKeys, means: Means) -> int:
    """Serve the configuration file on the machines of the cluster that this machine has joined;
    return the exit code.
    """
    from mirage.serve.machine.cluster_command import serve_on_machines

    return serve_on_machines(
        ConfigSource(Path(asked.words[0]), asked.policy, tiers=asked.tiers, tls=asked.tls),
        keys,
        asked.log_format,
        asked.lease_s,
        asked.startup_timeout_s,
        asked.port,
        StateFile(asked.state),
        means,
        take_over=asked.take_over,
    )


def _source(asked: ServeRequest, means: Means) -> ConfigSource:
    """Configuration file, or the configuration proposed for models, with the options that override
    it. A proposal is printed, and written to the file of `--write-config` if that is given.
    """
    with telling(LOOKING, means.progress_s):
        path, proposed = source_of(
            asked.words, asked.trusted, asked.memory, means.probe, say, asked.write_config
        )
    memory = None if proposed else asked.memory
    return ConfigSource(path, asked.policy, memory, asked.tiers, asked.lease_s, asked.tls, proposed)


def _origin(asked: ServeRequest, source: ConfigSource) -> Origin:
    """Configuration to start with: the one that operators applied last, by the state file; the
    configuration file, if it has changed since or there is no state file.
    """
    state, file = StateFile(asked.state), source.written()
    written, line = state.choose(file)
    if line:
        say(line)
    return Origin(source, written, file.sha256, state)


def _placed(origin: Origin, probe: Probe) -> PlacedMachine:
    """Devices of a file that has several, with the models placed on each. Models at a hub are
    fetched first, and the reasons of the placement are printed.
    """
    from mirage.serve.machine.declared import declared_machine

    declared = declared_machine(origin.source, origin.written)
    declared.fetch(say)
    machine = declared.placed(probe)
    for line in machine.lines:
        say(line)
    return machine


def _fetch(origin: Origin) -> None:
    """Fetch the models at a hub that one device is to serve. Models of engines that a killed server
    left are not fetched: their folders are known from that server's record.
    """
    source, written = origin.source, origin.written
    declared = source.declared(written)
    source.folders.known.update(left_models(device_name(declared, source.path)))
    source.fetch(written, say)
