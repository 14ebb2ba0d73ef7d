"""Addresses of KV blocks on the device."""

from __future__ import annotations

from mirage.engine.kvbuffer import KVBuffer


class DeviceBlocks:
    """Contiguous runs of each block of an engine's KV buffer."""

    def __init__(self, kv: KVBuffer) -> None:
        self._starts = [kv.range.address + offset for offset in kv.regions]
        self._block_bytes = kv.block_bytes

    def runs(self, block: int) -> list[tuple[int, int]]:
        """Return (address, bytes) of each run of a block; together they are the block over all
        layers."""
        return [(start + block * self._block_bytes, self._block_bytes) for start in self._starts]
