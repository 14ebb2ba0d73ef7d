"""Every test is run by a `make` command; tests that a run leaves out by its seed are drawn by runs
with other seeds.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from tests.commands import COMMANDS, commands_of, left_out, scaled
from tests.ids import LAYERS

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
MARKS = ("long", "rare", "slow", "drawn", "one_of", "hypothesis")
OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "WHICH")
PRODUCT = {
    f"{family}-{seed}": (family, seed) for family in ("opt", "llama") for seed in ("1", "2", "3")
}


def test_whatever_its_marks_a_test_is_run_by_a_command() -> None:
    for count in range(len(MARKS) + 1):
        for marks in itertools.combinations(MARKS, count):
            assert commands_of({*marks, "timeout"}) <= set(COMMANDS)
            assert commands_of({*marks, "timeout"})


@pytest.mark.parametrize(
    ("marks", "commands"),
    [
        (set(), {"test"}),
        ({"slow"}, {"slow"}),
        ({"slow", "rare"}, {"long"}),
        ({"slow", "drawn"}, {"slow", "long"}),
        ({"slow", "one_of"}, {"slow", "long"}),
        ({"hypothesis"}, {"test", "long"}),
        ({"long"}, {"long"}),
    ],
)
def test_marks_decide(marks: set[str], commands: set[str]) -> None:
    assert commands_of(marks) == commands


def test_one_run_draws_one_seed_of_each_family() -> None:
    out = left_out("20261126", PRODUCT, "slow")
    assert sorted(PRODUCT[name][0] for name in PRODUCT.keys() - out) == ["llama", "opt"]
    assert out == left_out("20261126", PRODUCT, "slow")


def test_many_runs_draw_them_all_and_a_long_one_has_them_all() -> None:
    some = [PRODUCT.keys() - left_out(str(seed), PRODUCT, "slow") for seed in range(50)]
    assert set().union(*some) == PRODUCT.keys()
    assert not left_out("20261126", PRODUCT, "long")
    assert not left_out("20261126", PRODUCT, None)


def test_a_quarter_of_the_examples_but_never_few() -> None:
    assert [scaled(n, "test") for n in (8, 30, 60, 600)] == [8, 25, 25, 150]
    assert scaled(600, "long") == 600


def test_more_examples_than_a_run_has_time_for_are_left_to_the_long_one() -> None:
    assert [scaled(n, "test") for n in (1000, 1004, 4000)] == [250, 250, 250]
    assert scaled(4000, "long") == 4000


@pytest.mark.parametrize("command", COMMANDS)
def test_the_makefile_has_each_command_look_through_its_layers(command: str) -> None:
    """`make -n COMMAND` prints one run of pytest for each layer of tests that the command has.
    Variables of a surrounding make are removed.
    """
    words = ["make", "-n", "--old-file=.venv/.installed", command]
    mine = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    done = subprocess.run(words, cwd=ROOT, env=mine, capture_output=True, text=True, check=True)
    for layer in LAYERS[command]:
        run = [
            line
            for line in done.stdout.splitlines()
            if line.rstrip("; \\").endswith(f"tests/{layer}")
        ]
        # `long` runs the engine layer of `test` too, on the newest vLLM.
        others = [line for line in run if f"MIRAGE_TESTS={command} " not in line]
        assert len(run) - len(others) == 1
        assert len(others) == (command == "long" and layer == "engine")
