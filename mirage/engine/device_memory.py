"""Device memory of one engine: pages, layers and KV extents, under one grant.

It changes between steps only, on the thread that holds the engine.
"""

from __future__ import annotations

from collections.abc import Collection

from mirage.engine.backend import make_backend
from mirage.engine.keeping import Keeping
from mirage.engine.kvbuffer import KVBuffer
from mirage.engine.settings import EngineSettings
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
        """Parameters of each layer that can move, in host memory."""
        self.kept: Keeping | None = None
        """Masters in the keeper, which outlive this process; None if masters are in `masters`."""
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
        """True if this step stops inside: for layers, for experts, or to read the routing.

        No graph of a whole step may run then.
        """
        return self.streaming or (self.giver is not None and self.giver.looks)

    @property
    def outside_bytes(self) -> int:
        """Bytes of device memory outside the page pool, which never move."""
        return self.fixed_bytes + (0 if self.moves else self.layers * self.layer_bytes)

    def held_bytes(self, kv_extents: int, extent_bytes: int) -> int:
        """Return the bytes of device memory held now. Static engines hold vLLM's own
        allocations."""
        kv = self.pool.held_bytes if self.settings.elastic else kv_extents * extent_bytes
        return self.outside_bytes + kv

    def layer_pages(self, remapped: int, experts: int) -> int:
        """Return the number of pages of layers, slots and spare frames of experts; 0 if no layer
        moves."""
        if self.giver is not None:
            return self.giver.pages(remapped, experts)
        if self.streamer is None:
            return 0
        return (len(self.streamer.layers) - remapped) * self.streamer.frame_pages

    def affordable_extents(self) -> int:
        """Return the number of extents that could be mapped with the available pages."""
        if self.kv is None:
            return 0
        return self.pool.available * self.settings.page // self.kv.extents.extent_bytes

    # -- steps --------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begin a step. The last piece extends into the next step, so it is awaited here.

        Raise `TransferError` if layers are absent.
        """
        if self.streamer is None:
            return
        self.streamer.begin()
        if self.pieces and self.streaming:
            self.streamer.before(len(self.streamer.layers) - 1)

    def left_blocks(self) -> Collection[int]:
        """Return the blocks of emptied extents and clear `emptied`: before a step tells the runner
        of new blocks."""
        if self.kv is None or not self.emptied:
            return ()
        size = self.kv.extents.blocks_per_extent
        left = {n for e in self.emptied for n in range(e * size, (e + 1) * size)}
        self.emptied.clear()
        return left

    # -- moves, between steps -----------------------------------------------------------

    def regrant(self, grant_bytes: int) -> None:
        """Set a new grant, in bytes, for everything that this engine holds."""
        self.pool.set_grant(max(0, grant_bytes - self.outside_bytes))

    def move_layers(self, remapped: int, slots: int, experts: int = 0) -> None:
        """Change the streamed set, or the experts that are away, between steps.

        Raises `TransferError` and `GrantExceeded`.
        """
        assert self.streamer is not None, "only policy mirage moves layers"
        if self.giver is not None:
            self.giver.set(remapped, slots, experts)
        else:
            self.streamer.set(remapped, slots)

    def map_extents(self, extents: list[int]) -> list[int]:
        """Back and clear the first of these KV extents that the device has memory for; return
        them."""
        assert self.kv is not None
        return self.kv.extents.map_most(extents)

    def unmap_extents(self, extents: list[int]) -> None:
        """Release the memory of KV extents that no scheduled step touches.

        Unmapping does not itself wait for the device. A step's output arrives after everything that
        the step does to its blocks, unless `kv_outlives_steps`.
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
        """Raise if pages, layers and extents do not add up."""
        self.pool.check_integrity()
        self.driver.check_integrity()
        if self.streamer is not None:
            self.streamer.check_integrity()
        if self.kv is not None:
            self.kv.extents.check_integrity()
