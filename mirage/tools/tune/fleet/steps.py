"""Steps from one model a device to models that move, each by one thing more than before. Data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SizeStep:
    """One step of a ladder."""

    name: str
    meaning: str
    policy: str
    shared: bool = True
    """True if several models may be on one device."""
    chosen: bool = True
    """True if the number of replicas may be any; else as many as one model a device takes."""
    sleeps: bool = False
    stands: bool = False
    """True if the placement is made for the window before, of which alone something is known."""
    moves: bool = False
    """True if the placement changes meanwhile."""


STEPS = (
    SizeStep(
        "dedicated",
        "one model a device, and as many devices for it as its requests take",
        "static",
        shared=False,
        chosen=False,
    ),
    SizeStep("packing", "models share devices, each with a fixed part", "static", chosen=False),
    SizeStep("replicas", "any number of replicas, so that devices are filled evenly", "static"),
    SizeStep("pooling", "KV memory moves between the models of a device", "pooled"),
    SizeStep("remapping", "layers give their memory to KV as well", "mirage"),
    SizeStep("sleeping", "models that nobody asks for sleep", "mirage", sleeps=True),
    SizeStep(
        "standing",
        "the placement is made for the window before, and stays",
        "mirage",
        sleeps=True,
        stands=True,
    ),
    SizeStep(
        "moving",
        "such a placement changes over time",
        "mirage",
        sleeps=True,
        stands=True,
        moves=True,
    ),
)
PARTS = (4.0, 2.5, 1.6, 1.0, 0.65, 0.4, 0.25)
"""Pressures below which replicas keep their model on devices of its own, tried in this order."""
