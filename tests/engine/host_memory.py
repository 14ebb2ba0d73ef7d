"""An engine's memory in pages of this process, with vLLM's block pool and without a model."""

from __future__ import annotations

from types import SimpleNamespace

import tiny  # noqa: F401  (sets vLLM's environment before it is imported)
from vllm.v1.core.block_pool import BlockPool

from mirage.control.engine.extent_book import ExtentBook
from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.memory_worker import MemoryWorker
from mirage.protocol import ModelShape
from mirage.streaming.expert_layout import ExpertLayout, Piece
from mirage.streaming.experts import ExpertStreamer
from mirage.streaming.transfer import LayerFrame, LayerStreamer
from tests.settings import engine_settings
from tests.tampered.memory import Poisoning
from vmm.host import HostBuffer
from vmm.space import ExtentMap, Range

PAGE, LAYERS, LAYER_PAGES = 4096, 6, 3
LAYER_BYTES = LAYER_PAGES * PAGE
EXTENTS, START = 16, 6
"""KV extents of one page and one block each: at most, and at the start."""


EXPERTS = ExpertLayout(tuple(range(LAYERS)), 3, (Piece(0, PAGE),))
"""Experts of one page: a layer has nothing else."""


SHAPE = ModelShape(
    LAYERS,
    LAYER_BYTES,
    0,
    PAGE,
    1,
    16,
    EXTENTS,
    1,
    LAYERS,
    movable_experts=EXPERTS.most,
    expert_layers=LAYERS,
    expert_bytes=EXPERTS.nbytes,
)


def grant_of(remapped: int, extents: int, experts: int = 0) -> int:
    """Bytes of the layers and experts that stay, and of the extents."""
    away = experts * (LAYERS - 1) * EXPERTS.nbytes
    return (LAYERS - remapped) * LAYER_BYTES - away + extents * PAGE


class HostMemory:
    """Layers each of whose bytes is the layer's number plus one, and `START` mapped extents."""

    def __init__(self, experts: bool = False) -> None:
        """With `experts`, experts can be given away too."""
        self.memory = Poisoning(engine_settings(base_blocks=START, page=PAGE))
        self.memory.layer_bytes = LAYER_BYTES
        self.worker = MemoryWorker(self.memory)
        self.masters = [HostBuffer(LAYER_BYTES) for _ in range(LAYERS)]
        layers = [self._layer(index) for index in range(LAYERS)]
        memory = self.memory
        parts = memory.driver, memory.pool, layers, memory.compute
        memory.streamer = ExpertStreamer(*parts, EXPERTS) if experts else LayerStreamer(*parts)
        self.range = Range(memory.driver, EXTENTS * PAGE)
        self.extents = ExtentMap(self.range, memory.pool, [0], PAGE, EXTENTS)
        self.extents.map(range(START))
        memory.kv = SimpleNamespace(extents=self.extents)  # type: ignore[assignment]
        self.pool = BlockPool(EXTENTS, enable_caching=True, hash_block_size=16)
        self.blocks = ElasticBlocks(self.pool, ExtentBook(EXTENTS, 1, START))
        memory.regrant(grant_of(0, START))

    def _layer(self, index: int) -> LayerFrame:
        master, home = self.masters[index], Range(self.memory.driver, LAYER_BYTES)
        master.tensor().fill_(index + 1)
        home.back(0, self.memory.pool.take(LAYER_PAGES, "layer"))
        self.memory.driver.copy(home.address, master.address, LAYER_BYTES)
        return LayerFrame(index, home, master.address, LAYER_BYTES, self.memory.driver.event())

    def close(self) -> None:
        """Release all memory."""
        assert self.memory.streamer is not None
        self.memory.streamer.close()
        self.memory.driver.close()
        for master in self.masters:
            master.close()
