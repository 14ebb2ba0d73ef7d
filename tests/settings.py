"""Settings of engines in tests: those of a lone engine on a host, and what a test changes."""

from __future__ import annotations

from typing import Any

from mirage.engine_settings import EngineSettings

ALONE: dict[str, Any] = {
    "device": "host",
    "pieces": False,
    "compiled": False,
    "copy_chunk": None,
    "copy_bytes_per_s": None,
    "policy": "mirage",
    "tenant": "t",
    "control": None,
    "tier_socket": None,
    "keeper": None,
    "proofs": None,
    "adapters": (),
    "page": 65536,
    "grant_bytes": None,
    "base_blocks": 2,
    "layers_remapped": 0,
    "stream_slots": 0,
    "headroom_extents": 2,
    "lookahead_steps": 16,
    "kept": "nothing",
    "first_step": False,
    "temporal": False,
    "hold_s": 1.0,
    "moves": True,
    "experts": False,
    "experts_on_peers": True,
    "move_s": None,
}


def engine_settings(**changed: Any) -> EngineSettings:
    """Settings as `mirage serve` makes them; without `changed` ones, those of `ALONE`."""
    return EngineSettings.model_validate(ALONE | changed)
