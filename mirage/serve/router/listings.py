"""Answers for the clients of Ollama and llama-swap that list models and those in memory. Pure.

Each answer lists only names that the asking request may use, which `opens` decides. `told` has the
sizes of loaded tenants, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from math import ceil
from typing import Any

from mirage.control.roster.states import LifeState
from mirage.serve.registry.loaded import NOTHING, LoadedTenant
from mirage.serve.routed.table import RoutedRow
from mirage.serve.router.cards import Opens

NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""Time of leaving of a model that does not go to sleep by itself."""
RUNNING = {
    LifeState.READY: "ready",
    LifeState.STARTING: "starting",
    LifeState.WAKING: "starting",
    LifeState.DRAINING: "stopping",
}
"""llama-swap's word for each state of a tenant whose engine runs."""
ON_DEVICE = (LifeState.READY, LifeState.DRAINING)
Loaded = Mapping[str, LoadedTenant]


def tags(
    rows: Iterable[RoutedRow], told: Loaded, created: int, opens: Opens
) -> dict[str, list[dict[str, Any]]]:
    """Answer of Ollama's ``/api/tags``: all names of all tenants that the asking request may use.

    `created`, in seconds since 1970, is given as the time at which each model was modified.
    """
    modified = _time(datetime.fromtimestamp(created, UTC))
    models = [
        _model(row, name, told.get(row.name, NOTHING).parameters_bytes, opens)
        | {"modified_at": modified}
        for row in rows
        for name in row.names
        if opens(row, name)
    ]
    return {"models": models}


def running_models(
    rows: Iterable[RoutedRow], told: Loaded, now: datetime, opens: Opens
) -> dict[str, list[dict[str, Any]]]:
    """Answer of Ollama's ``/api/ps``: tenants whose parameters are on the device.

    `size` counts layers whose memory was given away, `size_vram` does not.
    """
    models = []
    for row, name in _seen(rows, opens):
        if row.state not in ON_DEVICE:
            continue
        one = told.get(row.name, NOTHING)
        models.append(
            _model(row, name, one.held_bytes + one.away_bytes, opens)
            | {
                "expires_at": _time(_leaves(one, now)),
                "size_vram": one.held_bytes,
                "context_length": row.max_model_len,
            }
        )
    return {"models": models}


def running(rows: Iterable[RoutedRow], told: Loaded, opens: Opens) -> dict[str, Any]:
    """Answer of llama-swap's ``/running``; commands and addresses of engines are left empty."""
    return {
        "running": [
            {
                "model": name,
                "state": RUNNING[row.state],
                "cmd": "",
                "proxy": "",
                "ttl": ceil(told.get(row.name, NOTHING).yields_s or 0.0),
                "name": name,
                "description": "",
            }
            for row, name in _seen(rows, opens)
            if row.state in RUNNING
        ]
    }


def _seen(rows: Iterable[RoutedRow], opens: Opens) -> Iterable[tuple[RoutedRow, str]]:
    """Tenants of which a request may use a name, each with the first such name."""
    for row in rows:
        if (name := next((name for name in row.names if opens(row, name)), None)) is not None:
            yield row, name


def _model(row: RoutedRow, name: str, size: int, opens: Opens) -> dict[str, Any]:
    """Fields of a model that both of Ollama's lists have; the digest is one of its name.

    The tenant's own name is given as parent only to requests that may use it.
    """
    is_told = name != row.name and opens(row, row.name)
    details = {
        "parent_model": row.name if is_told else "",
        "format": "safetensors",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    }
    digest = sha256(name.encode()).hexdigest()
    return {"name": name, "model": name, "size": size, "digest": digest, "details": details}


def _leaves(one: LoadedTenant, now: datetime) -> datetime:
    return NEVER if one.yields_s is None else now + timedelta(seconds=one.yields_s)


def _time(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
