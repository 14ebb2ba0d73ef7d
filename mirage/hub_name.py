"""Names of models at a hub: ``ORGANISATION/NAME``, optionally followed by ``@REVISION``. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

MAIN = "main"
"""Revision of a name that states none."""
LONGEST = 96
"""Most characters of a repository's name."""
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubName(NamedTuple):
    """A model at a hub."""

    repository: str
    revision: str = MAIN
    """A branch, a tag or a commit."""

    @property
    def pinned(self) -> bool:
        """True if its revision is a commit, which never changes."""
        return is_commit(self.revision)

    def __str__(self) -> str:
        return self.repository + ("" if self.revision == MAIN else f"@{self.revision}")


def hub_name(written: str) -> HubName | None:
    """`written` as a name at a hub; None if it cannot be one."""
    if (found := _NAME.fullmatch(written)) is None:
        return None
    repository, revision = found[1], found[2] or MAIN
    odd = "--" in repository or ".." in written or repository.endswith(".git")
    return None if odd or len(repository) > LONGEST else HubName(repository, revision)


def is_commit(revision: str) -> bool:
    """True for the full hash of a commit."""
    return _COMMIT.fullmatch(revision) is not None
