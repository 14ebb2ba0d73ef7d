"""When an engine looks at whom its steps route to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from host_memory import EXPERTS, LAYERS, HostMemory

from mirage.engine.experts import ExpertLayer, hook
from mirage.streaming.experts import LOOK_EVERY
from mirage.streaming.routing import OBSERVE_CALLS

pytestmark = pytest.mark.engine


class Ids:
    """Of three tokens, on a device: whoever looks at them waits for it."""

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind)
        self.looked = 0

    def unique(self) -> torch.Tensor:
        self.looked += 1
        return torch.tensor([-1, 0, 2])


def steps(host: HostMemory, ids: Ids, count: int) -> None:
    for _ in range(count):
        for kernel in host.kernels:
            kernel.apply(*range(5), ids)


@pytest.fixture
def host() -> Any:
    made: Any = HostMemory(experts=True)
    made.kernels = [SimpleNamespace(apply=lambda *_: None) for _ in range(LAYERS)]
    layers = [ExpertLayer(number, [], kernel) for number, kernel in enumerate(made.kernels)]
    hook(layers, made.memory.giver)
    yield made
    made.close()


def test_ids_on_a_device_are_waited_for_now_and_then(host: Any) -> None:
    ids, giver = Ids("cuda"), host.memory.giver
    steps(host, ids, LOOK_EVERY - 1)
    assert not ids.looked
    steps(host, ids, 1)
    assert ids.looked == LAYERS, "of a step all layers"
    steps(host, ids, LOOK_EVERY * (OBSERVE_CALLS - 1))
    assert ids.looked == LAYERS * OBSERVE_CALLS
    assert giver.observed() == pytest.approx([0, 0, LAYERS, 2 * LAYERS]), "or none is ever given"


def test_ids_on_the_host_are_seen_in_every_step(host: Any) -> None:
    ids = Ids("cpu")
    steps(host, ids, 3)
    assert ids.looked == 3 * LAYERS


def test_with_experts_away_every_step_is_seen(host: Any) -> None:
    ids, giver = Ids("cuda"), host.memory.giver
    giver.set(0, 0, 1)
    assert EXPERTS.count == 3
    steps(host, ids, 3)
    assert ids.looked == 3 * LAYERS
