"""Device memory of one engine: pages, layers and KV extents, under one grant.

It changes between steps only, in the thread that holds the engine (`mailbox.py`).
"""

from __future__ import annotations

from collections.abc import Collection

from mirage.engine.backend import make_backend
from mirage.engine.keeping import Keeping
from mirage.engine.kvbuffer import KVBuffer
from mirage.engine_settings import EngineSettings
from mirage.streaming.experts import ExpertStreamer
from mirage.streaming.transfer import LayerStreamer
from vmm.host import HostBuffer
from vmm.pages import PagePool

UNLIMITED = 1 << 62


class DeviceMemory:
    """Pages of this process and their contents. `StartUp` fills it."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.backend = make_backend(settings)
        self.driver, self.compute = self.backend.driver, self.backend.compute
        self.pool = PagePool(self.driver, UNLIMITED)
        self.streamer: LayerStreamer | None = None
        """Streamer of the layers; None while they stay where vLLM put them."""
        self.kv: KVBuffer | None = None
        self.masters: list[HostBuffer] = []
        """Parameters of each layer that can move, in host memory; empty if the keeper has them."""
        self.kept: Keeping | None = None
        """Holder of the masters that the keeper has and this engine uses, if any: they outlive this
        process. None before layers are placed."""
        self.layers = 0
        """Number of decoder layers."""
        self.layer_bytes = self.fixed_bytes = 0
        """Bytes of one layer, and of everything that never moves."""
        self.moves = False
        """True if layers are in the pool's pages, or will be."""
        self.pieces = False
        """True if pieces stream instead of whole layers, so that graphs run between attentions."""
        self.compiled = False
        """True if steps are compiled, and proven to compute the same while layers stream."""
        self.kv_outlives_steps = False
        """True if work on KV blocks may still be in progress when a step's output has arrived."""
        self.emptied: set[int] = set()
        """KV extents that at some time since the last step began had no block of a request."""

    # -- what is where ------------------------------------------------------------------

    @property
    def layers_remapped(self) -> int:
        """Number of layers whose memory was given away."""
        return self.streamer.layers_remapped if self.streamer else 0

    @property
    def stream_slots(self) -> int:
        """Number of slots that the streamed layers share."""
        return self.streamer.stream_slots if self.streamer else 0

    @property
    def giver(self) -> ExpertStreamer | None:
        """Streamer, if it can give experts away; else None."""
        return self.streamer if isinstance(self.streamer, ExpertStreamer) else None

    @property
    def experts(self) -> int:
        """Number of experts of each layer that were given away."""
        return self.giver.experts if self.giver else 0

    @property
    def absent(self) -> bool:
        """True if no layer has memory."""
        return self.streamer is not None and self.streamer.absent

    @property
    def streaming(self) -> bool:
        """True if any layer is loaded in each step, or is still on its way back."""
        return self.streamer is not None and self.streamer.streaming

    @property
    def interrupted(self) -> bool:
        """True if this step has to stop between layers: to wait for layers or experts, or to read
        which experts it routes to.

        No graph of a whole step may run then.
        """
        return self.streaming or (self.giver is not None and self.giver.looks)

    @property
    def outside_bytes(self) -> int:
        """Bytes of device memory outside the page pool, which never move."""
        return self.fixed_bytes + (0 if self.moves else self.layers * self.layer_bytes)

    def held_bytes(self, kv_extents: int, extent_bytes: int) -> int:
        """Return the bytes of device memory held now: everything that never moves, and the pages of
        the pool. A static engine has no pages: its KV cache is `kv_extents` extents of
        `extent_bytes` bytes."""
        kv = self.pool.held_bytes if self.settings.elastic else kv_extents * extent_bytes
        return self.outside_bytes + kv

    def layer_pages(self, remapped: int, experts: int) -> int:
        """Return the number of pages that layers, slots and spare frames of experts take while
        `remapped` layers, or `experts` experts of each layer, are given away; 0 if no layer can
        move."""
        if self.giver is not None:
            return self.giver.pages(remapped, experts)
        if self.streamer is None:
            return 0
        return (len(self.streamer.layers) - remapped) * self.streamer.frame_pages

    def affordable_extents(self) -> int:
        """Return the number of KV extents that could be mapped with the pages that the grant
        leaves."""
        if self.kv is None:
            return 0
        return self.pool.available * self.settings.page // self.kv.extents.extent_bytes

    # -- steps --------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begin a step. If pieces stream, a step begins in the middle of the last piece, so it
        waits here until that piece is loaded.

        Raise `TransferError` if layers are absent.
        """
        if self.streamer is None:
            return
        self.streamer.begin()
        if self.pieces and self.streaming:
            self.streamer.before(len(self.streamer.layers) - 1)

    def left_blocks(self) -> Collection[int]:
        """Return the blocks of the extents in `emptied`, and clear that set. Call it before a step
        tells the model runner of new blocks."""
        if self.kv is None or not self.emptied:
            return ()
        size = self.kv.extents.blocks_per_extent
        left = {n for e in self.emptied for n in range(e * size, (e + 1) * size)}
        self.emptied.clear()
        return left

    # -- moves, between steps -----------------------------------------------------------

    def regrant(self, grant_bytes: int) -> None:
        """Set a new grant, in bytes, for everything that this engine holds. The pool gets what is
        left beside the bytes that never move, and releases spare pages beyond that."""
        self.pool.set_grant(max(0, grant_bytes - self.outside_bytes))

    def move_layers(self, remapped: int, slots: int, experts: int = 0) -> None:
        """Give layers and experts away or take them back, between steps.

        Afterwards `remapped` layers, or `experts` experts of each layer, are away in total, and
        streamed layers share `slots` slots. Raises `TransferError` if that set is impossible (such
        as layers and experts at the same time) or was left half changed, and `GrantExceeded` or
        `OutOfMemory` if memory for layers that come back is not granted or not free.
        """
        assert self.streamer is not None, "only policy mirage moves layers"
        if self.giver is not None:
            self.giver.set(remapped, slots, experts)
        else:
            self.streamer.set(remapped, slots)

    def map_extents(self, extents: list[int]) -> list[int]:
        """Map and clear the first of these KV extents, as many as the device has memory for, and
        return those. Raises `GrantExceeded` if all of them would exceed the grant."""
        assert self.kv is not None
        return self.kv.extents.map_most(extents)

    def unmap_extents(self, extents: list[int]) -> None:
        """Release the memory of KV extents that no scheduled step touches.

        It does not wait for the device: a step's output arrives after everything that the step does
        to its blocks. Only if `kv_outlives_steps` is true it waits for all work on the device.
        """
        assert self.kv is not None
        if self.kv_outlives_steps:
            self.compute.synchronize()
        self.kv.extents.unmap(extents)

    def uncache(self) -> None:
        """Return to the device the unused memory that torch's allocator caches. Call it between
        steps."""
        self.backend.uncache()

    # -- checks -------------------------------------------------------------------------

    def self_check(self) -> None:
        """Check in O(1), after each move, that the pages in use are the layers' and the KV cache's.

        Raise `RuntimeError` if not, which ends the engine: its memory could no longer be trusted.
        """
        layers = self.layer_pages(self.layers_remapped, self.experts) * self.settings.page
        kv = 0
        if self.kv is not None:
            kv = len(self.kv.extents.mapped) * self.kv.extents.extent_bytes
        if self.pool.in_use_bytes != layers + kv:
            raise RuntimeError(
                f"{self.pool.in_use_bytes} bytes are in use, layers {layers} and KV cache {kv}"
            )

    def check_integrity(self) -> None:
        """Raise `VmmError` or `TransferError` if pages, layers and extents do not add up. It looks
        at every page and extent."""
        self.pool.check_integrity()
        self.driver.check_integrity()
        if self.streamer is not None:
            self.streamer.check_integrity()
        if self.kv is not None:
            self.kv.extents.check_integrity()
