"""Hub of models that this process's environment selects: its address, the folder of its cache on
this machine, and the token that requests to it carry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from mirage.config import ConfigError
from mirage.hub_name import HubName

TIMEOUT_S = 10.0
"""Seconds to wait for a hub that sends nothing."""


class HubRefused(ConfigError):
    """Error: a model of a hub is refused, for a reason that the user can remove."""


class HubPlace(NamedTuple):
    """Hub of models: its address, cache and token, as huggingface_hub has them, and the time limits
    of requests to it."""

    endpoint: str
    cache: Path
    token: str | None = None
    offline: bool = False
    timeout_s: float = TIMEOUT_S
    pause_s: float = 1.0
    """Seconds before a file is continued whose connection broke."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of each request: the token, if there is one."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def page(self, repository: str) -> str:
        """Address of a model's page for people."""
        return f"{self.endpoint}/{repository}"

    def listing(self, name: HubName) -> str:
        """Address of the listing of a revision's commit and files."""
        revision = quote(name.revision, safe="")
        return f"{self.endpoint}/api/models/{name.repository}/revision/{revision}?blobs=true"

    def file(self, repository: str, commit: str, path: str) -> str:
        """Address of a file of a commit."""
        return f"{self.endpoint}/{repository}/resolve/{commit}/{quote(path)}"


def this_hub() -> HubPlace:
    """Hub that the environment selects: ``HF_ENDPOINT``, ``HF_HOME``, ``HF_HUB_CACHE``,
    ``HF_TOKEN`` and huggingface_hub's other variables.

    Raises `HubRefused` if no folder for its cache is known.
    """
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_CACHE.startswith("~"):
        raise HubRefused(
            "no home is known of this user, where models of a hub would be kept: set HF_HOME to a "
            "folder for them"
        )
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    cache = Path(constants.HF_HUB_CACHE).absolute()
    return HubPlace(constants.ENDPOINT, cache, token, constants.HF_HUB_OFFLINE)
