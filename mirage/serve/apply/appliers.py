"""Contract of the appliers of configurations to a running server, of one device or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mirage.config import HttpSection
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.revision import Revision
from mirage.serve.apply.source import ConfigSource, Written


class AppliesConfigs(Protocol):
    """Applies configurations one at a time; `wanted` is the one that was applied last, or that
    served at the start."""

    source: ConfigSource
    wanted: Written
    revision: Revision

    @property
    def http(self) -> HttpSection:
        """Limits of clients that are in force now."""

    async def apply(
        self,
        edit: Callable[[Written], Written],
        *,
        fresh: Callable[[], None] = ...,
        drain_s: float | None = None,
        dry_run: bool = False,
        facts: bool = False,
    ) -> ApplyTold:
        """Apply the configuration that `edit` makes of the present one. With `dry_run` nothing
        changes, and only the effects are returned.

        `fresh` raises if the present configuration is no longer the one that the caller knows.
        Running requests of tenants that stop have `drain_s` seconds, None for the roster's own
        time. With `facts` a dry run also returns what a simulation of both configurations needs, if
        it can. Raises `ConfigError` for a configuration that cannot be served, `CommandFailed` for
        one that cannot be applied now; then nothing has changed.
        """


def whole(wanted: Written) -> Callable[[Written], Written]:
    """Edit that replaces the whole configuration by `wanted`."""
    return lambda before: wanted
