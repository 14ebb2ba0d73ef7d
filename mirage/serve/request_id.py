"""The id of a request, by which client, router and engine speak of it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

HEADER = "X-Request-Id"
SANE = re.compile(r"[\w.:-]{1,128}", re.ASCII)


def new_id() -> str:
    """A new, unique request id."""
    return secrets.token_hex(16)


def id_of(given: str | None, make: Callable[[], str] = new_id) -> str:
    """The id that was `given`, if it is sane, else one that `make` makes.

    It stands in logs, in headers and in the ids of answers.
    """
    return given if given is not None and SANE.fullmatch(given) else make()
