"""Kept worlds in which the rule once gained little or had the longest tails: not any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.fixed import MOST_TPOT, found, mean, worth
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.run import run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WORLDS = sorted((Path(__file__).parents[2] / "benchmarks/experiments/oracle").glob("*.yaml"))
SEEDS = 11, 12
NEARLY = 0.02
"""Tolerance against the recorded figures, in logarithms for `worth` and relative for the TPOT P99:
changes to other decisions than the one under test may cost that much.
"""


@pytest.mark.parametrize("file", WORLDS, ids=lambda file: file.stem)
def test_the_rule_gains_what_it_gained(file: Path) -> None:
    kept: dict[str, Any] = yaml.safe_load(file.read_text())
    setup = Setup(Experiment.model_validate(kept["world"]))
    pooled = {seed: run(setup, "pooled", seed) for seed in SEEDS}
    figures = mean(found(kept["world"], pooled))
    assert worth(figures) >= worth(kept["rule"]) - NEARLY, figures
    assert figures["TPOT P99"] <= max(MOST_TPOT, (1 + NEARLY) * kept["rule"]["TPOT P99"]), figures
