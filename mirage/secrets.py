"""Secrets in a configuration, recognised by the names of their keys or inside URLs, and hidden.
Pure.

Command lines are visible to every user of a machine, and reports are passed on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

HIDDEN = "***"
NAME = re.compile(
    r"(?:.*_)?(?:api_?key|access_?key(?:_id)?|(?:private|encryption|signing)_?key|secret(?:_key)?"
    r"|password|passwd|passphrase|pwd|credentials?|authorization|auth_header|bearer|cookie)"
    r"|(?:(?:.*_)?(?:access|api|auth|bearer|hf|refresh|secret)_?)?token"
)
"""Names of keys whose value is a secret. Tokens of a vocabulary, as `eos_token`, are not."""
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Boundary between two words of a key, as in ``clientSecret``."""
IN_TEXT = re.compile(
    r"(?<=://)[^/?#@\s\"']+(?=@)"
    r"|(authorization:\s*(?:bearer\s+|basic\s+)?)\S+"
    r"|(?<=[?&])((?:[\w.-]*(?:token|key|secret|password|pwd|signature|sig))=)[^&#\s\"']+",
    re.IGNORECASE,
)
"""Secrets in text: user and password of a URL, the value of an authorization header, or a parameter
of a query.
"""


def is_name(key: str) -> bool:
    """True if the value of `key` is a secret, however it is spelled: ``--api-key``, ``a.token``."""
    last = key.lstrip("-").replace("-", "_").rsplit(".", 1)[-1]
    return any(NAME.fullmatch(word.lower()) for word in (last, HUMP.sub("_", last)))


def redacted(value: Any, key: str = "") -> Any:
    """`value` of `key` with every secret in it replaced by `HIDDEN`."""
    if _says_nothing(value):
        return value
    if is_name(key):
        return HIDDEN
    if isinstance(value, dict):
        return {name: redacted(part, str(name)) for name, part in value.items()}
    if isinstance(value, list):
        return [redacted(part) for part in value]
    if isinstance(value, str):
        return _redacted_text(value)
    return value


def places(value: Any, key: str = "") -> Iterator[str]:
    """Paths of the keys in `value` that hold secrets, as ``speculative_config.hf_token``; each
    begins with `key`, the path of `value`."""
    if isinstance(value, str) and (parsed := _parsed(value)) is not None:
        value = parsed
    if isinstance(value, dict) and not is_name(key):
        for name, part in value.items():
            yield from places(part, f"{key}.{name}" if key else str(name))
    elif redacted(value, key) != value:
        yield key


def _says_nothing(value: Any) -> bool:
    """True for values that cannot be a secret: booleans, null and empty ones."""
    return value is None or isinstance(value, bool) or value in ("", [], {})


def _redacted_text(text: str) -> str:
    if (parsed := _parsed(text)) is not None and (shown := redacted(parsed)) != parsed:
        return json.dumps(shown)
    return IN_TEXT.sub(lambda found: f"{found[1] or found[2] or ''}{HIDDEN}", text)


def _parsed(text: str) -> dict[str, Any] | None:
    """Mapping for which `text` is the JSON, a form in which vLLM accepts arguments too; None for
    any other text.
    """
    try:
        value = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
