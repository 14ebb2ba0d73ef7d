"""Rows of each command, and the seconds that each may take. Imports nothing that a GPU needs.

A command's limits add up to `COMMAND_S` at most: on many machines it is ended after ten minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

COMMAND_S = 540.0
LEAST = 0.25
"""Part of its limit that a row needs: with less time left it is not begun."""


@dataclass(frozen=True)
class Step:
    """A function that makes rows, named by its place in the package, and its time
    limit in seconds.
    """

    place: str
    limit_s: float

    @property
    def name(self) -> str:
        """Name of a row for steps whose rows do not name themselves."""
        return ".".join(self.place.rsplit(".", 2)[1:])

    @property
    def least_s(self) -> float:
        return LEAST * self.limit_s


def _steps(**limits: float) -> tuple[Step, ...]:
    """Steps of a command. Each keyword is a module and a function of the package, with two
    underscores for the dot; its value is the time limit.
    """
    places = (name.replace("__", ".", 1) for name in limits)
    return tuple(
        Step(f"benchmarks.gpu.{place}", limit_s)
        for place, limit_s in zip(places, limits.values(), strict=True)
    )


COMMANDS = {
    "smoke": _steps(
        device__free=15,
        imports__paid=285,
        decode__streamed_is_right=15,
        graphs__replayed=15,
        engines__checked=30,
        engines__eagerly=50,
        engines__with_graphs=50,
        engines__compiled=80,
    ),
    "test": _steps(
        device__free=30,
        contract__kept=120,
        decode__streamed_is_right=60,
        graphs__replayed=40,
        graphs__failed=40,
        processes__passing=120,
        peers__lent=60,
    ),
    "texts": _steps(
        device__free=30,
        engines__alike_eagerly=120,
        engines__alike_with_graphs=140,
        engines__alike_compiled=220,
    ),
    "backends": _steps(
        device__free=30,
        backends__eagerly=220,
        backends__with_graphs=290,
    ),
    "bench": _steps(
        device__free=30,
        memory__layer_load=40,
        enqueuing__streamed_layers=40,
        memory__small_beside_a_layer=50,
        memory__handover=50,
        memory__one_more=40,
        memory__between_processes=40,
        processes__exported=60,
        memory__locking=30,
        prices__of_calls=30,
        coherent__link=30,
        decode__at_the_cap=70,
    ),
    "layers": _steps(device__free=30, as_served__alike=200, layers__measured=310),
    "together": _steps(
        device__free=30,
        together__plain=200,
        together__with_mps=200,
        others__kvcached=110,
    ),
    "others": _steps(device__free=30, others__prefetch=270, others__sleep_mode=240),
    "stock": _steps(device__free=30, stock__against=510),
    "many": _steps(device__free=30, many__served=510),
    "serve": _steps(device__free=30, serving__compiled=510),
    "serve-graphs": _steps(device__free=30, serving__with_graphs=510),
}
