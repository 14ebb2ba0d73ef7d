"""Options of `mirage serve`, some of which `mirage check` has as well."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mirage.config import Policy
from mirage.serve.logs.logs import LogFormat


class LogLevel(StrEnum):
    """Levels of the standard library's logging."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


KeysOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of API keys that clients have to send; MIRAGE_API_KEY adds one.",
        show_default="mirage-keys of systemd's credentials, or none",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        help="Device memory, as 64GiB; overrides CONFIG. Shares are per cent of it.", metavar="SIZE"
    ),
]
PolicyOption = Annotated[
    Policy | None,
    typer.Option(
        help="Memory that moves between tenants: none (static), KV memory (pooled), or also that "
        "of layers (mirage); overrides CONFIG."
    ),
]
HostOption = Annotated[
    str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")
]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
]
ReadyFileOption = Annotated[
    Path | None,
    typer.Option(
        help="File that is written once the tenants that start with the server are ready (JSON "
        "with url and pid), and removed at the end."
    ),
]
LogDirOption = Annotated[Path | None, typer.Option(help="Folder that keeps the engines' logs.")]
LogLevelOption = Annotated[
    LogLevel, typer.Option(help="Level of the server's log; info logs each decision.")
]
LogFormatOption = Annotated[LogFormat, typer.Option(help="Format of the server's log lines.")]
LogFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File for the server's log. It is opened again after it was moved.",
        show_default="standard error",
    ),
]
AccessLogOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File that gets a line of JSON for each request, without its text.",
        show_default="none",
    ),
]
StartupTimeoutOption = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="Seconds until an engine has to be ready.",
        show_default="300, on a GPU 900",
    ),
]
AllOrNothingOption = Annotated[
    bool, typer.Option("--all-or-nothing", help="End the server if one tenant cannot start.")
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File that keeps applied changes for the next start.",
        show_default="changes end with the server",
    ),
]
NoKeysOption = Annotated[
    bool,
    typer.Option("--no-keys", help="Clients need no key, also beyond the loopback address."),
]
TiersOption = Annotated[
    bool,
    typer.Option(
        "--tiers/--no-tiers",
        help="Use the tiers of CONFIG, or keep KV blocks on the device only.",
    ),
]
LeaseOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1e6,
        metavar="SECONDS",
        help="Time for which engines keep serving after this process was killed; with --cluster, "
        "device servers without an agent.",
        show_default="lease_s of CONFIG; with --cluster 3600",
    ),
]
TlsOption = Annotated[
    bool, typer.Option("--tls/--no-tls", help="Use http.tls of CONFIG, or speak plain HTTP.")
]
WriteConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the configuration proposed for MODELs to FILE, and serve nothing.",
    ),
]
ClusterOption = Annotated[
    bool,
    typer.Option(
        "--cluster",
        help="Serve CONFIG by the cluster of this machine: each device on the machine that its "
        "`machine` names.",
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over", help="With --cluster: end the controller that serves this cluster now."
    ),
]
AskSocketOption = Annotated[
    Path | None,
    typer.Option(hidden=True, help="For a child process that inspects models, see serve.ask."),
]
