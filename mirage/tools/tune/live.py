"""Contest on real engines: entrants take turns on real servers, with requests that the search has
not seen.

A finished run is stored in a file beside the trials, so an interrupted contest continues after it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from mirage.config import Config
from mirage.serve.launch.preflight import fit_config
from mirage.tools.replay.child import Server
from mirage.tools.replay.client import Journal, Outcome
from mirage.tools.replay.display import Display, display
from mirage.tools.replay.policies import ReplayVariant
from mirage.tools.replay.run import PolicyRun, replay_on
from mirage.tools.tune import moved
from mirage.tools.tune.answer import Recommendation
from mirage.tools.tune.contest import Contest, entrants, winner
from mirage.tools.tune.goals import CompletedRequest, WindowResult
from mirage.tools.tune.question import Question
from mirage.workload import dealing
from mirage.workload.dealing import TenantRequest

FOLDER, FILE = "live", "runs.jsonl"
START_S = 40.0
"""Seconds, roughly, in which a server with three tenants starts on two cores; used only to estimate
the duration.
"""


def check(config: Config) -> None:
    """Ask vLLM, without starting an engine, if the configuration can be served on this machine.
    Raises `ConfigError` if not.
    """
    fit_config(config)


def contest(
    question: Question,
    answer: Recommendation,
    count: int,
    repeats: int,
    output: Path,
    console: Console,
) -> Contest:
    """Measure all entrants, `repeats` times each; runs that are stored in `output` are not
    repeated. Raises `ServerError` if a server fails, `KeyboardInterrupt` on Ctrl-C.
    """
    configs = entrants(question, answer, count)
    calls = _calls(question, answer)
    folder = output / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    kept = _Kept(folder / FILE)
    keys = {name: _key(question, answer, config, calls) for name, config in configs.items()}
    runs = [(repeat, name) for repeat in range(1, repeats + 1) for name in configs]
    left = [(repeat, name) for repeat, name in runs if kept.get(keys[name], repeat) is None]
    each_s = START_S + calls[-1].at_s
    console.out(
        f"mirage: tune: {len(left)} runs on real engines, about {each_s * len(left) / 60:.0f} min",
        highlight=False,
    )
    for done, (repeat, name) in enumerate(left, 1):
        label = f"live {done} of {len(left)}: {name}"
        result = _run(question, configs[name], name, calls, folder, label, console)
        kept.put(keys[name], repeat, result)
    results = {
        name: [
            found
            for repeat in range(1, repeats + 1)
            if (found := kept.get(keys[name], repeat)) is not None
        ]
        for name in configs
    }
    return Contest(configs, results, winner(answer.goal, results), len(calls))


def _calls(question: Question, answer: Recommendation) -> list[TenantRequest]:
    """Calls of the first held-back window, the same as in the simulation."""
    replay = question.config.replay
    scale = replay.time_scale * answer.slower
    rows = question.cut.held_back[0].requests
    seed = question.options.seed
    return dealing.build(question.config, rows, scale, replay.length_scale, seed)


def _run(
    question: Question,
    config: Config,
    name: str,
    calls: Sequence[TenantRequest],
    folder: Path,
    label: str,
    console: Console,
) -> WindowResult:
    stem = name.replace(" ", "-").replace("%", "percent")
    path = folder / f"{stem}.yaml"
    path.write_text(moved.tuned(question, config, [f"{name}, measured"], folder), encoding="utf-8")
    log = folder / f"{stem}.log"
    with (
        display(console, label, len(calls)) as shown,
        Server(path, ReplayVariant(config.policy, tiers=True), log) as server,
    ):
        run = asyncio.run(_replay(question, calls, server, shown))
    if run.interrupted:
        raise KeyboardInterrupt
    rows = tuple(_row(outcome) for outcome in run.outcomes if outcome.error is None)
    return WindowResult(rows, run.duration_s)


async def _replay(
    question: Question, calls: Sequence[TenantRequest], server: Server, shown: Display
) -> PolicyRun:
    journal = Journal(changed=shown.running)
    url = await server.ready(shown.starting)
    seed, timeout_s = question.options.seed, question.config.replay.request_timeout_s
    return await replay_on(url, calls, seed, timeout_s, journal, death=server.death)


def _row(outcome: Outcome) -> CompletedRequest:
    between = outcome.e2el_s - outcome.ttft_s
    return CompletedRequest(
        outcome.ttft_s,
        between / max(1, outcome.output_tokens - 1),
        max(outcome.itl_s, default=0.0),
        outcome.e2el_s,
        outcome.output_tokens,
    )


def _key(
    question: Question, answer: Recommendation, config: Config, calls: Sequence[TenantRequest]
) -> str:
    """Key of a run: the same only for the same configuration and requests."""
    served = config.model_dump(mode="json", exclude={"replay"})
    asked = [(c.at_s, c.tenant, c.context_tokens, c.output_tokens) for c in calls]
    text = json.dumps([question.digest(), served, asked, answer.slower], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class _Kept:
    """Finished runs, stored one per line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, int], WindowResult] = {}
        known = path.read_text(encoding="utf-8") if path.exists() else ""
        if known and not known.endswith("\n"):  # the next run needs a line of its own
            path.write_text(known + "\n", encoding="utf-8")
        for line in known.splitlines():
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue  # half written by a process that was killed

    def get(self, key: str, repeat: int) -> WindowResult | None:
        return self._found.get((key, repeat))

    def put(self, key: str, repeat: int, result: WindowResult) -> None:
        line = {"key": key, "repeat": repeat, "rows": result.rows, "duration_s": result.duration_s}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._found[key, repeat] = result

    def _take(self, line: Mapping[str, object]) -> None:
        rows, seconds = line["rows"], line["duration_s"]
        assert isinstance(rows, list) and isinstance(seconds, float)
        found = WindowResult(tuple(CompletedRequest(*row) for row in rows), seconds)
        self._found[str(line["key"]), int(str(line["repeat"]))] = found
