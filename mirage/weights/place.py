"""The place of this machine's store of weights."""

from __future__ import annotations

from pathlib import Path

from mirage.paths import cache_folder
from mirage.weights.store import WeightStore


def store_at(place: Path | None) -> WeightStore:
    """The store at `place`; None: in the user's cache folder. Raises `InputRefused` if that is
    unknown.
    """
    return WeightStore((place or cache_folder() / "mirage" / "weights").absolute())
