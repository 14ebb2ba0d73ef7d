"""What is known of every tenant right now: written by those who learn it, read by the router."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from mirage.config import Policy
from mirage.protocol import ModelShape, Report
from mirage.serve.timeline import SCHEMA_VERSION, Timeline


class EngineState(StrEnum):
    """`DOWN`: being started again. `FAILED`: given up."""

    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    FAILED = "failed"


@dataclass
class Backend:
    """Where one tenant's vLLM server listens, and whether it is worth asking."""

    name: str
    socket: Path
    max_model_len: int
    state: EngineState = EngineState.STARTING
    restarts: int = 0


@dataclass
class Board:
    """`shapes` and `reports` hold only tenants whose engine is connected."""

    policy: Policy
    device_bytes: int
    backends: dict[str, Backend]
    shapes: dict[str, ModelShape] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)

    def state(self) -> dict[str, Any]:
        """The body of ``/mirage/state``: the newest sample, and every engine's state."""
        engines = {
            name: {"state": backend.state.value, "restarts": backend.restarts}
            for name, backend in self.backends.items()
        }
        return {**self._head(), "engines": engines, **self.timeline.newest}

    def history(self) -> dict[str, Any]:
        """The body of ``/mirage/timeline``."""
        return {
            **self._head(),
            "tenants": {name: _fixed(shape) for name, shape in self.shapes.items()},
            "samples": self.timeline.samples,
        }

    def _head(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "policy": self.policy.value,
            "device_bytes": self.device_bytes,
        }


def _fixed(shape: ModelShape) -> dict[str, int]:
    return {
        "layers": shape.layers,
        "layer_bytes": shape.layer_bytes,
        "extent_bytes": shape.extent_bytes,
        "extent_blocks": shape.extent_blocks,
    }
