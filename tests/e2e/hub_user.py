"""Somebody who serves models of a hub of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from loopback_hub import LoopbackHub
from operated import around
from supervised import DEADLINE_S, WITH_FAKES

ROOT = Path(__file__).parents[2]
WEIGHTS = "model.safetensors"
AS_ITSELF = "import sys; from mirage.cli import main; main(sys.argv[1:])"
"""The command in a process that reads its environment anew, with vLLM's engines."""


class HubUser(NamedTuple):
    """Somebody with a hub, whose working directory is `folder` and cache lies in it."""

    hub: LoopbackHub
    folder: Path
    short: Path
    """Folder for temporary files."""

    @property
    def cache(self) -> Path:
        return self.folder / "hf" / "hub"

    @property
    def environment(self) -> dict[str, str]:
        told = {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.folder / "hf")}
        return told | around(self.short) | {"HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}

    def mirage(self, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
        """A command, with a fake of the probe."""
        return subprocess.run(
            [sys.executable, WITH_FAKES, *map(str, words)],
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment, **more},
            cwd=self.folder,
            timeout=DEADLINE_S,
        )

    def commit(self, name: str) -> str:
        return self.hub.repositories[name]["main"].commit

    def weights(self) -> list[Path]:
        """Files of weights in the cache."""
        return list(self.cache.glob(f"*/snapshots/*/{WEIGHTS}"))
