"""Options of `mirage replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirage.options import trace_format_option
from mirage.tools.replay.policies import VARIANTS
from mirage.workload.formats.registry import FORMATS

TraceOption = Annotated[
    str | None,
    typer.Option(
        "--trace",
        help="A trace's file, 'sample', a name of `mirage traces list`, or TENANT=FILE,…",
        metavar="FILE",
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        help=f"Policies, separated by commas, of {', '.join(VARIANTS)}; all that CONFIG has "
        "if left out. Policies that end in -tiers use its tiers.",
    ),
]
OutputOption = Annotated[
    Path, typer.Option(help="Folder for report.json, report.html and the servers' logs.")
]
WindowOption = Annotated[
    str | None,
    typer.Option(help="Only requests in these seconds of the trace.", metavar="START:END"),
]
TimeScaleOption = Annotated[
    float | None, typer.Option(help="Multiplies the gaps: 0.1 is ten times as fast.")
]
LoadOption = Annotated[
    float | None,
    typer.Option(
        help="Scale the gaps so that requests arrive at this part of the machine's capacity, "
        "which is measured first.",
        metavar="PART",
    ),
]
LengthScaleOption = Annotated[
    float | None, typer.Option(help="Multiplies the tokens of every request.")
]
SeedOption = Annotated[
    int | None,
    typer.Option(help="Seed for tenants and prompts, and for arrivals if the trace has none."),
]
LimitOption = Annotated[int | None, typer.Option(help="At most this many requests.")]
ServerOption = Annotated[
    str | None, typer.Option(help="Replay against this running server.", metavar="URL")
]
TraceFormatOption = Annotated[str | None, trace_format_option(FORMATS)]
RateOption = Annotated[
    float | None,
    typer.Option(help="Requests a second: gaps are scaled, or drawn if there are none."),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        help="Number of requests in flight; the next one is sent when one ends, at any time."
    ),
]
RepeatsOption = Annotated[
    int, typer.Option(help="Runs of each policy, alternated; figures get intervals.")
]
SloOption = Annotated[
    str | None,
    typer.Option(
        help="Limits of a request, for goodput: ttft_ms, tpot_ms, itl_ms, e2el_ms.",
        metavar="NAME=MS,...",
    ),
]
ThinkOption = Annotated[
    float | None,
    typer.Option(
        help="A turn of a session is sent at the earliest this long after the previous answer.",
        metavar="SECONDS",
    ),
]
AbandonOption = Annotated[
    float | None,
    typer.Option(
        help="Abandon a request that has not ended after this time, as users do.",
        metavar="SECONDS",
    ),
]
WarmUpOption = Annotated[
    float,
    typer.Option(help="Requests sent in these first seconds are not measured.", metavar="SECONDS"),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(help="A request that has not ended by then counts as failed.", metavar="SECONDS"),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        help="API key for --server; the environment variable is safer.",
        envvar="MIRAGE_API_KEY",
        show_envvar=True,
    ),
]
