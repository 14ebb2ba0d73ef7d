"""The command that repeats a replay says exactly what was asked."""

from pathlib import Path

import pytest

from mirage.tools.replay.preparation import ReplayOptions
from mirage.tools.replay.provenance import command

pytestmark = pytest.mark.pure


def test_a_window_late_in_a_week_keeps_its_digits() -> None:
    told = command(Path("c.yaml"), ReplayOptions(window=(1234567.25, 1234570.0), length_scale=0.1))
    assert told == "mirage replay c.yaml --window 1234567.25:1234570.0 --length-scale 0.1"


def test_a_key_is_left_out() -> None:
    assert command(Path("c.yaml"), ReplayOptions(key="secret")) == "mirage replay c.yaml"
