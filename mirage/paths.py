"""Paths as people write them, and cache and home folders, also for a user without a name or
home.
"""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path
from typing import TypeVar

from mirage.errors import InputRefused

VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
OF_AN_OPTION = re.compile(r"(--[a-z-]+=)?(~(?:/.*)?)", re.DOTALL)
"""A word of a command line that is ``~``, a path in it, or an option with such a value."""

Written = TypeVar("Written")


def expanded(written: Written) -> Written:
    """`written` with ``~``, ``$NAME`` and ``${NAME}`` replaced as a shell does; a value that is no
    path is returned unchanged.

    Raises `InputRefused` for a variable that is not set or empty, or if the home is unknown.
    """
    if not isinstance(written, (str, Path)):
        return written
    text = _at_home(VARIABLE.sub(_value, str(written)), str(written))
    return type(written)(text)


def _value(found: re.Match[str]) -> str:
    name = found[1] or found[2]
    if not (value := os.environ.get(name)):
        raise InputRefused(
            f"path {found.string!r}: ${name} is not set in the environment: set it, or write the "
            "path out"
        )
    return value


def _at_home(text: str, written: str) -> str:
    try:
        return str(Path(text).expanduser()) if text.startswith("~") else text
    except RuntimeError:
        line = f"path {written!r}: no such home is known: write the path out, or set HOME"
        raise InputRefused(line) from None


def word(written: str) -> str:
    """A word of a command line with ``~`` replaced, also in ``--option=~/x``, where few shells
    replace it.
    """
    found = OF_AN_OPTION.fullmatch(written)
    return written if found is None else f"{found[1] or ''}{_at_home(found[2], found[2])}"


def cache_folder() -> Path:
    """``XDG_CACHE_HOME`` if it is absolute, else ``.cache`` at home. Raises `InputRefused` if there
    is no home.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):  # the standard says that a relative one is to be ignored
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        raise InputRefused(
            "no home is known of this user: set HOME, or XDG_CACHE_HOME to a folder for caches"
        ) from None


def somebody(home: Path) -> dict[str, str]:
    """Variables ``USER`` and ``HOME`` for a user who has no name or no home, since libraries ask
    for both; empty if the user has them.
    """
    made = {}
    try:
        getpass.getuser()
    except (KeyError, OSError):
        made["USER"] = f"uid-{os.getuid()}"
    try:
        Path.home()
    except RuntimeError:
        made["HOME"] = str(home)
    return made
