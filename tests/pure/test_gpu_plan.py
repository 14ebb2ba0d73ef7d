"""Limits of rows on a GPU add up to what a machine gives a command."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.gpu.plan import COMMAND_S, COMMANDS

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]


def test_a_command_ends_before_ten_minutes_with_a_minute_to_spare() -> None:
    assert COMMAND_S == 540


@pytest.mark.parametrize("command", COMMANDS)
def test_the_limits_of_a_command_add_up_to_its_time_at_most(command: str) -> None:
    assert sum(step.limit_s for step in COMMANDS[command]) <= COMMAND_S


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_first_how_much_memory_is_free(command: str) -> None:
    assert COMMANDS[command][0].name == "device.free"


def test_each_row_is_a_function_of_the_benchmarks() -> None:
    for step in {step for steps in COMMANDS.values() for step in steps}:
        module, _, name = step.place.rpartition(".")
        source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
        assert name in {n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}


def test_make_has_each_command() -> None:
    targets = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        assert f"\ngpu-{command}: " in targets and f"-m benchmarks.gpu {command}\n" in targets
