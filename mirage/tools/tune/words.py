"""The result in three sentences: its gain, the models that should give layers, and what else helps.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from mirage.tools.explain.words import listed
from mirage.tools.tune.goals import Goal, unit

LITTLE = 0.02
"""Relative difference of the objective that does not count."""
ONE_SIDED = 0.9
"""Part of all lent bytes from which on idle models are said to lend them all."""


@dataclass(frozen=True)
class Findings:
    """Findings from which the sentences are made."""

    goal: Goal
    searched: Mapping[str, float]
    """Value of each contender on the searched windows; `held_back` has those on the held-back
    ones.
    """
    held_back: Mapping[str, float]
    changed: Sequence[str]
    """Changed keys of the file with their new values, as text."""
    lent_idle: float
    """Mean bytes that idle models lend in the tuned configuration; `lent_active` is that of active
    ones.
    """
    lent_active: float
    hides: Sequence[str]
    """Models whose decode step of one request hides at least one layer."""
    tenants: int
    explained: Sequence[str]
    """The sentences of `mirage explain`."""
    bottleneck: str
    """Change that would help instead of remapping, as a clause."""
    rest_s: tuple[float, float] | None = None
    """Idle seconds before a model lends all its layers, in the file and in the tuned configuration;
    None in turns.
    """


def sentences(found: Findings) -> list[str]:
    """Three sentences: on the gain of the tuned settings, on remapping, and on further findings."""
    return [_brings(found), _gives(found), _more(found)]


def remapping_pays(found: Findings) -> bool:
    """True if the tuned configuration is better than with 0 % of the layers by more than
    `LITTLE`.
    """
    return _gain_of_layers(found) > LITTLE


def _gain_of_layers(found: Findings) -> float:
    return found.goal.gain(found.held_back["tuned"], found.held_back["tuned at 0 %"])


def _brings(found: Findings) -> str:
    goal = found.goal
    tuned, default = found.held_back["tuned"], found.held_back["default"]
    worth = f"{_number(tuned)} {unit(goal.objective)} of {_called(goal)}"
    if not found.changed:
        return (
            f"Leave the configuration as it is: on the windows of the search nothing was better, "
            f"and on unseen ones it gives {worth}."
        )
    gain = goal.gain(tuned, default)
    beside = f"{_number(default)} of the configuration as it is"
    if gain <= 0:
        worse = f"{_percent(gain)} worse" if gain else "no better"
        return (
            f"The tuned configuration was better on the windows of the search and is not on unseen "
            f"ones ({worth}, {beside}, {worse}): keep the configuration as it is, "
            "or search on a longer trace."
        )
    return (
        f"Set {listed(found.changed)}: on unseen windows {worth}, {beside} "
        f"({_percent(gain)} better)."
    )


def _gives(found: Findings) -> str:
    nothing = found.held_back["tuned at 0 %"]
    lent = found.lent_idle + found.lent_active
    if not remapping_pays(found):
        return (
            f"Remapping does not pay here: with 0 % of the layers it is {_number(nothing)} "
            f"{unit(found.goal.objective)}, and with remapping not {_percent(LITTLE)} better, so "
            "policy pooled does the same."
        )
    begin = (
        f"Remapping pays, it is {_percent(_gain_of_layers(found))} better than 0 % of the layers"
    )
    if found.tenants == 1 or not lent:
        return f"{begin}: {_behind(found)}{_caps(found)}."
    idle = f"{found.lent_idle / lent * 100:.0f} % of what is lent"
    if found.lent_idle >= ONE_SIDED * lent and not found.hides:
        return (
            f"{begin}, and only idle models should give{_sooner(found)}: {idle} is theirs, since "
            f"over this link no layer hides behind the decode of one request{_caps(found)}."
        )
    rest = "is idle models', the rest active ones'"
    return f"{begin}: {idle} {rest}, {_behind(found)}{_caps(found)}."


def _caps(found: Findings) -> str:
    """Clause on the percentages, if the first sentence does not mention them; else empty."""
    if any("max_percent" in change for change in found.changed):
        return ""
    return "; no max_percent was better than the one it has"


def _sooner(found: Findings) -> str:
    if found.rest_s is None or found.rest_s[1] >= found.rest_s[0]:
        return ""
    before, now = found.rest_s
    return f", after {now:g} s without work instead of {before:g} s"


def _behind(found: Findings) -> str:
    if found.hides:
        return f"of which layers of {listed(found.hides)} hide behind the decode of one request"
    return "of which none hides a layer behind the decode of one request"


def _more(found: Findings) -> str:
    if remapping_pays(found):
        return found.explained[-1]
    return f"What would help: {found.bottleneck}. {found.explained[-1]}"


def _called(goal: Goal) -> str:
    if goal.objective != "goodput":
        return goal.objective
    return f"goodput ({goal.slo})"


def _number(value: float) -> str:
    return f"{value:.3g}" if isfinite(value) else "nothing"


def _percent(part: float) -> str:
    return f"{abs(part) * 100:.1f} %" if isfinite(part) else "infinitely"
