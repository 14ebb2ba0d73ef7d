"""Entries of ``/v1/models``. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mirage.serve.routed.table import RoutedRow

Opens = Callable[[RoutedRow, str], bool]
"""Function that is true if the asking request may use this name of a tenant."""


def cards_of(
    served: Iterable[tuple[RoutedRow, str]], created: int, opens: Opens
) -> dict[str, dict[str, Any]]:
    """Entries of ``/v1/models`` by name, of all tenants in `served`, each with its device's name.

    Replicas share one entry. It lists their devices, unless the device's name is empty: there is
    only one. `created` is in seconds since 1970.
    """
    cards: dict[str, dict[str, Any]] = {}
    for row, device in served:
        for card in model_cards(row, created, opens):
            known = cards.setdefault(card["id"], card)
            if device:
                known.setdefault("devices", []).append(device)
    return cards


def model_cards(row: RoutedRow, created: int, opens: Opens) -> list[dict[str, Any]]:
    """Entries of one tenant that a request may see: its name, aliases and adapters.

    The tenant's own name appears as the root or parent of others only for requests that may use it.
    `created` is in seconds since 1970.
    """
    card = {
        "object": "model",
        "created": created,
        "owned_by": "mirage",
        "max_model_len": row.max_model_len,
    }
    is_told = opens(row, row.name)
    parent = {"parent": row.name} if is_told else {}
    more: dict[str, dict[str, str]] = {row.name: {}}
    more |= {name: {"root": row.name if is_told else name} | parent for name in row.aliases}
    more |= {name: {"root": folder} | parent for name, folder in row.adapters.items()}
    return [{"id": name} | card | own for name, own in more.items() if opens(row, name)]
