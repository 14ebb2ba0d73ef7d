"""Every family of the zoo that is said to be proven is proven again, in each way of scheduling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mirage.serve.fit.proven import book
from tests.zoo import FAMILIES, driving, make_all
from tests.zoo.checking import check, disagreements
from tests.zoo.judging import differences, hidden

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * 3600)]

PROVEN = [row.family for row in book().rows if row.proven]
MODES = ("plain", "mirage", "nowait", "plain-async", "mirage-async")
JOBS = 2

Runs = dict[str, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all([FAMILIES[name] for name in PROVEN], tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def runs(models: Path) -> Runs:
    """Results by mode and family; two engines run at a time, for most of an hour."""
    return driving.in_modes(MODES, PROVEN, models, JOBS)


@pytest.mark.parametrize("suffix", ["", "-async"])
@pytest.mark.parametrize("family", PROVEN)
def test_outputs_are_plain_vllms_while_memory_moves(family: str, suffix: str, runs: Runs) -> None:
    plain = runs[f"plain{suffix}"][family]
    if suffix and "failed" in plain:
        pytest.skip(f"vLLM itself cannot do it this way: {plain['failed'][:80]}")
    assert differences(plain, runs[f"mirage{suffix}"][family]) == []


@pytest.mark.parametrize("family", PROVEN)
def test_without_waits_they_differ(family: str, runs: Runs) -> None:
    if not runs["mirage"][family]["layers"]:
        pytest.skip("no layer of it ever moves, so nothing is waited for")
    assert hidden(runs["plain"][family], runs["nowait"][family]) is None


def test_check_says_what_the_engines_then_have(models: Path, runs: Runs) -> None:
    said = dict(check([FAMILIES[name] for name in PROVEN], models))
    wrong = {name: disagreements(said[name], runs["mirage"][name]["shape"]) for name in PROVEN}
    assert {name: what for name, what in wrong.items() if what} == {}
