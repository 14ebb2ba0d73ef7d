"""Choice of the answer: the best trials are compared again, refined, and simplified.

This module only decides; a function that it is given computes the values of choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from mirage.tools.tune.goals import Goal
from mirage.tools.tune.space import Choice, SearchSpace, Value

FINALISTS = 6
KEPT = 0.98
"""Part of the gain over the unchanged file that must remain when a knob is reset."""
LEAST_GAIN = 0.005
"""Least relative gain over the unchanged file; with less gain the answer is the unchanged file."""

Values = Callable[[Sequence[Choice]], list[float]]
"""Computes the value of each choice, all on the same requests; the goal's worst for a choice that
does not fit.
"""


def chosen(
    goal: Goal,
    space: SearchSpace,
    best: Sequence[Choice],
    values: Values,
    always: Sequence[Choice] = (),
) -> Choice:
    """The answer, never worse than the unchanged file. `best` are the search's choices, the best
    first.

    It is also not worse than the choices in `always`, unless the gain over the unchanged file is
    below `LEAST_GAIN`: then the answer is the unchanged file (an empty choice).
    """
    compared: list[Choice] = [{}, *(choice for choice in always if choice)]
    finalists = [*compared, *(choice for choice in best if choice and choice not in compared)]
    worth = values(finalists)
    least = worth[0]
    for found in worth[: len(compared)]:
        least = found if goal.better(found, least) else least
    default, answer, value = worth[0], finalists[0], worth[0]
    for choice, found in zip(finalists, worth, strict=True):
        if goal.better(found, value):
            answer, value = choice, found
    answer, value = _refined(goal, space, answer, value, values)
    if goal.gain(value, default) < LEAST_GAIN:
        return {}
    return _simplified(goal, answer, value, default, least, values)


def most_values(space: SearchSpace, always: Sequence[Choice]) -> int:
    """Most choices whose value `chosen` computes."""
    beside, without = 2 * len(space.knobs), len(space.knobs)
    return 1 + len(always) + FINALISTS + beside + without


def _refined(
    goal: Goal, space: SearchSpace, answer: Choice, value: float, values: Values
) -> tuple[Choice, float]:
    """The answer after trying one step up and down of each knob in turn, keeping improvements."""
    for knob in space.knobs:
        now = knob.values.index(answer.get(knob.name, knob.default))
        beside = [i for i in (now - 1, now + 1) if 0 <= i < len(knob.values)]
        tried = [_with(answer, knob.name, knob.values[i], knob.default) for i in beside]
        for choice, found in zip(tried, values(tried), strict=True):
            if goal.better(found, value):
                answer, value = choice, found
    return answer, value


def _simplified(
    goal: Goal, answer: Choice, value: float, default: float, least: float, values: Values
) -> Choice:
    """The answer after resetting, one after the other, the knobs that hardly change its value."""
    bar = default + KEPT * (value - default) if isfinite(default) else value
    bar = least if goal.better(least, bar) else bar
    for name in list(answer):
        without = {key: each for key, each in answer.items() if key != name}
        (found,) = values([without])
        if not goal.better(bar, found):
            answer = without
    return answer


def _with(answer: Choice, name: str, value: Value, default: Value) -> Choice:
    without = {key: each for key, each in answer.items() if key != name}
    return without if value == default else without | {name: value}
