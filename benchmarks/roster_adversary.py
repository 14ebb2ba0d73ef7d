"""Search for the world in which the roster is worst compared with `swap-models`, by an optimiser.

    .venv/bin/python -m benchmarks.roster_adversary [--minutes 10] [--seed 0] [--output DIR]

The search varies the properties that `benchmarks/roster_worlds.py` draws, the link's speed, and the
times of sleeps, wakes, stops and starts. Optuna's TPE sampler proposes worlds, and the simulator
judges them by tokens a second. If one run is below 0.98 of those of `swap-models`, the median of
three seeds decides. Tried worlds are kept in DIR/adversary.log, from which a later run continues.
Worlds that are worse in the median are written into DIR, for `python -m benchmarks.roster FILE`.
The program prints the worst.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path

import optuna

from benchmarks.adversary import study
from benchmarks.roster import LEAST, WORST, ratio
from benchmarks.roster_worlds import COUNTS, OURS, RATES, ZIPF, about, served, world_of
from benchmarks.worlds import LENGTHS, MACHINES, MODELS, World, keep
from mirage.config import ConfigError
from mirage.control.roster.needs import NeverServedError

OTHER = "swap-models"
SEEDS = 0, 1, 2


def propose(trial: optuna.Trial) -> World:
    """Make a world of the sampler's suggestions."""
    count = trial.suggest_int("models", *COUNTS, log=True)
    exponent = trial.suggest_float("zipf", *ZIPF)
    total = trial.suggest_float("rate", *RATES, log=True)
    weights = [(place + 1) ** -exponent for place in range(count)]
    rng = random.Random(trial.suggest_int("deal", 0, 9))
    tenants = [
        {
            "name": f"m{place}",
            "model": rng.choice(MODELS),
            "rate": max(1e-4, round(total * weight / sum(weights), 5)),
        }
        for place, weight in enumerate(weights)
    ]
    asked = {
        "arrivals": trial.suggest_categorical("arrivals", ("bursty", "poisson")),
        "lengths": trial.suggest_categorical("lengths", LENGTHS),
        "requests": trial.suggest_int("requests", 100, 400, step=100),
    }
    machine = trial.suggest_categorical("hardware", MACHINES)
    world = world_of(f"adversary {trial.number}", machine, tenants, asked)
    world["link_gb_s"] = trial.suggest_float("link_gb_s", 8, 600, log=True)
    world["roster"] = {
        key: round(trial.suggest_float(key, least, most, log=True), 3)
        for key, least, most in (
            ("sleep_s", 0.02, 1.0),
            ("wake_s", 0.02, 1.0),
            ("stop_s", 0.2, 5.0),
            ("start_s", 1.0, 60.0),
        )
    }
    return world


def ratios(world: World, seed: int) -> tuple[float, float]:
    """Ratios of the roster to the other way: of tokens a second, and of requests within limits."""
    ours, other = served(world, OURS, seed), served(world, OTHER, seed)
    return ratio(ours.tokens_s, other.tokens_s), ratio(ours.within, other.within)


def judge(trial: optuna.Trial, folder: Path) -> float:
    """Badness of one proposed world; if it is above 1 the roster has too few tokens a second, and
    the world is written to the folder.

    Raises `TrialPruned` for a world that does not fit. One that looks bad is judged by the medians
    over all seeds.
    """
    world = propose(trial)
    try:
        tokens, within = ratios(world, SEEDS[0])
    except (ConfigError, NeverServedError) as error:
        raise optuna.TrialPruned(str(error)) from None
    if tokens < LEAST:
        more = [(tokens, within), *(ratios(world, seed) for seed in SEEDS[1:])]
        tokens, within = (statistics.median(each) for each in zip(*more, strict=True))
    if tokens < LEAST:
        keep(world, folder)
    trial.set_user_attr("told", f"{tokens:.3f} of tokens/s, {within:.2f} of those within limits")
    trial.set_user_attr("about", about(world))
    return LEAST / tokens


def main() -> None:
    asked = arguments()
    asked.output.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = study(asked.output, asked.seed)
    found.optimize(lambda trial: judge(trial, asked.output), timeout=asked.minutes * 60)
    done = found.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    worse = sum((trial.value or 0) > 1 for trial in done)
    print(f"{worse} of {len(done)} worlds are under {LEAST} of {OTHER}'s tokens a second")
    for trial in sorted(done, key=lambda trial: -(trial.value or 0))[:WORST]:
        told = trial.user_attrs
        print(f"adversary {trial.number} ({told['about']}): {told['told']}: {trial.params}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the optimiser")
    parser.add_argument("--output", type=Path, default=Path("out/roster"), metavar="DIR")
    return parser.parse_args()


if __name__ == "__main__":
    main()
