"""Words of a command line: one configuration file, or models to serve. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mirage.errors import InputRefused
from mirage.hub_name import HubName, hub_name

SUFFIXES = (".yaml", ".yml", ".json")
TRUST = "--trust-remote-code"


class NamedModel(NamedTuple):
    """Model as the user named it."""

    word: str
    name: str
    """Name by which requests ask for it."""
    code: bool = False
    """True if the model's own code may run."""

    @property
    def hub(self) -> HubName | None:
        """Name at a hub; None if the word is no such name."""
        return hub_name(self.word)


def is_config(word: str, *, folder: bool, file: bool) -> bool:
    """True if `word` names a configuration file, which may be missing.

    `folder` and `file` tell whether a folder or file of that name exists.
    """
    return file or (not folder and (word.endswith(SUFFIXES) or hub_name(word) is None))


def named(
    words: Sequence[str], folders: Sequence[str | None], trusted: Sequence[str]
) -> list[NamedModel]:
    """Models named by `words`, each with the name that it is served by: of the hub or the folder.

    `folders` has the name of each word that is a folder, else None. Raises `InputRefused` for a
    word that is neither, for two models of one name, and for trusted code without a commit.
    """
    for word in trusted:
        known = hub_name(word)
        if word not in words or known is None or not known.pinned:
            raise InputRefused(
                f"{TRUST} {word!r}: name a model that is served, with the commit whose code you "
                "have read, as ORGANISATION/NAME@ and its 40 digits, here and there"
            )
    found = [
        NamedModel(w, f or _name(w), w in trusted) for w, f in zip(words, folders, strict=True)
    ]
    names = [one.name for one in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputRefused(
            f"two models would be served as {twice!r}: give them names in a configuration file"
        )
    return found


def _name(word: str) -> str:
    if word.endswith(SUFFIXES):
        raise InputRefused(f"{word!r}: name one configuration file, or models")
    if (known := hub_name(word)) is None:
        raise InputRefused(
            f"{word!r}: there is no such folder, and a model at a hub is named as "
            "ORGANISATION/NAME, or ORGANISATION/NAME@REVISION"
        )
    return known.repository
