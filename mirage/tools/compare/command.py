"""``mirage compare A.json B.json ...``: a table of figures, with tests of the differences against
noise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mirage.options import JsonOption
from mirage.printed import json_object
from mirage.processes.exits import exits
from mirage.tools.compare.columns import Column, CompareError, columns, named
from mirage.tools.compare.rows import differences, rows
from mirage.tools.report.intervals import CONFIDENCE
from mirage.tools.report.terminal import table

SCHEMA_VERSION = 1
USUAL = ("report.json", "result.json")


def compare_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="report.json of mirage replay, result.json of mirage simulate, or their folders.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Set runs of any replays and simulations beside each other, the first as the baseline.

    Figures of repeated runs get intervals, and differences a word: more than noise, or within it.
    """
    with exits():
        _compare(files, as_json)


def _compare(files: Sequence[Path], as_json: bool) -> None:
    found = [(str(file), column) for file in files for column in columns(str(file), _read(file))]
    all_columns = [column for _, column in found]
    names = named(all_columns, [file for file, _ in found])
    if len(all_columns) < 2:
        raise CompareError(f"{files[0]}: holds {names[0]!r} alone: name a second file to compare")
    if as_json:
        typer.echo(json_object(SCHEMA_VERSION, _content(names, all_columns)))
        return
    console = Console()
    console.print(table(f"Against {names[0]}", names, rows(all_columns)))
    for line in remarks(all_columns):
        console.out(line, highlight=False)


def remarks(found: Sequence[Column]) -> list[str]:
    """Remarks under the table: the meaning of its numbers, and missing repeats or unequal
    requests.
    """
    lines = []
    if any(column.runs > 1 for column in found):
        percent = f"{CONFIDENCE:.0%}"
        lines.append(f"Means, ± half the interval at {percent}; differs: Welch's t at {percent}.")
    if any(column.runs == 1 for column in found):
        lines.append("A single run has no interval: repeat with `mirage replay --repeats 3`.")
    if len({column.work for column in found}) > 1:
        lines.append("These runs did not serve the same requests: ratios compare unlike things.")
    return lines


def _content(names: Sequence[str], found: Sequence[Column]) -> dict[str, Any]:
    return {
        "columns": [
            {"name": name, "runs": column.runs, "values": dict(column.values)}
            for name, column in zip(names, found, strict=True)
        ],
        "differences": [
            {
                "figure": metric.key,
                "column": names[place],
                "ratio": one.ratio,
                "more_than_noise": one.more_than_noise,
            }
            for metric, place, one in differences(found)
        ],
        "remarks": remarks(found),
    }


def _read(path: Path) -> Any:
    if path.is_dir():
        there = [path / name for name in USUAL if (path / name).exists()]
        if not there:
            raise CompareError(f"{path}: has no {' and no '.join(USUAL)}: name the file")
        path = there[0]
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise CompareError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise CompareError(f"{path}: no JSON ({error})") from None
