"""Hardware profiles and model shapes: YAML files in `configs/`, every number with its source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, model_validator

import configs
from mirage.config import HARDWARE_FILES, ConfigError, Count, Strict, read_yaml, validated
from mirage.facts import ExpertFacts
from mirage.geometry import least_extents
from mirage.paths import expanded
from mirage.protocol import ModelShape
from mirage.units import GIB, MIB, align_up, ceil_div
from vmm.space import extent_blocks

UNSEEN = 1e9
"""GB/s or TFLOP/s above those of any machine. A profile states this much if no measured step was
bound by the quantity.
"""


class Sourced(Strict):
    """A number that was measured, published or chosen, and its source."""

    value: float = Field(ge=0, le=1e12)
    source: str = Field(min_length=4)


class SourcedPositive(Sourced):
    """A `Sourced` number above 0."""

    value: float = Field(ge=1e-9, le=1e12)


class MediumSpeed(Strict):
    """Size and speed of one medium below the device that can hold KV blocks. Binary GiB, decimal
    GB/s.
    """

    capacity_gib: SourcedPositive
    bandwidth_gb_s: SourcedPositive
    """Speed in each direction; for host memory at most that of the link."""
    latency_us: Sourced
    """Microseconds until the first byte of a copy."""


class HardwareTiers(Strict):
    """Media of a machine and their sizes; None for a medium that is absent or unknown."""

    peer: MediumSpeed | None = None
    """Memory of another GPU."""
    host: MediumSpeed | None = None
    ssd: MediumSpeed | None = None


class Hardware(Strict):
    """One device and its link to host memory. Decimal GB/s and TFLOP/s, binary GiB and MiB."""

    title: str
    memory_gib: SourcedPositive
    bandwidth_gb_s: SourcedPositive
    bandwidth_efficiency: SourcedPositive
    """Part of the bandwidth that a decode step reaches, 0 to 1."""
    compute_tflop_s: SourcedPositive
    compute_efficiency: SourcedPositive
    link_gb_s: SourcedPositive
    """Speed from host to device while nothing is copied the other way."""
    link_mixed_gb_s: SourcedPositive
    """Speed in each direction while both are used."""
    step_overhead_ms: Sourced
    """Constant milliseconds that each step takes, whatever it computes."""
    sequence_overhead_us: Sourced
    """Additional microseconds for each sequence in a step."""
    reserved_mb: Sourced
    """Megabytes (1e6 bytes) of each tenant's share that the context and activations take."""
    page_mib: SourcedPositive
    apply_ms: Sourced
    """Milliseconds for which an engine pauses when it acts on an allotment."""
    message_ms: Sourced
    """Milliseconds from an engine to the control server or back, including the decision."""
    tiers: HardwareTiers | None = None
    """Media below the device; used by the simulator alone."""

    @model_validator(mode="after")
    def _is_possible(self) -> Hardware:
        page = self.page_mib.value * MIB
        if page < 4096 or page != int(page) or int(page) & (int(page) - 1):
            raise ValueError(f"page_mib {self.page_mib.value:g}: use a power of two from 4 KiB")
        for name in ("bandwidth_efficiency", "compute_efficiency"):
            if (value := getattr(self, name).value) > 1:
                raise ValueError(f"{name} {value:g} is above 1, the whole peak: use 1 or less")
        if self.link_mixed_gb_s.value > self.link_gb_s.value:
            raise ValueError(
                f"link_mixed_gb_s {self.link_mixed_gb_s.value:g} is above link_gb_s, "
                f"{self.link_gb_s.value:g}: lower it"
            )
        return self

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib.value * GIB)

    @property
    def page_bytes(self) -> int:
        return int(self.page_mib.value * MIB)

    @property
    def sees_memory(self) -> bool:
        """True if the bandwidth was measured; False if the profile found no step that was bound by
        it.
        """
        return self.bandwidth_gb_s.value < UNSEEN

    @property
    def bytes_per_s(self) -> float:
        """Memory bandwidth that a step reaches, in bytes a second."""
        return self.bandwidth_gb_s.value * 1e9 * self.bandwidth_efficiency.value

    @property
    def flop_per_s(self) -> float:
        """Floating-point operations per second that a step reaches."""
        return self.compute_tflop_s.value * 1e12 * self.compute_efficiency.value


class Model(Strict):
    """The shape of one decoder-only transformer: all that its sizes and its work depend on."""

    title: str
    source: str = Field(min_length=4)
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_size: Count
    ffn: Count
    ffn_matrices: Annotated[int, Field(ge=2, le=3)]
    """3 if the feed-forward part is gated, else 2."""
    experts: Count = 1
    active_experts: Count = 1
    vocabulary: Count
    positions: Annotated[int, Field(ge=0)] = 0
    """Rows of a learned position table; 0 if the model has none."""
    tied: bool
    """True if the output head shares the embedding table."""
    vectors: Annotated[int, Field(ge=0)] = 0
    """Weights of a layer outside its large matrices: biases, norms, the router of experts. They are
    under 0.1 % of a large model's, and 0 in shapes where they were not counted.
    """
    weight_bytes: Count = 2
    max_len: Count

    @model_validator(mode="after")
    def _is_possible(self) -> Model:
        for part, whole in (("active_experts", "experts"), ("kv_heads", "heads")):
            if getattr(self, part) > getattr(self, whole):
                raise ValueError(
                    f"{part} {getattr(self, part)} is more than {whole}, {getattr(self, whole)}"
                )
        return self

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_size

    @property
    def layer_weights(self) -> int:
        """Number of weights of one decoder layer."""
        attention = 2 * self.hidden * (self.attention_width + self.kv_heads * self.head_size)
        return attention + self.experts * self._expert_weights + self.vectors

    @property
    def active_layer_weights(self) -> int:
        """Number of weights of a layer that one token passes through."""
        return self.layer_weights - (self.experts - self.active_experts) * self._expert_weights

    @property
    def head_weights(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def other_weights(self) -> int:
        """Number of weights in embeddings, positions and output head."""
        tables = self.vocabulary * (1 if self.tied else 2) + self.positions
        return tables * self.hidden

    @property
    def parameter_bytes(self) -> int:
        return (self.layers * self.layer_weights + self.other_weights) * self.weight_bytes

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.weight_bytes

    @property
    def expert_facts(self) -> ExpertFacts:
        """The experts as an engine stores them: one tensor has the last matrix of each, another the
        rest.
        """
        matrix = self.hidden * self.ffn * self.weight_bytes
        slices = (matrix * (self.ffn_matrices - 1), matrix)
        return ExpertFacts(self.layers, self.experts, slices)

    @property
    def _expert_weights(self) -> int:
        return self.ffn_matrices * self.hidden * self.ffn


def shape(
    model: Model,
    hardware: Hardware,
    block_tokens: int,
    max_len: int,
    device_bytes: int,
    parts: int = 1,
) -> ModelShape:
    """Shape that an engine of this model would send in its `Hello`.

    A layer moves in `parts` equal parts. If there is more than one, each of them counts as a layer,
    and experts stay.
    """
    page = hardware.page_bytes
    block = block_tokens * model.kv_token_bytes
    blocks = extent_blocks(block, page)
    extent = blocks * block
    reserved = int(hardware.reserved_mb.value * 1e6)
    experts = model.expert_facts
    move = model.experts > 1 and parts == 1 and experts.stay(page) is None
    return ModelShape(
        layers=model.layers * parts,
        layer_bytes=align_up(ceil_div(model.layer_weights * model.weight_bytes, parts), page),
        fixed_bytes=align_up(model.other_weights * model.weight_bytes + reserved, page),
        extent_bytes=extent,
        extent_blocks=blocks,
        block_tokens=block_tokens,
        max_extents=max(1, device_bytes // extent),
        min_extents=least_extents(ceil_div(max_len, block_tokens), blocks),
        movable_layers=model.layers * parts,
        movable_experts=experts.count - 1 if move else 0,
        expert_layers=experts.layers if move else 0,
        expert_bytes=sum(experts.slices) if move else 0,
    )


Profile = TypeVar("Profile", Hardware, Model)


def hardware(name: str, near: Path | None = None) -> Hardware:
    """The bundled hardware profile `name`, or that of the YAML file `name`, a path relative to
    the folder `near` (None: the working folder). Raises `ConfigError` if there is none, or if the
    file is wrong.
    """
    return _load("hardware", name, Hardware, near)


def of_device(name: str) -> Hardware | None:
    """The bundled profile of a GPU whose driver calls it `name`, such as ``NVIDIA GH200 480GB``;
    None if there is none.
    """
    known = (path.stem for path in (configs.HERE / "hardware").glob("*.yaml"))
    fitting = [stem for stem in known if stem in name.lower()]  # gh200 is no h200
    return hardware(max(fitting, key=len)) if fitting else None


def model(name: str, near: Path | None = None) -> Model:
    """The bundled model shape `name`, or that of the YAML file `name`, a path relative to the
    folder `near` (None: the working folder). Raises `ConfigError` if there is none, or if the file
    is wrong.
    """
    return _load("models", name, Model, near)


def _load(kind: str, name: str, schema: type[Profile], near: Path | None) -> Profile:
    path = _find(kind, name, near)
    raw: Any = read_yaml(path)
    return validated(schema, raw, path)


def _find(kind: str, name: str, near: Path | None) -> Path:
    if name.endswith(HARDWARE_FILES):
        return (near or Path()) / expanded(name)
    folder = configs.HERE / kind
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        what = "hardware profile" if kind == "hardware" else "model shape"
        raise ConfigError(
            f"no {what} is named {name!r}: known are {', '.join(known)}; "
            "or give the path of a YAML file"
        )
    return folder / f"{name}.yaml"
