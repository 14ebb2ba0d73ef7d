"""``tuned.yaml``: the configuration that was to be tuned, with the values found. Pure.

All keys stay, its comments do not. A comment beside each changed value has the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

Changes = Mapping[str, tuple[Any, Any]]
"""Old and new value of each changed key, by its dotted path in the file (``tenants.0.share``)."""
LARGEST_COMMENT = 96
"""Most characters of a comment line at the top."""


def tuned(raw: Mapping[Any, Any], changes: Changes, reasons: Sequence[str]) -> str:
    """Text of the file. `raw` is the content of the original; `reasons` become comments at the
    top.
    """
    content = yaml.safe_load(yaml.safe_dump(raw))  # a copy, without aliases
    for key, (_, now) in changes.items():
        _set(content, key.split("."), now)
    lines = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).splitlines()
    at = _lines_of(yaml.compose("\n".join(lines)))
    for key, (before, now) in changes.items():
        comment = f"tuned, was {_shown(before)}"
        if now is None:
            comment = f"none: {comment}"
        lines[at[key]] += f"  # {comment}"
    head = [f"# {line}".rstrip() for reason in reasons for line in _wrapped(reason)]
    return "\n".join([*head, "", *lines, ""])


def _set(content: Any, path: Sequence[str], value: Any) -> None:
    *way, last = path
    for step in way:
        if isinstance(content, list):
            content = content[int(step)]
        else:
            if content.get(step) is None:
                content[step] = {}
            content = content[step]
    content[last] = value


def _lines_of(node: Any, where: str = "") -> dict[str, int]:
    """Number of the line, from 0, on which each scalar of a composed YAML `node` begins, by its
    dotted key. `where` is the key of `node` itself, with which all others begin.
    """
    if isinstance(node, yaml.MappingNode):
        pairs = [(key.value, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(str(index), value) for index, value in enumerate(node.value)]
    else:
        return {where: node.start_mark.line}
    found: dict[str, int] = {}
    for key, value in pairs:
        found |= _lines_of(value, f"{where}.{key}" if where else key)
    return found


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _wrapped(text: str) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) + 1 > LARGEST_COMMENT:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]
