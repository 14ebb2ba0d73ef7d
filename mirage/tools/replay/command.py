"""``mirage replay``: the same workload under each policy in turn, and a report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mirage.options import ConfigPath
from mirage.processes.exits import exits
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.tools.replay import capacity, html, provenance, report, table
from mirage.tools.replay.child import Server
from mirage.tools.replay.client import Habits, Journal
from mirage.tools.replay.display import Display, display
from mirage.tools.replay.options import (
    AbandonOption,
    ConcurrencyOption,
    KeyOption,
    LengthScaleOption,
    LimitOption,
    LoadOption,
    OutputOption,
    PolicyOption,
    RateOption,
    RepeatsOption,
    SeedOption,
    ServerOption,
    SloOption,
    ThinkOption,
    TimeoutOption,
    TimeScaleOption,
    TraceFormatOption,
    TraceOption,
    WarmUpOption,
    WindowOption,
)
from mirage.tools.replay.policies import ReplayVariant, tiers_unused
from mirage.tools.replay.preparation import ReplayOptions, ReplayPlan, scaled_to, settle
from mirage.tools.replay.report import ReplayProvenance
from mirage.tools.replay.run import PolicyRun, replay_on
from mirage.tools.report.enough import too_few
from mirage.tools.report.files import write_all
from mirage.workload import trace


def replay_command(
    config: ConfigPath,
    trace_file: TraceOption = None,
    policy: PolicyOption = None,
    output: OutputOption = Path("out/replay"),
    window: WindowOption = None,
    time_scale: TimeScaleOption = None,
    load: LoadOption = None,
    length_scale: LengthScaleOption = None,
    seed: SeedOption = None,
    limit: LimitOption = None,
    server: ServerOption = None,
    trace_format: TraceFormatOption = None,
    rate: RateOption = None,
    concurrency: ConcurrencyOption = None,
    repeats: RepeatsOption = 1,
    slo: SloOption = None,
    think: ThinkOption = None,
    abandon: AbandonOption = None,
    warm_up: WarmUpOption = 0.0,
    timeout: TimeoutOption = None,
    key: KeyOption = None,
) -> None:
    """Replay a trace against each policy in turn, and compare them in a report.

    Options that are left out take their value from the configuration's `replay` section.
    """
    with exits():
        span = trace.parse_window(window) if window else None
        options = ReplayOptions(
            trace=trace_file,
            policies=policy,
            output=output,
            window=span,
            time_scale=time_scale,
            load=load,
            length_scale=length_scale,
            seed=seed,
            limit=limit,
            server=server,
            trace_format=trace_format,
            rate=rate,
            concurrency=concurrency,
            repeats=repeats,
            slo=slo,
            think_s=think,
            abandon_s=abandon,
            warm_up_s=warm_up,
            timeout=timeout,
            key=key,
        )
        replay(config, options)


def replay(config_path: Path, options: ReplayOptions) -> dict[str, Any]:
    """Run all policies, write ``report.json`` and ``report.html``, print the table.

    Returns the report. Finished runs are written even if a later one fails. Raises `ConfigError`,
    `TraceError`, `PolicyRefused` or `PlanError` for what cannot be replayed, `ServerError` or
    `TimelineError` from a run, `KeyboardInterrupt` on Ctrl-C.
    """
    plan = settle(config_path, options)
    console = Console(stderr=True)
    for why, count in plan.setting.skipped.items():
        line = f"{plan.setting.trace}: skipped and not replayed: {count:,} {why}"
        console.out(f"mirage: warning: {line}", highlight=False)
    if (few := too_few(len(plan.calls))) is not None:
        console.out(f"mirage: warning: {plan.setting.trace}: {few}", highlight=False)
    if (unused := tiers_unused(list(plan.policies), plan.config)) is not None:
        console.out(f"mirage: warning: {unused}", highlight=False)
    source = provenance.of(plan, options)
    runs: list[PolicyRun] = []
    try:
        with terminate_like_interrupt():
            if plan.setting.load is not None:
                plan = scaled_to(config_path, options, plan, capacity.measured(plan, console))
            for run in _runs(plan, console):
                runs.append(run)
                # Whatever ends this process in the next run: this one is kept.
                kept = report.build(plan.setting, runs, provenance=source)
                report.write(kept, plan.output / "report.json")
                if run.interrupted:
                    raise KeyboardInterrupt
    finally:
        written = _write(plan, runs, source) if runs else {}
    return written


def _runs(plan: ReplayPlan, console: Console) -> Iterator[PolicyRun]:
    """Runs of all policies, which alternate, so that changes of the machine affect them alike."""
    for repeat in range(1, plan.setting.repeats + 1):
        if plan.server:
            yield replace(_run_there(plan, plan.server, console), repeat=repeat)
        for policy in plan.policies:
            yield replace(_run_here(plan, policy, repeat, console), repeat=repeat)


def _run_here(plan: ReplayPlan, policy: ReplayVariant, repeat: int, console: Console) -> PolicyRun:
    """One run under a policy, on a server that is started for it and ended afterwards."""
    again = f" {repeat} of {plan.setting.repeats}" if plan.setting.repeats > 1 else ""
    log = plan.output / (f"serve-{policy}-{repeat}.log" if again else f"serve-{policy}.log")
    with (
        display(console, f"{policy}{again}", len(plan.calls)) as shown,
        Server(plan.config_path, policy, log) as server,
    ):

        async def run() -> PolicyRun:
            url = await server.ready(shown.starting)
            return await _replay(plan, url, shown, str(policy), server.death)

        return asyncio.run(run())


def _run_there(plan: ReplayPlan, url: str, console: Console) -> PolicyRun:
    with display(console, url, len(plan.calls)) as shown:
        return asyncio.run(_replay(plan, url, shown))


async def _replay(
    plan: ReplayPlan, url: str, shown: Display, policy: str | None = None, death: Any = None
) -> PolicyRun:
    journal = Journal(changed=shown.running)
    setting = plan.setting
    return await replay_on(
        url,
        plan.calls,
        setting.seed,
        plan.timeout_s,
        journal,
        policy=policy,
        death=death,
        habits=Habits(setting.concurrency, setting.abandon_s, think_s=setting.think_s),
        key=plan.key,
    )


def _write(plan: ReplayPlan, runs: list[PolicyRun], source: ReplayProvenance) -> dict[str, Any]:
    built = report.build(plan.setting, runs, provenance=source)
    report.write(built, plan.output / "report.json")
    write_all({plan.output / "report.html": html.render(built, runs)})
    table.show(built, plan.output, Console())
    return built
