"""Steps from one model per device to models that move; each step changes one thing. Data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SizeStep:
    """One step: the freedoms that a placement has."""

    name: str
    meaning: str
    policy: str
    shared: bool = True
    """True if several models may be on one device."""
    chosen: bool = True
    """True if a model may have any number of replicas; False: as many as with one model per
    device.
    """
    sleeps: bool = False
    stands: bool = False
    """True if the placement is made with the load of the previous window, as when later load is
    unknown.
    """
    moves: bool = False
    """True if the placement changes during the window."""


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
"""Largest pressure on a replica for models that share no device: KV bytes that its requests want,
per byte that they can have. The values are tried in this order.
"""
