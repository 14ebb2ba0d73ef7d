"""The folder of this machine's store."""

from __future__ import annotations

from pathlib import Path

from mirage.paths import cache_folder
from mirage.weights.store import WeightStore


def store_at(place: Path | None) -> WeightStore:
    """The store at `place`, or in the user's cache. Raises `InputRefused` if none is known."""
    return WeightStore((place or cache_folder() / "mirage" / "weights").absolute())
