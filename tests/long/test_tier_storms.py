"""Every family that is said to be proven and generates, in storms above pools of the tests'."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mirage.serve.fit.proven import book
from tests.zoo import FAMILIES, driving, make_all
from tests.zoo.judging import other_texts

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * 3600)]

PROVEN = [
    row.family
    for row in book().rows
    if row.proven and not row.quantisation and FAMILIES[row.family].task == "generate"
]
"""Without quantised ones, whose kernels do not compute in float32, in which texts are compared."""
PLAIN, STORMS = "storm-plain", ("storm", "storm-tiers")
JOBS = 2
FIGURES = ("hits", "stored", "evicted", "risen", "preemptions", "aborted", "failed_loads")


def test_texts_are_plain_vllms_while_all_moves_at_once(tmp_path: Path) -> None:
    models = make_all([FAMILIES[name] for name in PROVEN], tmp_path)
    runs = driving.in_modes((PLAIN, *STORMS), PROVEN, models, JOBS)
    tell("family", dict(zip(FIGURES, FIGURES, strict=True)))
    wrong = {}
    for name in PROVEN:
        for mode in STORMS:
            ours = runs[mode][name]
            tell(f"{name}, {mode}", ours)
            if not ours.get("off") and (found := other_texts(runs[PLAIN][name], ours)):
                wrong[name, mode] = found
    assert wrong == {}


def tell(name: str, facts: dict[str, Any]) -> None:
    """Print one row of the table."""
    print(f"{name:36}", *(f"{facts.get(f, '-'):>12}" for f in FIGURES), file=sys.stderr)
