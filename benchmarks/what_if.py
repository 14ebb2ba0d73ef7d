"""Predictions of `mirage apply --dry-run`, compared with the effects of the change on real engines.

python -m benchmarks.what_if [--scene NAME]... [--rounds 2] [--seconds 30] [--json FILE]

Each scene serves two small models, sends chats for some seconds, asks for the effects of another
configuration, and applies it. Chats of the same times and lengths are sent under both
configurations, alternately. The program prints each figure of each tenant that stays: measured
before and after (medians of the rounds), and predicted. It also prints for each figure that is
predicted to change by a quarter whether it changes in that direction, by a tenth at least. The exit
code is 1 if one changes in the other direction.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.served import serving
from mirage.serve.admin.client import AdminClient
from mirage.serve.whatif.figures import TenantFigures, measured
from mirage.tools.demo.models import make_models
from mirage.tools.replay import client
from mirage.tools.replay.client import Journal
from mirage.workload.dealing import TenantRequest

MODELS = ("llama", "qwen3")
PROMPT, OUTPUT = (24, 96), (48, 144)
"""Least and most tokens of a prompt, and of an output."""
FIGURES: dict[str, Callable[[TenantFigures], float | None]] = {
    "TTFT P50, ms": lambda one: one.ttft_ms and one.ttft_ms.p50,
    "TTFT P99, ms": lambda one: one.ttft_ms and one.ttft_ms.p99,
    "TPOT P50, ms": lambda one: one.tpot_ms and one.tpot_ms.p50,
    "TPOT P99, ms": lambda one: one.tpot_ms and one.tpot_ms.p99,
    "tokens/s": lambda one: one.tokens_s,
    "preempted": lambda one: one.preemptions,
}
CHANGED = 1.25
"""Ratio from which on a change is predicted; of preemptions, with three more at least."""
SEEN = 1.1
"""Ratio up to which two measurements are the same."""
PATIENCE_S = 240.0


class Scene(NamedTuple):
    """A configuration of two tenants, a change of it, and the load of each tenant."""

    title: str
    policy: str
    now: Mapping[str, Mapping[str, Any]]
    after: Mapping[str, Mapping[str, Any]]
    load: Mapping[str, float]
    """Rate of each tenant's chats, in multiples of the rate at which `--at-once` of them would run
    at a time if each took as long as one that runs alone.
    """
    memory: str = "72MiB"


EVEN, HALF = {"share": 40}, {"share": 50}
KEPT = HALF | {"max_percent": 0}
SCENES = {
    "share": Scene(
        "the share of llama is lowered under pressure, by more than half of its KV memory",
        "static",
        {"llama": {"share": 60}, "qwen3": EVEN},
        {"llama": EVEN, "qwen3": EVEN},
        {"llama": 1.0, "qwen3": 0.25},
    ),
    "cap": Scene(
        "layers of qwen3, which few ask, may not be lent to llama any more",
        "mirage",
        {"llama": KEPT, "qwen3": {"share": 50, "max_percent": 100}},
        {"llama": KEPT, "qwen3": {"share": 50, "max_percent": 0}},
        {"llama": 1.0, "qwen3": 0.1},
        "58MiB",
    ),
    "removal": Scene(
        "qwen3, which is as busy as llama, is removed",
        "pooled",
        {"llama": HALF, "qwen3": HALF},
        {"llama": HALF},
        {"llama": 1.0, "qwen3": 1.0},
        "60MiB",
    ),
}


class Served(NamedTuple):
    """A server and its admin socket."""

    url: str
    socket: Path
    admin: AdminClient

    def mirage(self, *words: str) -> str:
        """Run an operator's command at the server; returns its output."""
        command = [sys.executable, "-m", "mirage", *words, "--socket", str(self.socket)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scene", action="append", choices=SCENES, help="all by default")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--at-once", type=float, default=6.0, help="requests that run, on average")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    console, results = Console(width=120), {}
    for name in options.scene or SCENES:
        with tempfile.TemporaryDirectory(prefix="mirage-if-", dir=os.environ.get("TMPDIR")) as temp:
            results[name] = run(SCENES[name], Path(temp), options, console)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if wrong := [n for n, rows in results.items() if any(row["order"] == "WRONG" for row in rows)]:
        raise SystemExit(f"in another order than predicted: {', '.join(wrong)}")


def run(
    scene: Scene, folder: Path, options: argparse.Namespace, console: Console
) -> list[dict[str, Any]]:
    """Measure one scene; prints and returns its rows."""
    now, after = (
        _config(folder, scene, scene.now, "now"),
        _config(folder, scene, scene.after, "after"),
    )
    runs: dict[Path, list[dict[str, TenantFigures]]] = {now: [], after: []}
    told: dict[str, Any] = {}
    with serving(now) as server:
        served = Served(server.url, server.socket, AdminClient(server.socket))
        rate = options.at_once / _alone_s(served, MODELS[0])
        print(f"{scene.title}: {rate:.2f} requests a second")
        for number in range(options.rounds):
            for path in (now, after):
                if number or path is after:
                    served.mirage("apply", "-f", str(path), "--wait")
                calls = _calls(_load(scene, path), rate, options.seconds, number)
                begin = 10_000 * sum(map(len, runs.values()))  # no prompt is asked twice
                runs[path].append(
                    _asked(served, [replace(c, index=c.index + begin) for c in calls])
                )
                if not told:
                    words = ("apply", "-f", str(after), "--dry-run")
                    print(served.mirage(*words))
                    told = json.loads(served.mirage(*words, "--json"))
    if told["prediction"] is None:
        raise SystemExit(told["no_prediction"])
    rows = list(_rows(told["prediction"], runs[now], runs[after]))
    _show(scene, rows, console)
    return rows


def _load(scene: Scene, path: Path) -> dict[str, float]:
    served = [tenant["name"] for tenant in yaml.safe_load(path.read_text())["tenants"]]
    return {name: rate for name, rate in scene.load.items() if name in served}


def _config(
    folder: Path, scene: Scene, tenants: Mapping[str, Mapping[str, Any]], name: str
) -> Path:
    models = make_models(folder / "models", which=list(MODELS))
    content = {
        "device": {"memory": scene.memory},
        "dtype": "float32",
        "policy": scene.policy,
        "tenants": [
            {"name": tenant, "model": str(models[tenant]), "max_model_len": 330}
            | {"max_num_seqs": 32}
            | deepcopy(dict(keys))
            for tenant, keys in tenants.items()
        ],
    }
    (path := folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return path


def _alone_s(served: Served, name: str) -> float:
    """Seconds that a chat of the mean length takes when nothing else runs."""
    mean = sum(PROMPT) // 2, sum(OUTPUT) // 2
    calls = [TenantRequest(9_999_000 + i, 0.0, name, *mean, False) for i in range(3)]
    taken = [asyncio.run(_send(served.url, [call])).outcomes[0].e2el_s for call in calls]
    return statistics.median(taken)


def _calls(
    load: Mapping[str, float], rate: float, seconds: float, number: int
) -> list[TenantRequest]:
    """Chats of each tenant with drawn lengths and times. The same number draws the same ones."""
    found = []
    for tenant, factor in load.items():
        drawn = random.Random(f"{tenant} {number}")
        at = drawn.expovariate(rate * factor)
        while at < seconds:
            lengths = drawn.randint(*PROMPT), drawn.randint(*OUTPUT)
            found.append((at, tenant, *lengths))
            at += drawn.expovariate(rate * factor)
    return [TenantRequest(index, *one, False) for index, one in enumerate(sorted(found))]


def _asked(served: Served, calls: list[TenantRequest]) -> dict[str, TenantFigures]:
    """Send the chats, and return the figures of each tenant that the server has
    recorded meanwhile.
    """
    names = {call.tenant for call in calls}
    before = {name: _preempted(served, name) for name in names}
    since = time.time()
    journal = asyncio.run(_send(served.url, calls))
    if failed := [outcome.error for outcome in journal.outcomes if outcome.error]:
        print(f"{len(failed)} requests failed: {failed[0]}", file=sys.stderr)
    time.sleep(1.0)  # the router tells twice a second
    rows = [row for row in served.admin.past() if row.t >= since]
    return {
        name: measured(
            [row for row in rows if row.tenant == name], _preempted(served, name) - before[name]
        )
        for name in names
    }


async def _send(url: str, calls: list[TenantRequest]) -> Journal:
    journal = Journal()
    async with client.session(url, PATIENCE_S) as http:
        await client.send_all(http, calls, 0, journal)
    return journal


def _preempted(served: Served, name: str) -> int:
    with urllib.request.urlopen(f"{served.url}/mirage/state") as answer:
        return int(json.load(answer)["tenants"].get(name, {}).get("preemptions", 0))


def _rows(
    prediction: Mapping[str, Any],
    now: list[dict[str, TenantFigures]],
    after: list[dict[str, TenantFigures]],
) -> Iterator[dict[str, Any]]:
    """Rows that compare prediction and measurement, one for each figure of each tenant in both
    configurations.
    """
    for tenant in after[0]:
        said = prediction["tenants"][tenant]
        foretold = [msgspec.convert(said[when], TenantFigures) for when in ("now", "after")]
        for title, value in FIGURES.items():
            seen = [
                statistics.median(value(one[tenant]) or 0 for one in runs) for runs in (now, after)
            ]
            told = [value(one) or 0 for one in foretold]
            yield {
                "tenant": tenant,
                "figure": title,
                "measured": seen,
                "every": [[value(one[tenant]) for one in runs] for runs in (now, after)],
                "predicted": told,
                "order": _order(told, seen, 3 if title == "preempted" else 0),
            }


def _order(told: list[float], seen: list[float], least: float) -> str:
    """``right`` or ``WRONG``, if the figure changes as predicted or not; ``not seen`` without a
    change, and empty if none is predicted.
    """
    low, high = sorted(told)
    if high <= low * CHANGED or high - low < least:
        return ""
    if max(seen) <= min(seen) * SEEN:
        return "not seen"
    return "right" if (told[1] > told[0]) == (seen[1] > seen[0]) else "WRONG"


def _show(scene: Scene, rows: list[dict[str, Any]], console: Console) -> None:
    table = Table("tenant", "figure", title=scene.title)
    for column in ("measured now", "after", "predicted now", "after", "order"):
        table.add_column(column, justify="right")
    for row in rows:
        figures = (f"{value:,.1f}" for value in (*row["measured"], *row["predicted"]))
        table.add_row(row["tenant"], row["figure"], *figures, row["order"])
    console.print(table)


if __name__ == "__main__":
    main()
