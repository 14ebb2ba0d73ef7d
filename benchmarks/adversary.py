"""Search for the world in which `mirage` does the greatest harm, by an optimiser.

    .venv/bin/python -m benchmarks.adversary [--minutes 60] [--jobs 2] [--seed 0] [--output DIR]

The search varies the properties that `benchmarks/worlds.py` draws, and also the link's speed,
reports, messages, step overheads, priorities, floors, models that become silent, and the treatment
of unfinished requests at the end of a turn. Optuna's TPE sampler proposes worlds. The simulator
compares `mirage` with `pooled`, and the objective is the distance beyond the bound of harm. If one
run shows harm, the medians of five seeds decide, because in turns that drain much depends on the
turn that a request just reaches. Tried worlds are kept in DIR/adversary.log, from which a later run
continues. Worlds with harm in the median are written into DIR. The program prints the worst worlds
and the distribution.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from benchmarks.worlds import (
    FIGURES,
    HEAD,
    LEAST_TOKENS,
    LENGTHS,
    MACHINES,
    MODELS,
    MOST_E2E,
    Ratios,
    World,
    about,
    harmed,
    keep,
    ratios,
    row,
    summary,
)
from mirage.config import ConfigError

STUDY = "harm"
WORST = 10
"""Number of the worst worlds that are printed."""
SEEDS = 1, 2, 3, 4, 5
"""Seeds of a world's events; the optimiser chooses one, as it chooses the world."""


def badness(found: Ratios) -> float:
    """Badness of a world: the figure that is farthest beyond its bound, relative to it. Above 1
    there is harm.
    """
    return max(
        LEAST_TOKENS / found["tokens/s"],
        found["E2E mean"] / MOST_E2E,
        found["E2E P99"] / MOST_E2E,
    )


def propose(trial: optuna.Trial) -> World:
    """Make a world of the sampler's suggestions."""
    count = trial.suggest_int("models", 2, 4)
    parts = [trial.suggest_float(f"part{i}", 0.5, 1.5) for i in range(count)]
    return {
        "title": f"adversary {trial.number}",
        "hardware": trial.suggest_categorical("hardware", MACHINES),
        "link_gb_s": trial.suggest_float("link_gb_s", 8, 600, log=True),
        "step_overhead_ms": trial.suggest_float("step_overhead_ms", 0.5, 10, log=True),
        "message_ms": trial.suggest_float("message_ms", 0.05, 20, log=True),
        "report_s": trial.suggest_float("report_s", 0.05, 2, log=True),
        "tenants": [_tenant(trial, i, part / sum(parts)) for i, part in enumerate(parts)],
        "sharing": _sharing(trial),
        "limits": {"max_model_len": 2048},
        "workload": {
            "arrivals": trial.suggest_categorical("arrivals", ("bursty", "poisson")),
            "requests": trial.suggest_int("requests", 200, 600, step=100),
        },
        "policies": ["mirage"],
    }


def _tenant(trial: optuna.Trial, number: int, part: float) -> World:
    def name(key: str) -> str:
        return f"{key}{number}"

    tenant: World = {
        "name": f"t{number}",
        "model": trial.suggest_categorical(name("model"), MODELS),
        "share": round(98 * part, 1),
        "rate": round(trial.suggest_float(name("rate"), 0.3, 25, log=True), 2),
        "lengths": trial.suggest_categorical(name("lengths"), LENGTHS),
        "priority": trial.suggest_int(name("priority"), 0, 1),
        "floor_layers": trial.suggest_int(name("floor"), 1, 16, log=True),
    }
    if trial.suggest_categorical(name("silent"), (False, True)):
        tenant["silence"] = {
            "from_s": round(trial.suggest_float(name("from_s"), 1, 60), 1),
            "for_s": round(trial.suggest_float(name("for_s"), 5, 600, log=True), 1),
        }
    return tenant


def _sharing(trial: optuna.Trial) -> World:
    mode = trial.suggest_categorical("mode", ("spatial", "temporal"))
    if mode == "spatial":
        return {"mode": mode}
    return {
        "mode": mode,
        "turn_s": round(trial.suggest_float("turn_s", 0.2, 10, log=True), 2),
        "drain": {"auto": "auto", "stop": False, "drain": True}[
            trial.suggest_categorical("drain", ("auto", "stop", "drain"))
        ],
    }


def judge(trial: optuna.Trial, folder: Path) -> float:
    """Badness of one proposed world. Raises `TrialPruned` for a world whose models do not fit its
    machine. A world with harm in the median is written to `folder`.
    """
    world = propose(trial)
    seed = trial.suggest_categorical("seed", SEEDS)
    try:
        found = ratios(world, seed)
    except ConfigError as error:
        raise optuna.TrialPruned(str(error)) from None
    trial.set_user_attr("once", harmed(found))
    if harmed(found):
        runs = [ratios(world, other) for other in SEEDS]
        found = {name: statistics.median(each[name] for each in runs) for name in FIGURES}
    trial.set_user_attr("ratios", found)
    trial.set_user_attr("about", about(world))
    if harmed(found):
        keep(world, folder)
    return badness(found)


def study(folder: Path, seed: int | None) -> optuna.Study:
    """Optuna study with all trials in `folder`."""
    storage = JournalStorage(JournalFileBackend(str(folder / "adversary.log")))
    # Groups: what only some worlds have, such as turns, is learnt apart.
    sampler = optuna.samplers.TPESampler(
        seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=60
    )
    return optuna.create_study(
        study_name=STUDY,
        storage=storage,
        sampler=sampler,
        direction="maximize",
        load_if_exists=True,
    )


def search(folder: Path, minutes: float, trials: int | None, seed: int) -> None:
    """Search for harm in this process, until the number of trials or the time is used up."""
    study(folder, seed).optimize(
        lambda trial: judge(trial, folder), n_trials=trials, timeout=minutes * 60
    )


def report(tried: list[Any]) -> None:
    """Print the worst worlds, and the distribution of all."""
    if not tried:
        print("nothing could be tried: no world's models fit its machine")
        return
    tried.sort(key=lambda trial: -trial.value)
    print(HEAD)
    for trial in tried[:WORST]:
        seen = trial.user_attrs
        print(row(f"adversary {trial.number}", seen["about"], seen["ratios"]))
    summary([trial.user_attrs["ratios"] for trial in tried])
    print(f"{sum(trial.user_attrs['once'] for trial in tried)} were harmed in a single run")


def main() -> None:
    asked = arguments()
    asked.output.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    others = [
        subprocess.Popen([*_command(asked), "--worker", "--seed", str(asked.seed + number)])
        for number in range(1, asked.jobs)
    ]
    started = time.monotonic()
    search(asked.output, asked.minutes, asked.trials, asked.seed)
    for other in others:
        other.wait()
    if asked.worker:
        return
    done = study(asked.output, None).get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    report([trial for trial in done if math.isfinite(trial.value)])
    print(f"\n{time.monotonic() - started:.0f} s, {asked.jobs} processes")


def _command(asked: argparse.Namespace) -> list[str]:
    bounds = ["--minutes", str(asked.minutes), "--output", str(asked.output)]
    bounds += ["--trials", str(asked.trials)] if asked.trials else []
    return [sys.executable, "-m", "benchmarks.adversary", *bounds]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--trials", type=int, help="worlds that each process tries at most")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one core each")
    parser.add_argument("--seed", type=int, default=0, help="of the optimiser")
    parser.add_argument("--output", type=Path, default=Path("out/adversary"), metavar="DIR")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
