"""Contract of who applies configurations to a running server, of one device or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.revision import Revision
from mirage.serve.apply.source import ConfigSource, Written


class AppliesConfigs(Protocol):
    """Applies configurations, one at a time; the last one holds."""

    source: ConfigSource
    wanted: Written
    revision: Revision

    async def apply(
        self,
        edit: Callable[[Written], Written],
        *,
        fresh: Callable[[], None] = ...,
        drain_s: float | None = None,
        dry_run: bool = False,
        facts: bool = False,
    ) -> ApplyTold:
        """Have what `edit` makes of what is wanted, or say what would follow.

        With `facts` a dry run also tells what a simulation of both needs, where there is one.
        `fresh` raises if it is too late for that. Raises `ConfigError` for a configuration that
        cannot be served, `CommandFailed` for one that cannot be had now; then nothing has changed.
        """


def whole(wanted: Written) -> Callable[[Written], Written]:
    """An edit that has another configuration instead."""
    return lambda before: wanted
