"""Two pretrained models, and where `make` keeps the folders that it makes of their packages."""

from __future__ import annotations

from pathlib import Path

SMOLLM = "smollm2-135m-instruct"
"""A llama of 30 layers with a chat template. Apache 2.0."""
GEMMA = "gemma-3-270m"
"""18 layers, 15 of them with a window of 512 tokens; no chat template. Under Gemma's terms."""
NAMES = (SMOLLM, GEMMA)

FOLDER = Path(__file__).parents[2] / ".cache" / "real"
MADE = FOLDER / ".made"
"""File that the Makefile writes when both folders are complete."""


def folders() -> dict[str, Path]:
    """Folders by name. Raises `FileNotFoundError`, with what to do, if they were not made."""
    if not MADE.exists():
        raise FileNotFoundError(
            f"{MADE} is not there: `make {MADE.relative_to(FOLDER.parents[1])}`"
        )
    return {name: FOLDER / name for name in NAMES}
