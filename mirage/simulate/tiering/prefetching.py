"""TierKV's Eq. 1 and Algorithm 1: how many blocks fit a window, and which ones come ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from mirage.simulate.roofline import PS
from mirage.simulate.tiering.places import Places, Tier
from mirage.simulate.tiering.rotation import Rotation
from mirage.tiers.blocks import Name
from mirage.units import ceil_div


def fitting(window_ps: int, latency_ps: int, bytes_per_s: float, block_bytes: int) -> int:
    """Eq. 1: blocks that one link brings in a window, all of them together.

    Each block tested alone against the window would fit as well: that overcommits the link.
    """
    spare = max(0, window_ps - latency_ps)
    return int(spare * bytes_per_s / PS / block_bytes)


def wanted(rotation: Rotation, places: Places, steps: int) -> Iterator[Name]:
    """Algorithm 1: what the requests need that the scheduler reaches within so many steps.

    In the order in which it reaches them; what is on the device or comes is left out.
    """
    for sequence in rotation.coming(steps):
        for name in sequence.blocks:
            if places.at[name] is not Tier.DEVICE:
                yield name


def births(rotation: Rotation, steps: int) -> int:
    """Blocks that will be new within so many steps: for them room is made ahead."""
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
    """Whether the link cannot bring some request's blocks before its turn begins.

    `queued` are picoseconds of copies that were asked for already.
    """
    counts = Counter(name.fingerprint for name in lacking)
    for opening, sequence in zip(rotation.openings(steps), rotation.queue, strict=False):
        queued += counts[sequence.id] * block_ps
        if queued > (opening + 1) * step_ps:
            return True
    return False
