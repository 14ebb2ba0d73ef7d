"""Inputs of Eq. 1 and Algorithm 1 (`mirage.tiers.prefetch`) for a decoding batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from benchmarks.decode.places import Places, Tier
from benchmarks.decode.rotation import Rotation, Sequence
from mirage.simulate.roofline import PS
from mirage.tiers import prefetch
from mirage.tiers.blocks import Name
from mirage.units import ceil_div


def fitting(window_ps: int, latency_ps: int, bytes_per_s: float, block_bytes: int) -> int:
    """Number of whole blocks by Eq. 1, with times in picoseconds."""
    return int(prefetch.fitting(window_ps / PS, bytes_per_s, block_bytes, latency_ps / PS))


def lacking(sequence: Sequence, places: Places) -> Iterator[Name]:
    """Blocks that a request needs and that are neither on the device nor on the way there."""
    return (name for name in sequence.blocks if places.at[name] is not Tier.DEVICE)


class Far:
    """Counter of the blocks that may still come from the disk: its link has room for `most`."""

    def __init__(self, places: Places, most: int) -> None:
        self._places, self._left = places, most

    def fits(self, name: Name) -> bool:
        """True if a block is not on the disk, or may still cross the disk's link; in that case the
        room for others shrinks by one.
        """
        if self._places.at[name] is not Tier.SSD:
            return True
        self._left -= 1
        return self._left >= 0


def births(rotation: Rotation, steps: int) -> int:
    """Number of blocks that will be new within `steps` steps, for which room must be made."""
    number = 0
    for sequence in (*rotation.running, *rotation.coming(steps)):
        needed = ceil_div(sequence.tokens + steps, rotation.block_tokens)
        number += max(0, needed - len(sequence.blocks))
    return number


def crowded(
    rotation: Rotation,
    lacking: Iterable[Name],
    steps: int,
    step_ps: int,
    block_ps: int,
    queued: int,
) -> bool:
    """True if the link cannot bring some request's blocks before its turn begins.

    `queued` is the time in picoseconds of copies that were requested already.
    """
    counts = Counter(name.fingerprint for name in lacking)
    for opening, sequence in zip(rotation.openings(steps), rotation.queue, strict=False):
        queued += counts[sequence.id] * block_ps
        if queued > (opening + 1) * step_ps:
            return True
    return False
