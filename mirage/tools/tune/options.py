"""Options of `mirage tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirage.options import hardware_option, trace_format_option
from mirage.workload.formats.registry import FORMATS

FILES = ("tuned.yaml", "tune.json", "tune.html")
"""Files of the answer, in the folder of `--output`."""
MOST_TRIALS = 100_000
MOST_LIVE = 100

TraceOption = Annotated[
    str | None,
    typer.Option(
        help="A trace with arrivals: its file, 'sample', or a name of `mirage traces list`.",
        metavar="FILE",
        show_default="CONFIG's replay.trace, else the sample",
    ),
]
TraceFormatOption = Annotated[str | None, trace_format_option(FORMATS)]
ProfileOption = Annotated[
    str | None,
    hardware_option("the bundled one that is nearest to the machine"),
]
SloOption = Annotated[
    str | None,
    typer.Option(
        help="Limits of each request: ttft_ms, tpot_ms, itl_ms, e2el_ms; derived if left out.",
        metavar="NAME=MS,...",
    ),
]
ObjectiveOption = Annotated[
    str,
    typer.Option(
        help="goodput, throughput, requests; or ttft, tpot, itl, e2el with _mean, _p50, _p90, _p99."
    ),
]
FindLoadOption = Annotated[
    bool,
    typer.Option(
        "--find-load",
        help="Set the request rate just above what CONFIG can serve; the default if neither a "
        "trace but the sample nor replay.time_scale is given, or if replay.load is.",
    ),
]
TrialsOption = Annotated[int, typer.Option(min=1, max=MOST_TRIALS, help="Trials of the search.")]
OutputOption = Annotated[
    Path, typer.Option(help=f"Folder for {', '.join(FILES)} and the trials.", metavar="DIR")
]
SeedOption = Annotated[
    int, typer.Option(min=0, max=2**31, help="Seed; the same seed gives the same answer.")
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Processes; one per core if left out. The answer does not depend on it."
    ),
]
LiveOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=MOST_LIVE,
        metavar="N",
        help="Measure the N best, CONFIG as it is, and the best fixed percentage on the real "
        "engines here, and take the best of them.",
    ),
]
LiveRepeatsOption = Annotated[
    int,
    typer.Option(min=1, max=MOST_LIVE, help="With --live: runs of each configuration, alternated."),
]
DevicesOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND,...",
        help="Find the number of devices of these kinds that an experiment of mirage simulate, "
        "given as CONFIG, needs. Takes --slo, --window, --seed, --processes and --output.",
    ),
]
WindowOption = Annotated[
    float, typer.Option(min=1.0, max=86400.0, help="With --devices: seconds of each window.")
]
