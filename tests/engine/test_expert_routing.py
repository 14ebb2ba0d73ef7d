"""Steps in which an engine reads to which experts tokens are routed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from host_memory import EXPERTS, LAYERS, HostMemory
from vllm.config import CUDAGraphMode
from vllm.forward_context import ForwardContext, override_forward_context

from mirage.engine.experts import ExpertLayer, hook
from mirage.streaming.experts import LOOK_EVERY
from mirage.streaming.routing import OBSERVE_CALLS

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def not_capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch answer that no capture is in progress; without a device it would not answer."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


class Ids:
    """Expert ids of three tokens on a device. Reading them would wait for the device, and sets
    `looked`.
    """

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind)
        self.looked = 0

    def unique(self) -> torch.Tensor:
        self.looked += 1
        return torch.tensor([-1, 0, 2])


def steps(host: HostMemory, ids: Ids, count: int) -> None:
    for _ in range(count):
        host.memory.begin_step()
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


def test_no_graph_of_a_whole_step_runs_while_one_looks_or_experts_are_away(host: Any) -> None:
    """Graphs of whole steps are not used in each step that reads the routing, and while experts are
    away. This is decided before a step chooses its graph, so it holds in all its layers.
    """
    memory, seen = host.memory, []
    for _ in range(2 * LOOK_EVERY):
        memory.begin_step()
        seen.append(memory.interrupted)
    assert [n for n, now in enumerate(seen, 1) if now] == [LOOK_EVERY, 2 * LOOK_EVERY]
    memory.begin_step()
    memory.giver.set(0, 0, 1)
    assert memory.interrupted and not memory.streaming
    memory.giver.set(0, 0, 0)
    memory.begin_step()
    assert memory.interrupted, "experts that return are layers that arrive"


def test_what_was_computed_before_requests_came_is_forgotten(host: Any) -> None:
    """Steps with which vLLM warms up and captures do not count: after `forget` the routing is not
    read in the next step.
    """
    memory = host.memory
    for _ in range(LOOK_EVERY):
        memory.begin_step()
    memory.giver.forget()
    assert not memory.interrupted
    memory.begin_step()
    assert not memory.interrupted


@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL, CUDAGraphMode.NONE])
def test_a_step_that_is_captured_whole_waits_for_nothing(
    mode: CUDAGraphMode, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The routing is never read during a capture, because a wait for the device would make that
    fail.
    """
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    context = ForwardContext.__new__(ForwardContext)
    context.cudagraph_runtime_mode = mode
    with override_forward_context(context):
        steps(host, ids := Ids("cuda"), LOOK_EVERY)
    assert not ids.looked


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
