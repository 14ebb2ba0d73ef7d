"""Configuration file in the newest version's keys, as `mirage check --upgrade` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mirage.config import current, parsed, read_text
from mirage.errors import InputRefused
from mirage.rewriting import rewritten
from mirage.serve.machine.declared import tenants_in


def upgraded_text(words: Sequence[str]) -> str:
    """Text of the file that `words` name, in the newest version's keys.

    Raises `InputRefused` if they are not one file, if it cannot be read, and for an error in it.
    """
    if len(words) != 1 or Path(words[0]).is_dir():
        raise InputRefused(f"--upgrade takes one configuration file, not {' '.join(words)}")
    path = Path(words[0])
    text = read_text(path)
    before = parsed(text, path)
    tenants_in(before, path)
    return rewritten(text, before, current(before, path))
