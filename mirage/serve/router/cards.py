"""Entries of ``/v1/models``. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mirage.serve.routed.table import RoutedRow


def cards_of(served: Iterable[tuple[RoutedRow, str]], created: int) -> dict[str, dict[str, Any]]:
    """Entries by their names, of tenants with their devices, which have names among several.

    Those of replicas are one.
    """
    cards: dict[str, dict[str, Any]] = {}
    for row, device in served:
        for card in model_cards(row, created):
            known = cards.setdefault(card["id"], card)
            if device:
                known.setdefault("devices", []).append(device)
    return cards


def model_cards(row: RoutedRow, created: int) -> list[dict[str, Any]]:
    """A tenant's entries of ``/v1/models``: its model, by its aliases too, and its LoRA adapters.

    `created` is in seconds since 1970.
    """
    card = {
        "id": row.name,
        "object": "model",
        "created": created,
        "owned_by": "mirage",
        "max_model_len": row.max_model_len,
    }
    roots = dict.fromkeys(row.aliases, row.name) | dict(row.adapters)
    others = (card | {"id": name, "root": root, "parent": row.name} for name, root in roots.items())
    return [card, *others]
