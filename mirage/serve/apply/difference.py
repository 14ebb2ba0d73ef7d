"""Difference of two configurations, and how each changed key is put into effect. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from mirage.config import Config, TenantSection

AT_ONCE = frozenset(
    {
        *("priority", "start", "keep_alive", "stop_after", "pinned", "max_waiting", "max_wait_s"),
        *("limits", "defaults", "aliases", "adapters", "max_cost_ms"),
    }
)
"""Keys of a tenant that take effect immediately, with all keys inside them. All others need a new
engine.
"""
NAMES = frozenset({"aliases", "adapters"})
"""Keys of `AT_ONCE` that change the names which requests may use."""
OF_OTHERS = frozenset({"tenants", "roster", "http", "replay"})
"""Sections that may change while a server runs. Rules of the roster and limits of clients take
effect immediately; `replay` is for `mirage replay` and not for a server.
"""
TLS = "http.tls"
"""Key that may change only in the files that it names: with TLS the address has another scheme."""


class TenantChange(NamedTuple):
    """Keys of one tenant that have changed; a key inside a mapping is written
    ``engine_args.seed``.
    """

    name: str
    at_once: tuple[str, ...]
    restart: tuple[str, ...]
    """Changed keys that need a new start of the tenant's engine, if it has one."""


class ConfigDifference(NamedTuple):
    """Difference between two configurations."""

    added: tuple[str, ...] = ()
    changed: tuple[TenantChange, ...] = ()
    removed: tuple[str, ...] = ()
    roster: tuple[str, ...] = ()
    """Rules of the roster that have changed."""
    http: tuple[str, ...] = ()
    """Limits of clients, and files of the certificate, that have changed."""
    fixed: tuple[str, ...] = ()
    """Changed keys that need another start of the server."""

    @property
    def is_none(self) -> bool:
        """True if the configurations do not differ, except in `replay` or the order of tenants."""
        return not any(self)

    @property
    def renames(self) -> bool:
        """True if aliases or adapters of a tenant that stays change, which are names that requests
        may use."""
        return any(key.split(".")[0] in NAMES for one in self.changed for key in one.at_once)

    @property
    def adapts(self) -> list[str]:
        """Tenants whose adapters change without a new start of their engines."""
        return [one.name for one in self.changed if _adapts(one)]

    @property
    def needs_engines(self) -> list[str]:
        """Tenants that are new, or whose engines have to start anew."""
        return [*self.added, *(change.name for change in self.changed if change.restart)]


def difference(before: Config, after: Config) -> ConfigDifference:
    """Difference of two configurations; the order of tenants does not matter."""
    old = {tenant.name: tenant for tenant in before.tenants}
    new = {tenant.name: tenant for tenant in after.tenants}
    pairs = ((old[name], tenant) for name, tenant in new.items() if name in old)
    changes = (_change(one, other) for one, other in pairs)
    others = Config.model_fields.keys() - OF_OTHERS
    http = tuple(changed_keys(before.http, after.http, "http"))
    return ConfigDifference(
        added=tuple(name for name in new if name not in old),
        changed=tuple(change for change in changes if change.at_once or change.restart),
        removed=tuple(name for name in old if name not in new),
        roster=tuple(changed_keys(before.roster, after.roster, "roster")),
        http=tuple(key for key in http if key != TLS),
        fixed=(
            *(
                key
                for field in Config.model_fields
                if field in others
                for key in changed_keys(getattr(before, field), getattr(after, field), field)
            ),
            *(key for key in http if key == TLS),
        ),
    )


def _adapts(one: TenantChange) -> bool:
    return not one.restart and any(key.split(".")[0] == "adapters" for key in one.at_once)


def _change(before: TenantSection, after: TenantSection) -> TenantChange:
    keys = tuple(changed_keys(before, after))
    at_once = tuple(key for key in keys if key.split(".")[0] in AT_ONCE)
    return TenantChange(after.name, at_once, tuple(key for key in keys if key not in at_once))


def changed_keys(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Paths of the keys by which two sections or values differ, each after `path`, the key of
    both."""
    if repr(before) == repr(after):  # true is not 1, wherever it stands
        return
    one, other = _values(before), _values(after)
    if one is None or other is None:
        yield path
        return
    for key in dict.fromkeys((*one, *other)):
        inner = f"{path}.{key}" if path else str(key)
        if key in one and key in other:
            yield from changed_keys(one[key], other[key], inner)
        else:
            yield inner


def _values(section: Any) -> dict[str, Any] | None:
    if isinstance(section, BaseModel):
        return {name: getattr(section, name) for name in type(section).model_fields}
    return section if isinstance(section, dict) else None
