"""JSON that commands print with ``--json``: one object, with the version of its keys."""

from __future__ import annotations

from typing import Any

import msgspec

VERSION = "schema_version"
"""First key of each object. Its number grows when a key is renamed or removed, not when one is
added.
"""


def json_object(schema_version: int, told: Any) -> str:
    """One JSON object of a mapping, a dataclass or a msgspec struct, indented. Its first key is
    `schema_version`.

    Values that JSON does not have become text (paths), or null (infinite and undefined numbers).
    """
    content = {VERSION: schema_version} | msgspec.to_builtins(told, enc_hook=str)
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
