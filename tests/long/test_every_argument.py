"""Every argument that vLLM lists: refused in one line before a start, or text as in plain vLLM."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from argument_cases import (
    DIFFERENT_TEXT,
    NEEDS_A_FILE,
    alone,
    felt_by_engines,
    together,
    values,
)
from drawing_arguments import actions, drawn, kind_of
from judging import NO_KERNEL, Case, judgement, outcomes

from mirage.arguments.check import ArgumentRefused, check_names, normalised
from mirage.serve.launch.launcher import flags

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
SEED = 20
OTHER_TASKS = {"runner", "convert"}
"""Engines that say no text."""
AT_ONCE = 25
"""Arguments in one start that leave the engine as it is."""


def cases() -> tuple[list[Case], list[Case]]:
    """All arguments with all values that are served, each by itself, and many in one start."""
    single: list[Case] = []
    grouped: list[tuple[str, Any]] = []
    for action in actions():
        name = action.dest
        if name in NEEDS_A_FILE:
            continue
        for value in values(name, kind_of(action), list(action.choices or ())):
            if DIFFERENT_TEXT.get(name) == value:
                continue
            if felt_by_engines(name):
                single.append(alone(name, value))
            else:
                grouped.append((name, value))
    return single, together(grouped, random.Random(SEED), AT_ONCE)


@pytest.mark.parametrize("which", [0, 1], ids=["alone", "together"])
def test_every_argument_that_is_served_leaves_the_text_as_it_is(tmp_path: Path, which: int) -> None:
    every = cases()[which]
    ours = outcomes(tmp_path, every, "mirage")
    plain = outcomes(tmp_path, every, "plain")
    table = [
        (judgement(a, b), case["engine_args"], "" if b.kind == "text" else str(b.said)[-400:])
        for case, a, b in zip(every, plain, ours, strict=True)
    ]
    for word, engine_args, said in table:
        print(f"{word}: {engine_args} {said}")
    assert not [row for row in table if row[0] not in ("equal", NO_KERNEL)]


def test_drawn_values_of_every_argument_never_die_after_a_yes(tmp_path: Path) -> None:
    """Drawn values that pass the table and vLLM's parser start an engine each."""
    rng = random.Random(SEED)
    passed: list[Case] = []
    for action in actions():
        if action.dest in NEEDS_A_FILE | set(DIFFERENT_TEXT) | OTHER_TASKS:
            continue
        for _ in range(30):
            case = {"engine_args": {action.dest: drawn(action, rng)}, "rounds": 1}
            if _passes(case["engine_args"]):
                passed.append(case)
    some = rng.sample(passed, min(40, len(passed)))
    ours = outcomes(tmp_path, some, "mirage")
    plain = outcomes(tmp_path, some, "plain")
    found = [
        (judgement(a, b), c["engine_args"], b.said)
        for c, a, b in zip(some, plain, ours, strict=True)
    ]
    for word, engine_args, said in found:
        print(f"{word}: {engine_args} {'' if word == 'equal' else str(said)[-300:]}")
    assert not [row for row in found if row[0] not in ("equal", "refused", NO_KERNEL)]


def _passes(engine_args: dict[str, Any]) -> bool:
    from mirage.engine.arguments import parse

    try:
        check_names(engine_args)
        parse(flags(normalised(engine_args), joined=True))
    except ArgumentRefused as error:
        assert "\n" not in str(error)
        return False
    return True
