"""Greatest gain that fixed settings reach in random worlds, and the part that the rule reaches.

    .venv/bin/python -m benchmarks.oracle [--worlds 200] [--first N] [--minutes M] [--jobs J]
    .venv/bin/python -m benchmarks.oracle FILE ...

Worlds are drawn, and only saturated ones are used, in which `pooled` preempts. The printed number
repeats a draw (`--first`). Four ways are compared with `pooled` in each world:

- the rule: `mirage` as it is;
- the oracle: the best fixed settings of this world, found by search (`benchmarks/fixed.py`);
- `layers`: a device that is larger by all layers that may ever go; no rule can lend more;
- endless memory.

The program prints the ways by machine and kind of sharing, the part of the oracle's gain that the
rule reaches, and the worlds in which the rule leaves most of it. With `--trials 0` nothing is
searched, and the oracle is the rule. `--no-bounds` leaves out `layers` and endless memory, which
take most of the time. Results are written to DIR/results.jsonl as they come, and a run with the
same DIR continues. `--keep FOLDER` writes the worst worlds there, as files that the program takes
as FILEs.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from math import exp, log
from pathlib import Path
from typing import Any

import optuna
import yaml

from benchmarks.fixed import MOST_TPOT, Seeds, bounds, worth
from benchmarks.worlds import LEAST_TOKENS, World, about, draw
from mirage.config import ConfigError
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.run import run
from mirage.tools.report import intervals
from mirage.tools.simulate.command import parse_seeds
from mirage.tools.simulate.processes import JobProcesses, Note

RATES = 16.0, 80.0
"""Least and most requests per second of all models together."""
WHO = "rule", "oracle", "layers", "endless"
SHOWN = "tokens/s", "TTFT P99", "TPOT P99"

Task = tuple[int, World | None, Seeds, int, float | None, bool]
"""Number of a world, the world itself if it is given, seeds, trials, another link in GB/s, and
True if memory for nothing is simulated."""
Row = dict[str, Any]
"""Findings on one world: its number, whether it is saturated, and if it is, also the world, the
best settings, and the figures of each of `WHO`.
"""


def saturated(number: int, seed: int) -> World | None:
    """World of a number; None if it is invalid or `pooled` preempts nothing there.

    Of the worlds whose turns do not drain, those with an odd number get `drain: auto`, as is the
    default.
    """
    world = draw(number, RATES)
    if world["sharing"].get("drain") is False and number % 2:
        world["sharing"]["drain"] = "auto"
    try:
        setup = Setup(Experiment.model_validate(world))
    except ConfigError:
        return None
    return world if run(setup, "pooled", seed)["preemptions"] else None


def looked_at(task: Task) -> Row:
    """Findings on one world, the given one or the one of that number; only the number if that one
    is not saturated.
    """
    number, given, seeds, trials, link, for_nothing = task
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    world = given or saturated(number, seeds.chosen_on[0])
    if world is None:
        return {"number": number, "saturated": False}
    if link is not None:
        world |= {"link_gb_s": link}
    found = bounds(world, seeds, trials, number, for_nothing=for_nothing)
    return {"number": number, "saturated": True, "world": world, **found._asdict()}


def rows(asked: argparse.Namespace, known: list[Row]) -> Iterator[Row]:
    """Findings on worlds without findings yet, until there are enough or the time is over."""
    until = time.monotonic() + asked.minutes * 60
    seen = {row["number"] for row in known}
    missing = asked.worlds - sum(row["saturated"] for row in known)
    given = [(number, yaml.safe_load(file.read_text())) for number, file in enumerate(asked.files)]
    source = given or ((number, None) for number in count(asked.first) if number not in seen)
    seeds = Seeds(asked.seeds, asked.judges)
    more = seeds, asked.trials, asked.link, asked.bounds
    tasks = ((number, world, *more) for number, world in source)
    for row in in_processes(tasks, asked.jobs):
        yield row
        missing -= row["saturated"]
        if time.monotonic() > until or (missing <= 0 and not given):
            return


def in_processes(tasks: Iterable[Task], jobs: int) -> Iterator[Row]:
    """Results of `looked_at` for each task, in order, by `jobs` processes, which end with the
    iterator.
    """
    if jobs == 1:
        yield from map(looked_at, tasks)
        return
    with JobProcesses(jobs) as pool:
        yield from pool.outcomes(_looked_at, tasks)


def _looked_at(task: Task, note: Note) -> Row:
    return looked_at(task)


def kind(world: World) -> str:
    """Name of a kind of world, as ``h100, in turns that drain``."""
    sharing = world["sharing"]
    how = "at once"
    if sharing["mode"] == "temporal":
        how = {True: "in turns that drain", False: "in turns"}.get(
            sharing.get("drain", "auto"), "in turns, draining left open"
        )
    return f"{world['hardware']}, {how}"


def regret(row: Row) -> float:
    """Regret of the rule: the oracle's gain over it, as `worth` counts it."""
    return worth(row["oracle"]) - worth(row["rule"])


def share(found: list[Row]) -> float | None:
    """Part of the oracle's gain in tokens a second over `pooled` that the rule has, by mean
    logarithms; None if the oracle gains nothing.
    """
    gains = [[log(row[who]["tokens/s"]) for row in found] for who in ("rule", "oracle")]
    ours, most = map(sum, gains)
    return ours / most if most > 0.001 * len(found) else None


def held(found: list[Row]) -> list[str]:
    """Names of `WHO` for which every world has figures."""
    return [who for who in WHO if all(row.get(who) for row in found)]


def head(found: list[Row]) -> str:
    """Titles of the columns of `line`."""
    return " | ".join(f"{who}: {', '.join(SHOWN)}" for who in held(found))


def line(title: str, found: list[Row], more: str = "") -> str:
    """A row of a table under `head`: geometric means over the found worlds."""
    cells = []
    for who in held(found):
        every = [exp(_logs(found, who, name).value) for name in SHOWN]
        cells.append(", ".join(f"{value:.3f}" for value in every))
    part = share(found)
    cells.append("–" if part is None else f"{part:.0%}")
    return f"| {title} | {' | '.join(cells)} |{more}"


def report(found: list[Row], shown: int) -> None:
    """Print all tables."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        kinds[kind(row["world"])].append(row)
    columns, under = head(found), "---:|" * (len(held(found)) + 1)
    print(f"\n| machine, worlds | {columns} | share |\n|---|{under}")
    for name in sorted(kinds):
        print(line(f"{name}, {len(kinds[name])}", kinds[name]))
    print(line(f"all, {len(found)}", found))
    for who in WHO[:2]:
        print(f"{who}: {spread(found, who)}")
    print(f"\n| number, world | {columns} | share | best fixed settings |\n|---|{under}---|")
    for row in sorted(found, key=regret, reverse=True)[:shown]:
        settings = ", ".join(f"{knob} {value}" for knob, value in row["settings"].items())
        print(line(f"{row['number']}, {about(row['world'])}", [row], f" {settings} |"))


def spread(found: list[Row], who: str) -> str:
    """Text of the geometric means of `who` (see `WHO`) over the worlds, with their intervals, and
    of the number of worlds that miss the aims.
    """
    words = []
    for name in SHOWN:
        logs = _logs(found, who, name)
        ends = "" if logs.half is None else f" ({exp(logs.value - logs.half):.3f} to "
        ends += "" if logs.half is None else f"{exp(logs.value + logs.half):.3f})"
        words.append(f"{name} {exp(logs.value):.3f}{ends}")
    fewer = sum(row[who]["tokens/s"] < LEAST_TOKENS for row in found)
    longer = sum(row[who]["TPOT P99"] > MOST_TPOT for row in found)
    words.append(f"tokens/s under {LEAST_TOKENS} in {fewer} of {len(found)}")
    words.append(f"TPOT P99 over {MOST_TPOT} in {longer}")
    return "; ".join(words)


def _logs(found: list[Row], who: str, name: str) -> intervals.Mean:
    return intervals.mean([log(row[who][name]) for row in found])


def keep(row: Row, folder: Path) -> None:
    """Write a world, the best fixed settings, and the figures there of all in `WHO`
    that have some.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{row['world']['title'].replace(' ', '-')}.yaml"
    kept = {key: row[key] for key in ("world", "settings", *held([row]))}
    (folder / name).write_text(yaml.safe_dump(kept, sort_keys=False))


def stored(file: Path) -> list[Row]:
    """Findings in the file, one a line; none if the file does not exist. A last line that was cut
    short is skipped.
    """
    if not file.exists():
        return []
    written = file.read_text().split("\n")
    return [json.loads(text) for text in written[:-1]]


def main() -> None:
    asked = arguments()
    file = asked.output / "results.jsonl"
    asked.output.mkdir(parents=True, exist_ok=True)
    known = [] if asked.files else stored(file)
    if asked.first is None:
        asked.first = known[0]["number"] if known else random.SystemRandom().randrange(10**9)
    if not asked.files:
        print(f"worlds from --first {asked.first} on; {len(known)} were looked at before")
    for row in rows(asked, known):
        known.append(row)
        if not asked.files:
            with file.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
        if row["saturated"]:
            print(f"{row['number']}: {about(row['world'])}, regret {regret(row):.3f}", flush=True)
    found = [row for row in known if row["saturated"]]
    if not found:
        print("nothing was looked at: no world is saturated, or there was no time")
        return
    report(found, asked.shown)
    if asked.keep:
        for row in sorted(found, key=regret, reverse=True)[: asked.worst]:
            keep(row, asked.keep)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    parser.add_argument("--worlds", type=int, default=200, help="saturated ones, in all")
    parser.add_argument("--first", type=int, help="number of the first one; drawn if left out")
    parser.add_argument("--minutes", type=float, default=240, help="after which no other begins")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one core each")
    parser.add_argument(
        "--trials", type=int, default=60, help="settings tried in each world; 0 for none"
    )
    parser.add_argument(
        "--bounds",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="simulate memory for nothing as well",
    )
    parser.add_argument("--seeds", type=parse_seeds, default=[1, 2, 3, 4, 5], help="that choose")
    parser.add_argument("--judges", type=parse_seeds, default=[11, 12, 13, 14, 15])
    parser.add_argument("--link", type=float, metavar="GB/S", help="instead of each machine's own")
    parser.add_argument("--shown", type=int, default=20, help="worlds in the last table")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for the worst worlds")
    parser.add_argument("--worst", type=int, default=5, help="how many are kept")
    parser.add_argument("--output", type=Path, default=Path("out/oracle"), metavar="DIR")
    return parser.parse_args()


if __name__ == "__main__":
    main()
