"""Id of a request, which client, router and engine use in headers and logs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

HEADER = "X-Request-Id"
SANE = re.compile(r"[\w.:-]{1,128}", re.ASCII)


def new_id() -> str:
    """New unique request id."""
    return secrets.token_hex(16)


def id_of(given: str | None, make: Callable[[], str] = new_id) -> str:
    """Id that was `given` if it has only harmless characters, else one that `make` makes.

    It is used in logs, in headers and in the ids of answers.
    """
    return given if given is not None and SANE.fullmatch(given) else make()
