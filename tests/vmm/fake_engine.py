"""Stand-in for the parts of a vLLM engine that rows of the GPU bench use; steps
have given costs.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mirage.protocol import Allotment, ModelShape

LAYERS, COMPUTE_S, LOAD_S = 8, 0.008, 0.001
SHAPE = ModelShape(
    layers=LAYERS,
    layer_bytes=1 << 20,
    fixed_bytes=0,
    extent_bytes=1 << 20,
    extent_blocks=4,
    block_tokens=16,
    max_extents=20,
    min_extents=1,
    movable_layers=LAYERS,
)


class Streamer:
    def __init__(self) -> None:
        self.calls = 0

    def before(self, index: int) -> None:
        self.calls += 1

    def after(self, index: int) -> None:
        self.calls += 1


class DeviceMemory:
    """Stand-in for the class of that name in `mirage.engine.device_memory`."""

    def __init__(self) -> None:
        self.layers_remapped, self.compiled, self.layers = 0, True, LAYERS
        self.compute = SimpleNamespace(stall_s=0.0)
        self.streamer = Streamer()

    @property
    def streaming(self) -> bool:
        return self.layers_remapped > 0

    def held_bytes(self, extents: int, extent_bytes: int) -> int:
        return 10 + extents * extent_bytes


class EngineTimes:
    """Stand-in for the class of that name in `mirage.engine.engine_times`."""

    layer_load_s = LOAD_S

    def __init__(self) -> None:
        self.told: list[float] = []

    def stepped(self, compute_s: float) -> None:
        self.told.append(compute_s)


class Worker:
    """Stand-in for our worker: each layer given away makes a step longer by `LOAD_S`."""

    def __init__(self, memory: DeviceMemory, times: EngineTimes) -> None:
        self._memory, self._times = memory, times
        self.in_pieces: list[bool] = []

    def execute_model(self) -> None:
        memory = self._memory
        self.in_pieces.append(memory.streaming)
        for index in range(memory.layers_remapped):
            memory.streamer.before(index)
            memory.streamer.after(index)
        memory.compute.stall_s += memory.layers_remapped * LOAD_S
        self._times.stepped(COMPUTE_S)


class Engine:
    """Stand-in for vLLM's `LLMEngine` in one process."""

    def __init__(self) -> None:
        self.memory, self.times = DeviceMemory(), EngineTimes()
        self.worker = Worker(self.memory, self.times)
        self.allotments: list[Allotment] = []
        self.left = 0
        self.asleep: list[object] = []
        self.extents = 4
        executor = SimpleNamespace(driver_worker=SimpleNamespace(worker=self.worker))
        book = SimpleNamespace(backed_extents=lambda: self.extents)
        scheduler = SimpleNamespace(
            worker=SimpleNamespace(memory=self.memory, times=self.times),
            shape=SHAPE,
            mailbox=SimpleNamespace(post=self._post),
            kv=SimpleNamespace(
                reconciler=SimpleNamespace(reconciled=True), blocks=SimpleNamespace(book=book)
            ),
        )
        core = SimpleNamespace(scheduler=scheduler, model_executor=executor)
        self.engine_core = SimpleNamespace(engine_core=core)

    def _post(self, allotment: Allotment) -> None:
        self.allotments.append(allotment)
        self.memory.layers_remapped, self.extents = allotment.layers_remapped, allotment.kv_extents

    def has_unfinished_requests(self) -> bool:
        return self.left > 0

    def step(self) -> list[Any]:
        self.left -= 1
        self.worker.execute_model()
        return []

    def sleep(self, level: int) -> None:
        self.asleep.append(level)

    def wake_up(self) -> None:
        self.asleep.append("awake")
