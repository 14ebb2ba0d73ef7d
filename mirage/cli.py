"""The ``mirage`` command. The module of a command is imported when the command runs, so that help
is quick.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage import __version__
from mirage.config import Policy
from mirage.errors import CommandFailed, InputRefused
from mirage.options import ServedWords, TrustOption
from mirage.paths import word
from mirage.processes.exits import exits
from mirage.serve.logs import LogFormat

if TYPE_CHECKING:
    from mirage.serve.means import Means

OPERATORS = "mirage.serve.admin.commands"
OWN_MODULES = {
    "ps": (
        OPERATORS,
        "ps_command",
        "List the tenants of a running server: state, memory, requests, what comes next.",
    ),
    "tenants": (
        OPERATORS,
        "tenants_command",
        "Show a tenant of a running server, wake, stop, change or remove it.",
    ),
    "apply": (
        OPERATORS,
        "apply_command",
        "Have a running server serve what a configuration file says.",
    ),
    "stop": (
        "mirage.serve.stop_command",
        "stop_command",
        "Stop a running server, or end the engines that a killed one has left.",
    ),
    "fetch": (
        "mirage.serve.fetch_command",
        "fetch_command",
        "Fetch models of a hub, which `mirage serve` would fetch at its start.",
    ),
    "weights": (
        "mirage.serve.weights_command",
        "weights_command",
        "Keep models by content on this machine, and bring them from other machines.",
    ),
    "keys": (
        "mirage.serve.admin.key_commands",
        "keys_command",
        "Make API keys, list those of a file, or have a running server reload its own.",
    ),
    "why": (
        "mirage.serve.admin.why_command",
        "why_command",
        "Say why a running server moved memory, and what that cost and saved.",
    ),
    "top": (
        "mirage.tools.top.command",
        "top_command",
        "Show the tenants of a running server as they go, and sleep, wake, drain or stop them.",
    ),
    "logs": (OPERATORS, "logs_command", "Print the log of a tenant's engines."),
    "replay": (
        "mirage.tools.replay.command",
        "replay_command",
        "Replay a trace against `mirage serve` under several policies and compare them.",
    ),
    "simulate": (
        "mirage.tools.simulate.command",
        "simulate_command",
        "Simulate models that share a large GPU, policy by policy, and compare them.",
    ),
    "compare": (
        "mirage.tools.compare.command",
        "compare_command",
        "Set runs of replays and simulations beside each other, with intervals.",
    ),
    "explain": (
        "mirage.tools.explain.command",
        "explain_command",
        "Print the paper's arithmetic for CONFIG: how many layers hide, and what it brings.",
    ),
    "traces": (
        "mirage.tools.traces.command",
        "traces_command",
        "List public traces, or fetch them for --trace NAME.",
    ),
    "profile": (
        "mirage.tools.profile.command",
        "profile_command",
        "Measure this machine with the real engines of CONFIG, and write a hardware file.",
    ),
    "tune": (
        "mirage.tools.tune.command",
        "tune_command",
        "Find the settings with which CONFIG serves a trace best, by simulation.",
    ),
    "node": (
        "mirage.machines.ray.commands",
        "node_command",
        "Join machines to one cluster, show what runs there, and leave.",
    ),
    "doctor": (
        "mirage.doctor.command",
        "doctor_command",
        "Say what works on this machine: host memory, GPU, link, vLLM and its hooks.",
    ),
}
"""Commands with options of their own: module, function, and line in the list of commands, by
name.
"""

INSTEAD = {
    **dict.fromkeys(("run", "start", "up"), "`mirage serve`"),
    **dict.fromkeys(("list", "ls", "status", "tenants list", "tenants ls"), "`mirage ps`"),
    **dict.fromkeys(("add", "create", "reload", "tenants add"), "`mirage apply -f FILE`"),
    **{verb: f"`mirage tenants {verb} NAME`" for verb in ("show", "sleep", "wake", "restart")},
    **dict.fromkeys(("rm", "remove", "delete"), "`mirage tenants remove NAME`"),
    "load": "`mirage tenants wake NAME`",
    "unload": "`mirage tenants stop NAME`",
    **dict.fromkeys(("pull", "download"), "`mirage fetch MODEL`"),
    **dict.fromkeys(("keys add", "keys create"), "`mirage keys new NAME`"),
    **dict.fromkeys(("kill", "down"), "`mirage stop`"),
    "help": "`mirage --help`",
    "version": "`mirage --version`",
}
"""This program's commands by the commands that other programs have for the same purpose."""

SERVING = frozenset(
    {"doctor", "ps", "tenants", "logs", "apply", "keys", "stop", "why", "fetch", "weights"}
)
"""Commands of `OWN_MODULES` that need no packages beside those of `mirage serve`."""
TOOLS = ("ijson", "jinja2", "matplotlib", "optuna", "scipy")
"""Packages of the extra `tools`, by the names of their modules."""
CLUSTER = ("ray", "redis")
"""Packages of the extra `cluster`, for `node` and `serve --cluster`."""
TOP = ("textual",)
"""Package of the extra `top`, for the command `top`."""

app = typer.Typer(
    help="Serve several language models from one device memory: parameters make room for KV.",
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
)

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
        help="Device memory, as 64GiB; overrides CONFIG. Shares are parts of it.", metavar="SIZE"
    ),
]
PolicyOption = Annotated[
    Policy | None,
    typer.Option(help="Memory that tenants may take from others; overrides CONFIG."),
]


class LogLevel(StrEnum):
    """Levels of the standard library's logging."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mirage {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Options of all commands."""


@app.command()
def serve(
    context: typer.Context,
    words: ServedWords,
    policy: PolicyOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            help="File to write when all is ready: JSON with url and pid. It is removed at the end."
        ),
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="Folder that keeps the engines' logs.")
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(help="Level of this process's log; info has every decision.")
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat, typer.Option(help="Format of log lines of this process and its router.")
    ] = LogFormat.TEXT,
    log_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for these lines; it is opened again after it was moved.",
            show_default="standard error",
        ),
    ] = None,
    access_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for a line of JSON for each request, without its text.",
            show_default="none",
        ),
    ] = None,
    startup_timeout: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Seconds in which an engine must be ready.",
            show_default="300, on a GPU 900",
        ),
    ] = None,
    all_or_nothing: Annotated[
        bool, typer.Option("--all-or-nothing", help="End if one tenant cannot start.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that keeps applied changes for the next start.",
            show_default="changes end with the server",
        ),
    ] = None,
    keys: KeysOption = None,
    no_keys: Annotated[
        bool,
        typer.Option("--no-keys", help="Ask for no keys, also beyond the loopback address."),
    ] = False,
    memory: MemoryOption = None,
    tiers: Annotated[
        bool,
        typer.Option(
            "--tiers/--no-tiers",
            help="Store KV blocks that leave the device in the tiers of CONFIG, or nowhere.",
        ),
    ] = True,
    lease: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1e6,
            metavar="SECONDS",
            help="Time in which engines wait for the next server after this process was killed.",
            show_default="lease_s of CONFIG",
        ),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls/--no-tls", help="Use http.tls of CONFIG, or speak plain HTTP.")
    ] = True,
    write_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the configuration proposed for MODELs to FILE, and serve nothing.",
        ),
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Have the machines of this one's cluster serve CONFIG, by the machine of each "
            "device.",
        ),
    ] = False,
    trust: TrustOption = None,
    ask_socket: Annotated[
        Path | None,
        typer.Option(hidden=True, help="Of a process that answers about models, see serve.ask."),
    ] = None,
) -> None:
    """Serve all tenants of CONFIG behind one OpenAI-compatible address until Ctrl-C.

    For MODELs, a configuration is proposed and printed first, and models at a hub are fetched.
    """
    from mirage.processes.hangup import HangUps
    from mirage.serve.access.server_keys import ServerKeys, key_source
    from mirage.serve.adoption.left import left_models
    from mirage.serve.apply.applier import Origin
    from mirage.serve.apply.source import ConfigSource
    from mirage.serve.apply.state_file import KeptState, StateFile
    from mirage.serve.logs import LogPlan, log_by
    from mirage.serve.machine.declared import declared_machine, has_devices
    from mirage.serve.machine.server import serve_devices
    from mirage.serve.means import Means
    from mirage.serve.profiled import profiled
    from mirage.serve.proposal.proposed import source_of
    from mirage.serve.ready_file import ReadyFile
    from mirage.serve.said import say
    from mirage.serve.service.manager import service_manager
    from mirage.serve.service.passed import address_of, passed_sockets
    from mirage.serve.succession import device_name
    from mirage.serve.supervisor import ServeOptions, serve
    from mirage.serve.telling import LOOKING, telling
    from mirage.serve.until_signal import signals_exit

    logs = LogPlan(log_format, log_file, access_log)
    logs.check()
    log_by(logs, log_level.value.upper())
    service, passed = service_manager(os.environ), passed_sockets(os.environ)
    addresses = [address_of(one) for one in passed] or [(host, port)]
    access = ServerKeys(key_source(keys, os.environ), open_to_all=no_keys)
    for listening, _ in addresses:
        access.check_listening(listening)
    if cluster:
        if state is not None:
            raise InputRefused("--state is for one machine: leave it out with --cluster")
        from mirage.serve.machine.cluster_command import serve_on_machines

        source = ConfigSource(Path(str(words[0])), policy, None, tiers)
        means = context.obj or Means()
        raise typer.Exit(serve_on_machines(source, access, log_format, lease, port, means))
    options = ServeOptions(
        *addresses[0],
        ready_file,
        log_dir,
        startup_timeout,
        all_or_nothing,
        access,
        logs,
        passed,
        service,
    )
    service.status(LOOKING)
    means = context.obj or Means()
    if ask_socket is not None:
        means = replace(means, probe=ask_socket)
    ReadyFile(ready_file).prepare()
    with signals_exit(HangUps()):
        with telling(LOOKING, means.progress_s):
            path, proposed = source_of(words, trust or (), memory, means.probe, say, write_config)
        if write_config is not None:
            return
        memory = None if proposed else memory
        source = ConfigSource(path, policy, memory, tiers, lease, tls, proposed)
        kept, file, machine = StateFile(state), source.written(), None
        written, line = kept.choose(file)
        if line:
            say(line)
        if has_devices(written.raw):
            declared_devices = declared_machine(source, written)
            declared_devices.fetch(say)
            machine = declared_devices.placed(means.probe)
            for told in machine.lines:
                say(told)
        else:
            declared = source.declared(written)
            source.folders.known.update(left_models(device_name(declared, path)))
            source.fetch(written, say)
    if machine is not None:
        state_kept = KeptState(kept, path, written, file.sha256)
        raise typer.Exit(serve_devices(machine, state_kept, options, means))
    loaded = source.config(written)
    origin = Origin(source, written, file.sha256, kept)
    raise typer.Exit(serve(loaded, origin, options, means, profiled(loaded)))


@app.command()
def check(
    context: typer.Context,
    words: ServedWords,
    policy: PolicyOption = None,
    keys: KeysOption = None,
    memory: MemoryOption = None,
    trust: TrustOption = None,
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade",
            help="Print CONFIG in the keys of this release, with its comments, and check nothing.",
        ),
    ] = False,
) -> None:
    """Check CONFIG and print what each tenant's share holds, without starting anything.

    For models at a hub it says how much would be fetched. It fetches no weights.
    """
    from mirage.processes.interrupt import terminate_like_interrupt
    from mirage.serve.access.server_keys import ServerKeys, key_lines, key_source
    from mirage.serve.apply.source import ConfigSource
    from mirage.serve.checked import checked, told
    from mirage.serve.machine.declared import declared_machine, has_devices
    from mirage.serve.means import Means
    from mirage.serve.preflight import refusal
    from mirage.serve.proposal.proposed import source_of
    from mirage.serve.upgrading import upgraded_text

    if upgrade:
        typer.echo(upgraded_text(words), nl=False)
        return
    probe = (context.obj or Means()).probe
    with terminate_like_interrupt():
        path, proposed = source_of(words, trust or (), memory, probe, typer.echo)
        source = ConfigSource(path, policy, None if proposed else memory, proposed=proposed)
        file, access = source.written(), ServerKeys(key_source(keys, os.environ))
        say = (lambda line: None) if proposed else typer.echo
        heads = [""]
        if has_devices(file.raw):
            machine = declared_machine(source, file).outlined(probe)
            typer.echo("\n".join(machine.lines))
            heads = [f"device {device.name}:" for device in machine.devices]
            found = [checked(device.config, probe, say) for device in machine.devices]
        else:
            found = [checked(source.declared(file), probe, say)]
    for head, one in zip(heads, found, strict=True):
        for line in ([head] if head else []) + list(told(one)):
            typer.echo(line)
    names = list(dict.fromkeys(name for one in found for name in one.names))
    for line in key_lines(access, names, time.time()):
        typer.echo(line)
    told_of = zip(heads, found, strict=True)
    if refused := [
        f"{head} {refusal(one.refused)}".strip() for head, one in told_of if one.refused
    ]:
        raise InputRefused("; ".join(refused))


@app.command()
def models(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="One folder per model is made.")],
) -> None:
    """Make three small demonstration models (OPT, Llama and Qwen3 shapes, random weights)."""
    from mirage.tools.demo.models import make_models

    try:
        made = make_models(folder)
    except OSError as error:
        raise CommandFailed(f"{folder}: models cannot be written ({error.strerror})") from None
    for path in made.values():
        typer.echo(path)


def main(arguments: list[str] | None = None, means: Means | None = None) -> None:
    """Run one command and exit: 0, 2 for what the user can correct, 1 for other failures.

    An error is one line on stderr, never a traceback, unless it is a fault of the program. `means`
    replaces the `Means()` that `mirage check` and `mirage serve` use by default.
    """
    with exits(interrupted="", failures=(CommandFailed,)), _usage():
        words = [word(each) for each in (sys.argv[1:] if arguments is None else arguments)]
        _check_command(words)
        _register_own(asked_for=words[:1])
        sys.exit(app(words or ["--help"], prog_name="mirage", standalone_mode=False, obj=means))


@contextmanager
def _usage() -> Iterator[None]:
    """Turn typer's error about words that are no command or option into `InputRefused`."""
    try:
        yield
    except Exception as error:
        # A class that typer has under different names from release to release.
        if (format_message := getattr(error, "format_message", None)) is None:
            raise
        told = format_message().replace("Value error, ", "")
        raise InputRefused(f"{told}{_of_vllm(getattr(error, 'option_name', ''))}") from None


def _of_vllm(option: str) -> str:
    """Advice on an option that is none of ours, but of `vllm serve`."""
    from mirage.arguments.table import TABLE

    if option.removeprefix("--").replace("-", "_") not in TABLE:
        return ""
    return (
        ": it is vLLM's, which a configuration has (--write-config FILE writes one; "
        "docs/arguments.md says under which key)"
    )


def _check_command(words: Sequence[str]) -> None:
    """Raise `InputRefused` if `words` begin with a key of `INSTEAD`; name our command."""
    for name in (" ".join(words[:1]), " ".join(words[:2])):
        if name in INSTEAD:
            raise InputRefused(f"no command {name!r} here: use {INSTEAD[name]}")


def _register_own(asked_for: list[str]) -> None:
    """Register the commands of `OWN_MODULES`. Only the module of the command asked for is imported,
    since its function declares the options; the others get a line of help. Raises `InputRefused` if
    the packages that the command needs are absent.
    """
    for name, (module, function, summary) in OWN_MODULES.items():
        if asked_for == [name]:
            if name == "node":
                _check_extra(name, "cluster", CLUSTER)
            elif name == "top":
                _check_extra(name, "top", TOP)
            elif name not in SERVING:
                _check_extra(name, "tools", TOOLS)
            app.command(name)(getattr(import_module(module), function))
        else:
            app.command(name, help=summary)(lambda: None)


def _check_extra(command: str, extra: str, packages: Sequence[str]) -> None:
    """Raises `InputRefused` if one of `packages` is not installed. Without this check the command
    would fail only when it writes its results.
    """
    absent = [name for name in packages if find_spec(name) is None]
    if absent:
        raise InputRefused(
            f"mirage {command} needs {', '.join(absent)}: run pip install '.[{extra}]' in the "
            "checkout of MIRAGE"
        )
