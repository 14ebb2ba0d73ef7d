"""Command `mirage serve`."""

from __future__ import annotations

import typer

from mirage.cli.options import (
    AccessLogOption,
    AllOrNothingOption,
    AskSocketOption,
    ClusterOption,
    HostOption,
    KeysOption,
    LeaseOption,
    LogDirOption,
    LogFileOption,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    MemoryOption,
    NoKeysOption,
    PolicyOption,
    PortOption,
    ReadyFileOption,
    StartupTimeoutOption,
    StateOption,
    TakeOverOption,
    TiersOption,
    TlsOption,
    WriteConfigOption,
)
from mirage.options import ServedWords, TrustOption
from mirage.serve.logs.logs import LogFormat


def serve_command(
    context: typer.Context,
    words: ServedWords,
    policy: PolicyOption = None,
    host: HostOption = None,
    port: PortOption = 8000,
    ready_file: ReadyFileOption = None,
    log_dir: LogDirOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_file: LogFileOption = None,
    access_log: AccessLogOption = None,
    startup_timeout: StartupTimeoutOption = None,
    all_or_nothing: AllOrNothingOption = False,
    state: StateOption = None,
    keys: KeysOption = None,
    no_keys: NoKeysOption = False,
    memory: MemoryOption = None,
    tiers: TiersOption = True,
    lease: LeaseOption = None,
    tls: TlsOption = True,
    write_config: WriteConfigOption = None,
    cluster: ClusterOption = False,
    take_over: TakeOverOption = False,
    trust: TrustOption = None,
    ask_socket: AskSocketOption = None,
) -> None:
    """Serve all tenants of CONFIG behind one OpenAI-compatible address until Ctrl-C.

    For MODELs, a configuration is proposed and printed first, and models at a hub are fetched.
    """
    from mirage.cli.serving import ServeRequest, serve_asked
    from mirage.serve.launch.programs import Means

    asked = ServeRequest(
        words=words,
        policy=policy,
        host=host,
        port=port,
        ready_file=ready_file,
        log_dir=log_dir,
        log_level=log_level,
        log_format=log_format,
        log_file=log_file,
        access_log=access_log,
        startup_timeout_s=startup_timeout,
        all_or_nothing=all_or_nothing,
        state=state,
        keys=keys,
        no_keys=no_keys,
        memory=memory,
        tiers=tiers,
        lease_s=lease,
        tls=tls,
        write_config=write_config,
        cluster=cluster,
        take_over=take_over,
        trusted=trust or (),
        ask_socket=ask_socket,
    )
    raise typer.Exit(serve_asked(asked, context.obj or Means()))
