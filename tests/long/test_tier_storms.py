"""Every family that is said to be proven and generates, in a storm above a pool of the tests'."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mirage.serve.proven import book
from tests.zoo import FAMILIES, driving, make_all
from tests.zoo.judging import other_texts

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * 3600)]

PROVEN = [
    row.family for row in book().rows if row.proven and FAMILIES[row.family].task == "generate"
]
MODES = ("storm-plain", "storm")
JOBS = 2
FIGURES = ("hits", "stored", "evicted", "preemptions", "aborted", "failed_loads")


def test_texts_are_plain_vllms_while_all_moves_at_once(tmp_path: Path) -> None:
    models = make_all([FAMILIES[name] for name in PROVEN], tmp_path)
    runs = driving.in_modes(MODES, PROVEN, models, JOBS)
    wrong = {}
    print(f"{'family':24}", *(f"{figure:>12}" for figure in FIGURES), file=sys.stderr)
    for name in PROVEN:
        plain, ours = runs["storm-plain"][name], runs["storm"][name]
        if ours.get("off"):
            print(f"{name:24} keeps nothing below the device", file=sys.stderr)
            continue
        if found := other_texts(plain, ours):
            wrong[name] = found
        print(f"{name:24}", *(f"{ours.get(f, '-'):>12}" for f in FIGURES), file=sys.stderr)
    assert wrong == {}
