"""Fixed settings of a world, searched on the world itself: the best that they reach there.

They are compared with a rule that decides from moment to moment. The settings are a limit for each
model's layers, the amount that is lent in turns, draining where the world leaves it open, slots,
growth or admission, `tbt_ms`, and the rest of an idle model. Optuna's TPE sampler proposes, the
simulator judges. Settings are chosen on some seeds and judged on others, because the best of many
on one seed is partly luck.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import exp, inf, log
from typing import Any, NamedTuple

import optuna

from benchmarks import ablations
from benchmarks.worlds import FIGURES, Ratios, World
from mirage.control.targets import entitled, most_remapped
from mirage.simulate.experiment import Setup
from mirage.simulate.run import Metrics, run

Settings = dict[str, Any]
"""Settings of knobs by name; a knob that is left out is as the world has it."""

MOST_TPOT = 1.05
"""Largest ratio of the TPOT P99 to `pooled`'s that more throughput may cost."""
FIRST_TOKENS = 0.1
"""Weight of the logarithm of TTFT P99 in the score, in which that of tokens a second has weight
1."""
BEYOND = 2.0
"""Weight of the logarithm of a TPOT P99 beyond `MOST_TPOT` in the score, in which that of tokens a
second has weight 1."""
GIB = 2**30
ENDLESS = 20
"""Times the machine's memory that stands for memory without end."""
RANDOM = 16
"""Trials with random settings before the sampler learns from their results."""

CAPS = 95, 50, 30, 20, 10, 5, 0
"""Values of `max_percent`: the most per cent of a model's layers that it gives away. The first is
the default.
"""
ANYWHERE: dict[str, tuple[Any, ...]] = {
    "decode_cap": (True, False),
    "stream_slots": ("dynamic", 1, 2),
    "serve": ("admission", "growth"),
    "tbt_ms": (None, 25.0, 40.0, 1000.0),
    "hysteresis_s": (0.5, 2.0),
}
IN_TURNS: dict[str, tuple[Any, ...]] = {"lend_kv": (None, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0)}
AT_ONCE: dict[str, tuple[Any, ...]] = {"rest_s": (30.0, 5.0, 1.0, 0.0)}
LEFT_OPEN: dict[str, tuple[Any, ...]] = {"drain": ("auto", False, True)}
ABLATIONS = "decode_cap", "stream_slots", "lend_kv"


class Seeds(NamedTuple):
    """Seeds on which settings are chosen, and seeds on which settings and rule are judged."""

    chosen_on: Sequence[int]
    judged_on: Sequence[int]


class Bounds(NamedTuple):
    """Figures of one world relative to policy `pooled`'s, as geometric means over the judging
    seeds: of the rule, of the best fixed settings, and of larger memory.
    """

    settings: Settings
    rule: Ratios
    oracle: Ratios
    layers: Ratios | None = None
    endless: Ratios | None = None


def bounds(
    world: World, seeds: Seeds, trials: int, number: int, *, for_nothing: bool = True
) -> Bounds:
    """Figures of the rule, of the best fixed settings in `world`, and, with `for_nothing`, of more
    memory at no cost.

    `number` seeds the search. If the fixed settings do worse than the rule on the judging seeds,
    the rule's figures are taken instead, because a user could always choose the rule.
    """
    chosen_on = {seed: _run(world, "pooled", seed) for seed in seeds.chosen_on} if trials else {}
    judging = {seed: _run(world, "pooled", seed) for seed in seeds.judged_on}
    settings = searched(world, chosen_on, trials, number)
    rule = mean(found(world, judging))
    oracle = mean(found(applied(world, settings), judging)) if settings else rule
    if worth(oracle) < worth(rule):
        settings, oracle = {}, rule
    if not for_nothing:
        return Bounds(settings, rule, oracle)
    setup = ablations.setup(world)
    layers = larger(world, setup.hardware.memory_bytes / GIB + layers_gib(setup), "pooled", judging)
    return Bounds(settings, rule, oracle, layers, endless(world, judging))


def searched(world: World, pooled: dict[int, Metrics], trials: int, number: int) -> Settings:
    """Best of `trials` settings for `world` on the seeds of `pooled`; no settings
    without trials.
    """
    if not trials:
        return {}
    firsts = first_settings(world)
    sampler = optuna.samplers.TPESampler(seed=number % 2**32, n_startup_trials=RANDOM)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=len(firsts), n_warmup_steps=0)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    for settings in firsts:
        study.enqueue_trial(
            {
                knob: values.index(settings[knob]) if knob in settings else 0
                for knob, values in knobs(world).items()
            }
        )

    def judged(trial: optuna.Trial) -> float:
        tried = applied(world, _suggested(trial, world))
        seen: list[Ratios] = []
        for step, (seed, base) in enumerate(pooled.items()):
            seen += found(tried, {seed: base})
            trial.report(worth(mean(seen)), step)
            if trial.number >= len(firsts) and trial.should_prune():
                raise optuna.TrialPruned
        return worth(mean(seen))

    study.optimize(judged, n_trials=trials)
    return _written(study.best_params, world)


def first_settings(world: World) -> list[Settings]:
    """Settings that are always tried: the rule itself, no layers, and all that others can lend, the
    last also with a high `tbt_ms`.
    """
    capped = [knob for knob in knobs(world) if knob.startswith("max_percent")]
    lent = {"lend_kv": 2.0} if "lend_kv" in knobs(world) else {"rest_s": 0.0}
    return [{}, dict.fromkeys(capped, 0), lent, lent | {"tbt_ms": 1000.0}]


def knobs(world: World) -> dict[str, tuple[Any, ...]]:
    """Possible values of each knob; the first one leaves the world as it is."""
    caps = {f"max_percent {tenant['name']}": CAPS for tenant in world["tenants"]}
    if world["sharing"]["mode"] == "spatial":
        return caps | ANYWHERE | AT_ONCE
    opened = LEFT_OPEN if world["sharing"].get("drain", "auto") == "auto" else {}
    return caps | ANYWHERE | IN_TURNS | opened


def applied(world: World, settings: Settings) -> World:
    """Copy of `world` with these settings."""
    changed = copy.deepcopy(world)
    for knob, value in settings.items():
        if knob.startswith("max_percent "):
            name = knob.removeprefix("max_percent ")
            next(t for t in changed["tenants"] if t["name"] == name)["max_percent"] = value
        elif knob == "drain":
            changed["sharing"]["drain"] = value
        else:
            changed.setdefault("ablations" if knob in ABLATIONS else "remap", {})[knob] = value
    return changed


def worth(figures: Ratios) -> float:
    """Score of figures over `pooled`'s: mainly the logarithm of tokens a second. A TPOT P99 above
    `MOST_TPOT` costs twice the logarithm of the excess.
    """
    beyond = max(0.0, log(figures["TPOT P99"] / MOST_TPOT))
    return log(figures["tokens/s"]) - FIRST_TOKENS * log(figures["TTFT P99"]) - BEYOND * beyond


def endless(world: World, pooled: dict[int, Metrics]) -> Ratios:
    """Figures of `world` with endless memory over those in `pooled`, as geometric means over its
    seeds.
    """
    memory = ENDLESS * ablations.setup(world).hardware.memory_bytes
    return larger(world, memory / GIB, "static", pooled)


def larger(world: World, gib: float, policy: str, pooled: dict[int, Metrics]) -> Ratios:
    """Figures of `policy`, which moves no layer, on a device of `gib` GiB with the best `drain`,
    over those in `pooled`; geometric means over its seeds.
    """
    other = world | {"memory_gib": gib}
    ways = LEFT_OPEN["drain"] if "drain" in knobs(world) else (None,)
    every = [other if way is None else applied(other, {"drain": way}) for way in ways]
    return max((mean(found(one, pooled, policy)) for one in every), key=worth)


def layers_gib(setup: Setup) -> float:
    """Additional device memory in GiB with which there is as much KV memory as all layers that may
    be given would bring.
    """
    rules, nbytes = setup.rules(setup.variant("mirage")), 0
    for name, shape in setup.shapes.items():
        nbytes += most_remapped(entitled(setup.served(name)), shape, rules) * shape.layer_bytes
    return nbytes / GIB / (setup.total_share / 100)


def found(world: World, pooled: dict[int, Metrics], policy: str = "mirage") -> list[Ratios]:
    """Figures of a policy over those of `pooled`, one for each seed."""
    setup = ablations.setup(world)
    ours = {seed: run(setup, policy, seed) for seed in pooled}
    return [
        {name: ours[seed][key] / pooled[seed][key] for name, key in FIGURES.items()}
        for seed in pooled
    ]


def mean(every: Sequence[Ratios]) -> Ratios:
    """The geometric mean of each figure."""
    return {
        name: exp(sum(log(one[name]) for one in every) / len(every)) if every else inf
        for name in FIGURES
    }


def _run(world: World, policy: str, seed: int) -> Metrics:
    return run(ablations.setup(world), policy, seed)


def _suggested(trial: optuna.Trial, world: World) -> Settings:
    for knob, values in knobs(world).items():
        trial.suggest_int(knob, 0, len(values) - 1)
    return _written(trial.params, world)


def _written(indices: dict[str, int], world: World) -> Settings:
    """Settings without the knobs that leave the world as it is."""
    return {knob: values[indices[knob]] for knob, values in knobs(world).items() if indices[knob]}
