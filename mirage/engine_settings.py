"""Settings of an engine at start: the ``mirage`` part of vLLM's ``--additional-config``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mirage.config import NO_EXPERTS, Kept, Policy
from mirage.problems import first_problem


class StepSettings(BaseModel):
    """Settings about how an engine's steps run on the device. The probe gets only these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Literal["host", "cuda"]
    pieces: bool
    """True if pieces between two attentions stream instead of whole layers."""
    compiled: bool
    """True if vLLM compiles the pieces between two attentions."""
    copy_chunk: int | None = Field(gt=0)
    """Bytes of a layer that are copied at a time; None copies it whole."""
    copy_bytes_per_s: float | None
    """Speed in bytes a second of a link that a host imitates; None: no limit."""


class EngineSettings(StepSettings):
    """Settings of one engine. `mirage serve` makes them, and the engine checks them in `from_vllm`.
    No field has a default, so that none is forgotten."""

    policy: Policy
    tenant: str
    control: str | None
    """Path of the control server's Unix socket; None: the engine runs without one."""
    tier_socket: str | None
    """Path of the host pool's socket; None: KV blocks that leave the device are lost."""
    keeper: str | None
    """Path of the weight keeper's socket; None: masters end with this engine."""
    proofs: Path | None
    """Folder with records of proofs; None: each start makes its own proof."""
    adapters: tuple[Path, ...]
    """Folders of the LoRA adapters that the engine loads at its start (``lora_modules``)."""
    page: int
    """Bytes of a page of device memory."""
    grant_bytes: int | None
    """Bytes of device memory that this engine may hold at start; None: as many as it needs."""
    base_blocks: int = Field(ge=0)
    """KV blocks mapped at start, the null block included; 0 for a model without a KV cache."""
    layers_remapped: int = Field(ge=0)
    """Layers without memory of their own at start, which stream from the first step on. Their
    weights have to be in the keeper's memory."""
    stream_slots: int = Field(ge=0)
    """Slots of the streamed layers at start; as many further layers are streamed as there are
    slots."""
    headroom_extents: int = Field(ge=0)
    lookahead_steps: int = Field(ge=0)
    kept: Kept
    """KV memory that newly admitted requests leave free for running ones."""
    first_step: bool
    """True if the engine computes a first request of its own before it serves, and reports it."""
    temporal: bool
    hold_s: float
    """Seconds for which a running request that lacks memory waits for an answer of the control
    server before vLLM may preempt; longer while the control server is heard (`GrowthHold`)."""
    moves: bool
    """False: the layers stay where vLLM puts them, whatever the policy."""
    experts: bool
    """True if experts of a mixture may be given away, where that is possible."""
    experts_on_peers: bool
    """True if peers may hold copies of experts that were given away, where the pool has peers."""
    move_s: float | None = Field(gt=0)
    """Seconds for which one step may wait while memory moves; later rounds move the rest. None: no
    limit."""

    @property
    def elastic(self) -> bool:
        """True if KV memory can grow and shrink."""
        return self.policy is not Policy.STATIC

    @property
    def experts_stay(self) -> str | None:
        """Reason why experts are not given away; None if they may be."""
        return None if self.experts else NO_EXPERTS


def from_vllm(vllm_config: Any) -> EngineSettings:
    """Return the settings of this engine. Raise `ValueError` with one line if they are missing or
    wrong."""
    raw = (vllm_config.additional_config or {}).get("mirage")
    if raw is None:
        raise ValueError(
            "--additional-config has no 'mirage' part: start the engine with `mirage serve`"
        )
    try:
        return EngineSettings.model_validate(raw)
    except ValidationError as error:
        raise ValueError(f"additional-config mirage: {first_problem(error, raw)}") from None
