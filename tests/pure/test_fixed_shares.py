"""Tools that refuse configurations whose tenants are not always awake."""

from __future__ import annotations

from pathlib import Path

import pytest

import configs
from mirage.config import ConfigError, load
from mirage.tools.fixed_shares import with_fixed_shares

pytestmark = pytest.mark.pure
CONFIGS = Path(configs.__file__).parent


def test_tenants_that_are_always_awake_are_known() -> None:
    config = load(CONFIGS / "demo.yaml")
    assert with_fixed_shares(config, "tune") is config


def test_tenants_that_come_and_go_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="mirage tune knows only tenants that are always awake"):
        with_fixed_shares(load(CONFIGS / "many.yaml"), "tune")
