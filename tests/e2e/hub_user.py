"""A user who serves models of a hub that a test runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import forked
from loopback_hub import LoopbackHub
from operated import around
from supervised import DEADLINE_S, WITH_FAKES

ROOT = Path(__file__).parents[2]
WEIGHTS = "model.safetensors"
AS_ITSELF = "import sys; from mirage.cli import main; main(sys.argv[1:])"
"""The command in a process that reads its environment anew, with vLLM's engines."""


class HubUser(NamedTuple):
    """A user of a hub, with a working directory `folder` and a cache inside it."""

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
        """Run a command of `mirage` whose probe is a fake."""
        return forked.run(
            [WITH_FAKES, *map(str, words)],
            env={**os.environ, **self.environment, **more},
            cwd=self.folder,
            timeout=DEADLINE_S,
        )

    def commit(self, name: str) -> str:
        return self.hub.repositories[name]["main"].commit

    def weights(self) -> list[Path]:
        """Files of weights in the user's cache."""
        return list(self.cache.glob(f"*/snapshots/*/{WEIGHTS}"))
