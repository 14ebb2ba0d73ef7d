"""Child process: engines whose weights a keeper has, stepped as `identity.py` does.

python keeping_run.py MODELS OUT MODE SOCKET FAMILY...   MODE: one of `identity.MODES`. With -odd,
loading leaves a different value in the model each time. With -hollow, layers first have only the
memory with which an engine can serve.

A FAMILY is one of `tiny.FAMILIES`, or of the zoo.

For each family it writes what `identity.py` writes, and: whether its master was there, the number
of copies that the engine made itself, the number of proofs (records of proofs are in the socket's
folder), and the bytes that it held once its layers had places.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

import identity
import zoo_run
from tiny import FAMILIES as identity_families
from tiny import LAYERS

from mirage.engine import derived, keeping, params, proof, startup
from mirage.keeper.client import KeeperClient

ODD, HOLLOW = "-odd", "-hollow"
LEAST = {"layers_remapped": LAYERS - 3, "stream_slots": 2, "base_blocks": 8}
asked: list[bool] = []
copied: list[int] = []
proven: list[str] = []
held: list[int] = []


class Watched(KeeperClient):
    """Client of the keeper that records each master, and whether it was complete."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        asked.append(self.whole)


class Counted(params.PlacedLayers):
    """Layers that record the masters which the engine makes itself, and which end with this
    process.
    """

    def _own_masters(self, driver: Any, placed: Any) -> list[int]:
        copied.append(len(placed))
        return super()._own_masters(driver, placed)


class Placing(startup.StartUp):
    """Start of an engine that records the bytes of the page pool once the layers are placed."""

    def _place_layers(self, proof: Any) -> None:
        super()._place_layers(proof)
        held.append(self.memory.pool.held_bytes)


class Proven(proof.Proof):
    """Proof that records each time it held."""

    def moved(self, streamer: Any, begin: Any) -> None:
        super().moved(streamer, begin)
        proven.append("held")


def make_odd() -> None:
    """Let loading a model leave a value that differs at each start."""
    seen, times = derived.seen, count()

    def other(*given: Any) -> dict[str, str]:
        return seen(*given) | {"odd": f"{os.getpid()} {next(times)}"}

    derived.seen = other


def main(models: str, out: str, mode: str, socket: str, *families: str) -> None:
    from mirage.engine import elastic_worker

    if mode.endswith(ODD):
        make_odd()
        mode = mode.removesuffix(ODD)
    hollow, mode = mode.endswith(HOLLOW), mode.removesuffix(HOLLOW)
    keeping.KeeperClient = Watched
    startup.PlacedLayers, startup.Proof = Counted, Proven
    elastic_worker.StartUp = Placing
    settings = identity.MODES[mode]
    assert settings is not None
    if hollow:
        settings |= LEAST
    settings |= {"keeper": socket, "proofs": str(Path(socket).with_name("proofs"))}
    if mode.startswith("cuda"):
        identity.compute_beside_gpu()
    results = {}
    for family in families:
        if len(families) > 1:  # a tenant that has other weights lets go of those before
            settings["tenant"] = family
        asked.clear()
        copied.clear()
        proven.clear()
        held.clear()
        if family in identity_families:
            facts = identity.generate(family, Path(models), mode)
        else:
            facts = zoo_run.prove(zoo_run.FAMILIES[family], Path(models), mode)
        found = {"whole": list(asked), "copied": sum(copied), "proven": len(proven)}
        results[family] = facts | found | {"held": list(held)}
        Path(out).write_text(json.dumps(results))
        gc.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
