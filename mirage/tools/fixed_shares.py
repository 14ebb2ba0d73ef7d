"""Check for commands that support only tenants with fixed shares, which are always awake."""

from __future__ import annotations

from mirage.config import Config, ConfigError


def with_fixed_shares(config: Config, command: str) -> Config:
    """Return `config`. Raises `ConfigError`, which names `command`, if the tenants in it sleep and
    wake.
    """
    if config.rostered:
        raise ConfigError(
            f"mirage {command} knows only tenants that are always awake: give shares in per cent "
            "that add up to 100 or less, without roster, start, keep_alive, stop_after and pinned"
        )
    return config
