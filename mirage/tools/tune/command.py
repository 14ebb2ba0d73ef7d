"""``mirage tune``: finds the settings with which a configuration serves a trace best."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from mirage.options import ConfigPath
from mirage.processes.exits import exits
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.tools.report.enough import too_few
from mirage.tools.report.files import make_room, write_all
from mirage.tools.tune.options import (
    FILES,
    DevicesOption,
    FindLoadOption,
    LiveOption,
    LiveRepeatsOption,
    ObjectiveOption,
    OutputOption,
    ProcessesOption,
    ProfileOption,
    SeedOption,
    SloOption,
    TraceFormatOption,
    TraceOption,
    TrialsOption,
    WindowOption,
)

if TYPE_CHECKING:
    from mirage.tools.report.slo import Slo
    from mirage.tools.tune.answer import Recommendation, TuneWish
    from mirage.tools.tune.contest import Contest
    from mirage.tools.tune.question import Question, TuneOptions


def tune_command(
    config: ConfigPath,
    trace: TraceOption = None,
    trace_format: TraceFormatOption = None,
    profile: ProfileOption = None,
    slo: SloOption = None,
    objective: ObjectiveOption = "goodput",
    find_load: FindLoadOption = False,
    trials: TrialsOption = 64,
    output: OutputOption = Path("out/tune"),
    seed: SeedOption = 0,
    processes: ProcessesOption = None,
    live: LiveOption = 0,
    live_repeats: LiveRepeatsOption = 3,
    devices: DevicesOption = None,
    window: WindowOption = 600.0,
) -> None:
    """Find the settings with which CONFIG serves a trace best, and say what they bring and why.

    The search is simulated on a hardware profile and judged on windows of the trace that it has
    not seen. Interrupted, the same command goes on where it was.

    With --devices it says how many devices the traffic of an experiment needs, and what packing,
    replicas, pooling, remapping and sleeping save of them.
    """
    from mirage.tools.report.slo import parse as parse_slo
    from mirage.tools.tune.answer import TuneWish
    from mirage.tools.tune.goals import parse_objective
    from mirage.tools.tune.question import TuneOptions

    with exits("interrupted: the same command goes on where it was"):
        limits = parse_slo(slo) if slo is not None else None
        if devices is not None:
            with terminate_like_interrupt():
                _size(config, devices, limits, (window, seed, processes), output)
            return
        wish = TuneWish(
            parse_objective(objective),
            limits,
            trials,
            processes,
            live=live,
            live_repeats=live_repeats,
        )
        with terminate_like_interrupt():
            asked = TuneOptions(trace, profile, seed, find_load, trace_format=trace_format)
            tune(config, asked, wish, output)


def _size(
    path: Path,
    devices: str,
    limits: Slo | None,
    how: tuple[float, int, int | None],
    output: Path,
) -> None:
    from mirage.tools.tune.fleet.command import USUAL, SizeWish, parse_kinds, size

    size(path, SizeWish(parse_kinds(devices), limits or USUAL, *how), output)


def tune(path: Path, options: TuneOptions, wish: TuneWish, output: Path) -> Recommendation:
    """Find the answer, write all files, print the table and the sentences.

    Raises `ConfigError` or `TraceError` for what cannot be tuned, `RunKilled` if a process was
    killed, `KeyboardInterrupt` on Ctrl-C; then only trials are written.
    """
    from mirage.tools.tune import live, question, summary, table
    from mirage.tools.tune.answer import answer
    from mirage.tools.tune.contest import middle
    from mirage.tools.tune.progress import shown

    asked = question.ask(path, options)
    if (few := too_few(asked.cut.judged)) is not None:
        typer.echo(f"mirage: warning: {asked.trace_name}: {few}", err=True)
    make_room(output, [output / name for name in FILES])
    if wish.live:
        live.check(asked.config)
    with shown() as progress:
        found = answer(asked, wish, output, progress)
    measured = None
    if wish.live:
        console = Console(stderr=True)
        measured = live.contest(asked, found, wish.live, wish.live_repeats, output, console)
    said = summary.said(asked, found, measured)
    _write(asked, wish, found, said, output, measured)
    medians = {n: middle(found.goal, r) for n, r in measured.results.items()} if measured else None
    table.show(asked, found, said, Console(), medians)
    typer.echo(f"{output / FILES[0]} is ready for mirage serve; {output / FILES[2]} shows why")
    return found


def command(
    path: Path, options: TuneOptions, wish: TuneWish, found: Recommendation, output: Path
) -> list[str]:
    """Words of the command that finds the same answer again, with derived limits written out."""
    words = ["mirage", "tune", str(path), "--objective", wish.objective]
    words += ["--trials", str(wish.trials), "--seed", str(options.seed), "--output", str(output)]
    words += ["--trace", options.trace] if options.trace is not None else []
    words += ["--trace-format", options.trace_format] if options.trace_format is not None else []
    words += ["--profile", options.profile] if options.profile is not None else []
    words += ["--find-load"] if options.find_load else []
    if wish.live:
        words += ["--live", str(wish.live), "--live-repeats", str(wish.live_repeats)]
    return words + (["--slo", str(found.goal.slo)] if str(found.goal.slo) else [])


def _write(
    asked: Question,
    wish: TuneWish,
    found: Recommendation,
    said: list[str],
    output: Path,
    measured: Contest | None,
) -> None:
    from mirage.tools.tune import html, moved, report

    words = command(asked.path, asked.options, wish, found, output)
    built = report.build(asked, wish, found, said, words, measured)
    config = measured.config if measured else found.config
    texts = (
        moved.tuned(asked, config, [*said, f"Found by: {shlex.join(words)}"], output),
        report.as_json(built),
        html.render(asked, found, built, config),
    )
    write_all({output / name: text for name, text in zip(FILES, texts, strict=True)})
