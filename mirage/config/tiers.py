"""Section `tiers`: memory for KV blocks that the device has no room for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from mirage.config.device import DeviceSection
from mirage.config.strict import Strict
from mirage.config.values import Bytes, FilePath


class HostTier(Strict):
    """Host memory for KV blocks of all tenants, below the device (docs/tiers.md)."""

    bytes: Bytes
    policy: Literal["lru", "arc"] = "lru"
    """Order in which blocks of one tenant are evicted: the least recently used first (`lru`), or by
    adaptive replacement (`arc`).
    """


class Peer(Strict):
    """Peer: memory that one other device lends; written as a size alone on a host."""

    bytes: Bytes
    device: int | None = Field(default=None, ge=0)
    """Index of the GPU, counted as `device.index` is; None on a host, whose memory stands in for a
    GPU.
    """


def parse_peer(value: Any) -> Any:
    """Peer as a mapping: a size alone, ``2GiB``, becomes ``{bytes: 2GiB}``."""
    return value if isinstance(value, (dict, Peer)) else {"bytes": value}


class PeerTier(Strict):
    """Idle memory of other devices for KV blocks, above host memory (docs/tiers.md)."""

    devices: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")],
        Annotated[Peer, BeforeValidator(parse_peer)],
    ] = Field(min_length=1)
    """Peers by name, each with the most bytes that it lends."""
    link_gb_s: float | None = Field(default=None, gt=0, le=1e6)
    """Host only: imitate a link of so many GB (1e9 bytes) a second; None copies at full speed."""
    backed: bool = True
    """True if KV blocks are copied to host memory before a peer gets its memory back; False if they
    are dropped.
    """
    experts: bool = True
    """True if peers also keep copies of experts that were given away (`remap.experts`)."""

    @property
    def bytes_per_s(self) -> float | None:
        """Speed of the imitated link in bytes a second; None if no link is imitated."""
        return None if self.link_gb_s is None else self.link_gb_s * 1e9

    @property
    def bytes(self) -> int:
        """Most bytes that all peers lend together."""
        return sum(self.lent.values())

    @property
    def lent(self) -> dict[str, int]:
        """Bytes that each peer lends at most, by its name."""
        return {name: peer.bytes for name, peer in self.devices.items()}

    @property
    def gpus(self) -> dict[str, int]:
        """Index of each peer that is a GPU, by its name."""
        found = {name: peer.device for name, peer in self.devices.items()}
        return {name: device for name, device in found.items() if device is not None}


class SsdTier(Strict):
    """A folder on a disk for KV blocks that the host pool has no room for (docs/tiers.md)."""

    directory: FilePath
    """Folder of the blocks. In the file it is relative to the file's folder; `load` makes it
    absolute.
    """
    bytes: Bytes
    keep: bool = False
    """True if blocks outlive a restart of the server."""
    save_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """With `keep`: most seconds that a stopping server spends on writing blocks that are in host
    memory alone.
    """


class TiersSection(Strict):
    """Tiers: memory for KV blocks that the device has no room for."""

    host: HostTier | None = None
    peer: PeerTier | None = None
    ssd: SsdTier | None = None

    @model_validator(mode="after")
    def _peers_are_above_host_memory(self) -> TiersSection:
        if self.peer is not None and self.host is None:
            raise ValueError("peer needs a host pool below it: set tiers.host.bytes as well")
        return self

    @model_validator(mode="after")
    def _a_disk_is_reached_through_host_memory(self) -> TiersSection:
        if self.ssd is not None and self.host is None:
            raise ValueError("ssd needs a host pool above it: set tiers.host.bytes as well")
        return self


def check_peers(peer: PeerTier, device: DeviceSection) -> None:
    """Raises `ValueError` for peers that do not suit the device. A peer of a host must name no GPU.
    On a GPU no link may be imitated, and each peer must name a GPU that is neither this device nor
    another peer's.
    """
    if device.kind == "host":
        for name, gpu in peer.gpus.items():
            raise ValueError(f"tiers.peer.devices.{name}.device is {gpu}: leave it out on a host")
        return
    if peer.link_gb_s is not None:
        raise ValueError("tiers.peer.link_gb_s imitates a link: leave it out on a GPU")
    taken = {device.index: "device.index"}
    for name, one in peer.devices.items():
        if one.device is None:
            raise ValueError(
                f"tiers.peer.devices.{name} names no GPU: write {{device: 1, bytes: 2GiB}}"
            )
        if one.device in taken:
            raise ValueError(
                f"tiers.peer.devices.{name}.device is {one.device}, as {taken[one.device]} is: "
                "name another GPU"
            )
        taken[one.device] = f"tiers.peer.devices.{name}.device"
