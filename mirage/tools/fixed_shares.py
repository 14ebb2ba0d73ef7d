"""Tools that know tenants with a place of their own alone, not ones that come and go."""

from __future__ import annotations

from mirage.config import Config, ConfigError


def with_fixed_shares(config: Config, command: str) -> Config:
    """`config`. Raises `ConfigError` if its tenants come and go."""
    if config.rostered:
        raise ConfigError(
            f"mirage {command} knows only tenants that are always awake: give shares in per cent "
            "that add up to 100 or less, without roster, start, keep_alive, stop_after and pinned"
        )
    return config
