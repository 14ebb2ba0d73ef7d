"""Section `device`: the memory that all tenants share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from mirage.config.strict import Strict
from mirage.config.values import LARGEST_BYTES, Bytes, Whole, parse_bytes
from mirage.paths import expanded
from mirage.units import MIB

PAGE = {"host": 65536, "cuda": None}
"""Default bytes of a page by kind of device; None: as large as the models allow."""
LEAST_PAGE = {"host": 4096, "cuda": 2 * MIB}
"""Smallest page in bytes by kind of device: that of operating systems, and one that all GPUs of
today map.
"""
CHUNK = {"host": 16 * MIB, "cuda": 128 * MIB}
"""Default bytes of a layer that are copied at a time, by kind of device. On a host, whose link is
imitated, copies of KV blocks wait for one such chunk. On a GPU each chunk takes 8 to 15 us of the
stepping thread (H200).
"""
LEAST_CHUNK = MIB


def parse_page(value: Any) -> int | None:
    """Bytes as `parse_bytes` reads them; None for ``"auto"`` or no value."""
    return None if value in (None, "auto") else parse_bytes(value)


class DeviceSection(Strict):
    """The memory that all tenants share: a part of the host's, or of one GPU's."""

    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,31})?$")
    """Name of the device where a server has several; else empty. Only a device with a name can be
    without tenants.
    """
    kind: Literal["host", "cuda"] = "host"
    index: Whole = 0
    """Index of the GPU, as ``nvidia-smi`` counts."""
    graphs: bool = Field(default_factory=lambda data: data["kind"] == "cuda")
    """On a GPU: True to replay CUDA graphs. While layers stream, the graph of a step is replayed in
    pieces.
    """
    compile: bool = Field(default_factory=lambda data: data["kind"] == "cuda")
    """Let vLLM compile the computation between two attentions, as it does by default."""
    memory: Bytes
    """Bytes that all tenants share. On a GPU, leave memory free beside them for the other needs of
    each engine: see configuring.md.
    """
    page: Annotated[int | None, BeforeValidator(parse_page)] = Field(
        default_factory=lambda data: PAGE[data["kind"]], le=LARGEST_BYTES
    )
    """Bytes of a physical page, the unit of mapping: a power of two, on a GPU at least 2 MiB. None
    is ``auto`` (on a GPU only): as large as the models allow.
    """
    copy_chunk: Bytes = Field(default_factory=lambda data: CHUNK[data["kind"]])
    """Bytes of a layer that are copied at a time. On a device that does one copy at a time, copies
    of a step's inputs and of KV blocks wait until the chunk is through.
    """
    link_gb_s: float | None = Field(default=None, gt=0, le=1e6)
    """Host only: imitate a link of so many GB (1e9 bytes) a second; None copies at full speed."""

    profile: Annotated[str | None, BeforeValidator(expanded)] = Field(default=None, min_length=1)
    """Name in configs/hardware, or a hardware file as `mirage profile` writes. It is for
    predictions before an engine runs; engines measure their own layers and steps.
    """

    @property
    def link_bytes_per_s(self) -> float | None:
        """Speed of the imitated link in bytes a second; None if no link is imitated."""
        return None if self.link_gb_s is None else self.link_gb_s * 1e9

    @model_validator(mode="after")
    def _has_its_own_link(self) -> DeviceSection:
        if self.kind == "cuda" and self.link_gb_s is not None:
            raise ValueError(
                "link_gb_s works only with kind: host, because a GPU has its own link: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _graphs_are_of_a_gpu(self) -> DeviceSection:
        if self.kind == "host" and self.graphs:
            raise ValueError("graphs works only with kind: cuda: leave it out")
        return self

    @model_validator(mode="after")
    def _chunk_is_no_crumb(self) -> DeviceSection:
        if self.copy_chunk < LEAST_CHUNK:
            raise ValueError(f"copy_chunk is {self.copy_chunk} bytes: use {LEAST_CHUNK} or more")
        return self

    @model_validator(mode="after")
    def _page_is_power_of_two(self) -> DeviceSection:
        least = LEAST_PAGE[self.kind]
        if self.page is None and self.kind == "host":
            raise ValueError("page: auto works only with kind: cuda: write the bytes of a page")
        if self.page is not None and (self.page < least or self.page & (self.page - 1)):
            raise ValueError(f"page is {self.page} bytes: use a power of two from {least} bytes")
        return self
