"""``mirage replay``: the same workload under each policy in turn, and the report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mirage.config import ConfigError, Policy
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.replay import html, report, table
from mirage.replay.child import Server, ServerError
from mirage.replay.client import Journal
from mirage.replay.preparation import Options, Plan, PlanError, settle
from mirage.replay.progress import Display, display
from mirage.replay.run import Run, replay_on
from mirage.replay.timeline import TimelineError
from mirage.workload import trace
from mirage.workload.formats.registry import FORMATS
from mirage.workload.trace import TraceError

INTERRUPTED, FAILED, REFUSED = 130, 1, 2
"""Exit codes: Ctrl-C, a server that failed, options that cannot be replayed."""


def replay_command(
    config: Annotated[Path, typer.Argument(help="The configuration to serve.", metavar="CONFIG")],
    trace_file: Annotated[
        str,
        typer.Option(
            "--trace",
            help="A trace's file, 'sample', a name of `mirage traces list`, or TENANT=FILE,…",
            metavar="FILE",
        ),
    ] = "sample",
    policy: Annotated[
        str | None,
        typer.Option(help="Policies, separated by commas; all of them if left out."),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for report.json, report.html and the servers' logs.")
    ] = Path("out/replay"),
    window: Annotated[
        str | None,
        typer.Option(help="Only requests in these seconds of the trace.", metavar="START:END"),
    ] = None,
    time_scale: Annotated[
        float | None, typer.Option(help="Multiplies the gaps: 0.1 is ten times as fast.")
    ] = None,
    length_scale: Annotated[
        float | None, typer.Option(help="Multiplies the tokens of every request.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Draws tenants and prompts, and arrivals where a trace has none."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="At most this many requests.")] = None,
    server: Annotated[
        str | None, typer.Option(help="Replay against this running server.", metavar="URL")
    ] = None,
    trace_format: Annotated[
        str | None,
        typer.Option(
            help=f"Of the trace, where its beginning does not tell: {', '.join(FORMATS)}.",
            metavar="NAME",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests a second of a trace without arrivals; they are drawn."),
    ] = None,
) -> None:
    """Replay a trace against each policy in turn, and compare them in a report.

    Options that are left out take their value from the configuration's `replay` section.
    """
    try:
        span = trace.parse_window(window) if window else None
        options = Options(
            trace=trace_file,
            policies=policy,
            output=output,
            window=span,
            time_scale=time_scale,
            length_scale=length_scale,
            seed=seed,
            limit=limit,
            server=server,
            trace_format=trace_format,
            rate=rate,
        )
        replay(config, options)
    except (ConfigError, TraceError, PlanError) as error:
        raise _exit(f"error: {error}", REFUSED) from None
    except (ServerError, TimelineError, OSError) as error:
        raise _exit(f"error: {error}", FAILED) from None
    except KeyboardInterrupt:
        raise _exit("interrupted", INTERRUPTED) from None


def replay(config_path: Path, options: Options) -> dict[str, Any]:
    """Run everything, write ``report.json`` and ``report.html``, print the table.

    Returns the report. What had finished is written even if the rest fails. Raises
    `ConfigError`, `TraceError` or `PlanError` before anything has started, `ServerError` or
    `TimelineError` from a run, `KeyboardInterrupt` on Ctrl-C.
    """
    plan = settle(config_path, options)
    console = Console(stderr=True)
    for line in plan.config.warnings():
        console.out(f"mirage: warning: {config_path}: {line}", highlight=False)
    for why, count in plan.setting.skipped.items():
        line = f"{options.trace}: skipped and not replayed: {count:,} {why}"
        console.out(f"mirage: warning: {line}", highlight=False)
    runs: list[Run] = []
    try:
        with terminate_like_interrupt():
            for run in _runs(plan, console):
                runs.append(run)
                # Whatever ends this process in the next run: this one is kept.
                report.write(report.build(plan.setting, runs), plan.output / "report.json")
                if run.interrupted:
                    raise KeyboardInterrupt
    finally:
        written = _write(plan, runs) if runs else {}
    return written


def _runs(plan: Plan, console: Console) -> Iterator[Run]:
    if plan.server:
        yield _run_there(plan, plan.server, console)
    for policy in plan.policies:
        yield _run_here(plan, policy, console)


def _run_here(plan: Plan, policy: Policy, console: Console) -> Run:
    """Under one policy, on a server of our own that is gone afterwards."""
    log = plan.output / f"serve-{policy}.log"
    with (
        display(console, str(policy), len(plan.calls)) as shown,
        Server(plan.config_path, str(policy), log) as server,
    ):

        async def run() -> Run:
            url = await server.ready(shown.starting)
            return await _replay(plan, url, shown, str(policy), server.death)

        return asyncio.run(run())


def _run_there(plan: Plan, url: str, console: Console) -> Run:
    with display(console, url, len(plan.calls)) as shown:
        return asyncio.run(_replay(plan, url, shown))


async def _replay(
    plan: Plan, url: str, shown: Display, policy: str | None = None, death: Any = None
) -> Run:
    journal = Journal()
    journal.changed = lambda: shown.running(journal)
    timeout_s = plan.config.replay.request_timeout_s
    return await replay_on(url, plan.calls, plan.setting.seed, timeout_s, journal, policy, death)


def _write(plan: Plan, runs: list[Run]) -> dict[str, Any]:
    built = report.build(plan.setting, runs)
    report.write(built, plan.output / "report.json")
    (plan.output / "report.html").write_text(html.render(built, runs))
    table.show(built, plan.output, Console())
    return built


def _exit(message: str, code: int) -> typer.Exit:
    typer.echo(f"mirage: {message}", err=True)
    return typer.Exit(code)
