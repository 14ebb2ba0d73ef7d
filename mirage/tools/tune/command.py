"""``mirage tune``: finds the settings with which a configuration serves a trace best."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mirage.options import ConfigPath, hardware_option, trace_format_option
from mirage.processes.exits import exits
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.tools.report.enough import too_few
from mirage.tools.report.files import make_room, write_all
from mirage.workload.formats.registry import FORMATS

if TYPE_CHECKING:
    from mirage.tools.report.slo import Slo
    from mirage.tools.tune.answer import Recommendation, TuneWish
    from mirage.tools.tune.contest import Contest
    from mirage.tools.tune.question import Question, TuneOptions

FILES = ("tuned.yaml", "tune.json", "tune.html")
MOST_TRIALS = 100_000
MOST_LIVE = 100


def tune_command(
    config: ConfigPath,
    trace: Annotated[
        str | None,
        typer.Option(
            help="A trace with arrivals: its file, 'sample', or a name of `mirage traces list`.",
            metavar="FILE",
            show_default="CONFIG's replay.trace, else the sample",
        ),
    ] = None,
    trace_format: Annotated[str | None, trace_format_option(FORMATS)] = None,
    profile: Annotated[
        str | None,
        hardware_option("the bundled one that is nearest to the machine"),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="Limits of each request: ttft_ms, tpot_ms, itl_ms, e2el_ms; derived if left out.",
            metavar="NAME=MS,...",
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="goodput, throughput, requests; or ttft, tpot, itl, e2el with _mean, _p50, _p90, "
            "_p99."
        ),
    ] = "goodput",
    find_load: Annotated[
        bool,
        typer.Option(
            "--find-load",
            help="Use a load just above what CONFIG bears; the default if neither a trace of "
            "your own nor replay.time_scale is given, or if replay.load is.",
        ),
    ] = False,
    trials: Annotated[int, typer.Option(min=1, max=MOST_TRIALS, help="Trials of the search.")] = 64,
    output: Annotated[
        Path, typer.Option(help=f"Folder for {', '.join(FILES)} and the trials.", metavar="DIR")
    ] = Path("out/tune"),
    seed: Annotated[
        int, typer.Option(min=0, max=2**31, help="The same seed, the same answer.")
    ] = 0,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time; one per core if left out. Changes no answer."),
    ] = None,
    live: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_LIVE,
            metavar="N",
            help="Measure the N best, CONFIG as it is, and the best fixed percentage on the real "
            "engines here, and take the best of them.",
        ),
    ] = 0,
    live_repeats: Annotated[
        int, typer.Option(min=1, max=MOST_LIVE, help="Runs of each of them, in turns.")
    ] = 3,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="KIND,...",
            help="Count devices of these hardware profiles instead: CONFIG is an experiment of "
            "mirage simulate. Takes --slo, --window, --seed, --processes and --output.",
        ),
    ] = None,
    window: Annotated[
        float, typer.Option(min=1.0, max=86400.0, help="With --devices: seconds of each window.")
    ] = 600.0,
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
