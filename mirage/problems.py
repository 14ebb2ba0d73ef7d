"""Problems that pydantic found in a file or a body, as one line in this project's words. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from reprlib import Repr
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

WORDS = {None: "nothing", True: "true", False: "false"}
"""Spelling of these values in YAML."""

LONGEST = 500
"""Most characters of another program's message in one line."""

_brief = Repr()
_brief.maxstring = _brief.maxlong = _brief.maxother = 100


def shown(value: Any) -> str:
    """A value as text for a message to users; long values are shortened."""
    if value is None or isinstance(value, bool):
        return WORDS[value]
    return _brief.repr(value)


def one_line(message: str) -> str:
    """A message of another program in one line: unprintable characters are escaped, and the text
    after the first `LONGEST` characters is left out.
    """
    words = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Up to three names of `known` that resemble `name`, as ``"; nearest: a, b"``; empty if none
    does.
    """
    close = get_close_matches(name, sorted(known), n=3, cutoff=0.7)
    return f"; nearest: {', '.join(close)}" if close else ""


def first_problem(error: ValidationError, raw: Any, schema: type[BaseModel] | None = None) -> str:
    """First problem of `error` in one line: its place in `raw`, the value, and what to write
    instead.

    For an unknown key, the message names the keys of `schema` that resemble it. A schema's class
    may have a mapping `INSTEAD`: advice by the keys that other programs have for the same purpose.
    """
    problem, *others = error.errors()
    path = _path(problem, raw)
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key {shown('.'.join(map(str, path)))}: {_instead(path, schema)}"
        case "invalid_key":
            within = _where(path[:-1]) or "the file"
            return f"unknown key {shown(problem['input'])} in {within}: keys are words"
        case "missing":
            return f"{_where((*path, problem['loc'][-1]))}: it is missing"
        case "value_error":
            message = _cut(problem["msg"].removeprefix("Value error, "))
            return f"{_where(path)}: {message}" if path else message
        case "json_invalid":
            return f"not JSON ({problem['ctx']['error']})"
    return _of_a_value(problem, others, raw)


def _instead(path: Sequence[int | str], schema: type[BaseModel] | None) -> str:
    """Advice on the unknown key at the end of `path`: its entry in `INSTEAD`, else the nearest
    known keys.
    """
    *within, key = path
    section = schema
    for part in within:
        section = _section(section, part) if isinstance(part, str) else section
    if section is None:
        return "check its spelling"
    own: Mapping[Any, str] = getattr(section, "INSTEAD", {})
    return own.get(key) or f"check its spelling{nearest(str(key), section.model_fields)}"


def _section(schema: type[BaseModel] | None, key: str) -> type[BaseModel] | None:
    """Schema of the value of `key`, or of the entries if the value is a list or mapping of them;
    None if the value has no schema or `schema` has no such key.
    """
    field = schema.model_fields.get(key) if schema else None
    kinds: list[Any] = [field.annotation] if field else []
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        kinds += get_args(kind)
    return None


def _of_a_value(problem: ErrorDetails, others: Sequence[ErrorDetails], raw: Any) -> str:
    """Problem of a value for which several types were tried: that of the type which got furthest,
    or of all types.
    """
    path = _path(problem, raw)
    inside = [one for one in others if path and _path(one, raw)[: len(path)] == path]
    deepest = max([problem, *inside], key=lambda one: len(_path(one, raw)))
    if deepest is not problem:
        return _of_a_value(deepest, (), raw)
    wanted = " or ".join(dict.fromkeys(_wanted(one) for one in [problem, *inside]))
    found = f"found {shown(problem['input'])}, write {wanted}"
    if problem["loc"][-1:] == ("[key]",):
        return f"{_where(path[: len(problem['loc']) - 2])}: among its keys {found}"
    return f"{_where(path)}: {found}" if path else found


def _where(path: Sequence[int | str]) -> str:
    return ".".join(map(_part, path))


def _cut(message: str) -> str:
    """`message` with words of 200 characters or more shortened."""
    return re.sub(r"[^ ]{200,}", lambda found: f"{found[0][:50]}...", message)


def _path(problem: ErrorDetails, raw: Any) -> tuple[int | str, ...]:
    """Place of a problem in the file. pydantic's own place also has the type that it tried, which
    is left out.
    """
    path: list[int | str] = []
    for part in problem["loc"]:
        in_mapping = isinstance(raw, dict) and part in raw
        if in_mapping or (isinstance(raw, list) and isinstance(part, int) and part < len(raw)):
            path.append(part)
            raw = raw[part]
    return tuple(path)


def _part(part: int | str) -> str:
    """A part of a place as text. A key with unprintable characters is quoted, since it could break
    the line.
    """
    plain = isinstance(part, int) or part.isprintable()
    return str(part) if plain else shown(part)


def _wanted(problem: ErrorDetails) -> str:
    """Description of a value that would be valid."""
    words = _WANTED.get(problem["type"], "what docs/configuring.md says of it")
    return words if isinstance(words, str) else words(problem.get("ctx", {}))


def _characters(context: Mapping[str, Any]) -> str:
    """Allowed characters in words, from a pattern that is one set of characters; else the
    pattern.
    """
    pattern = str(context["pattern"])
    found = re.fullmatch(r"\^\[A-Za-z0-9(.+)\](?:\+|\{(\d+),(\d+)\})\$", pattern)
    if found is None:
        return f"what matches {pattern}"
    alone = f"letters, digits and {' '.join(found[1])} alone"
    return alone + (f", {found[2]} to {found[3]} of them" if found[2] else "")


def _things(context: Mapping[str, Any], bound: str) -> str:
    """Number of entries that `bound` of `context` states, in words."""
    many = context[bound]
    return f"{many} entry" if many == 1 else f"{many} entries"


def _bound(value: float) -> str:
    """A bound as text: a whole number with all its digits, also one that is a float."""
    whole = isinstance(value, int) or (abs(value) < 1e15 and value == int(value))
    return str(int(value)) if whole else f"{value:g}"


NUMBER, WHOLE, TEXT, MAPPING = "a number", "a whole number", "text", "keys with values"

_WANTED: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda c: f"a number above {_bound(c['gt'])}",
    "greater_than_equal": lambda c: f"{_bound(c['ge'])} or more",
    "less_than": lambda c: f"a number below {_bound(c['lt'])}",
    "less_than_equal": lambda c: f"{_bound(c['le'])} or less",
    "finite_number": NUMBER,
    "float_type": NUMBER,
    "float_parsing": NUMBER,
    "int_type": WHOLE,
    "int_parsing": WHOLE,
    "int_parsing_size": WHOLE,
    "int_from_float": WHOLE,
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": TEXT,
    "path_type": "a path",
    "string_too_short": lambda c: f"{c['min_length']} characters or more",
    "string_too_long": lambda c: f"{c['max_length']} characters or less",
    "string_pattern_mismatch": _characters,
    "literal_error": lambda c: str(c["expected"]),
    "enum": lambda c: str(c["expected"]),
    "dict_type": MAPPING,
    "model_type": MAPPING,
    "model_attributes_type": MAPPING,
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": lambda c: f"{_things(c, 'min_length')} or more",
    "too_long": lambda c: f"{_things(c, 'max_length')} or less",
}
