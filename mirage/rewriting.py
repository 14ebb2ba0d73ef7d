"""Changes of a YAML file's content that keep its comments and the order of its keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from mirage.config import FLOAT, Loader


class _Dumper(yaml.SafeDumper):
    """YAML dumper for text that `Loader` reads: strings that look like its numbers are quoted."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


class _Edit(NamedTuple):
    """Replacement of the characters from `begin` to `end` by `text`."""

    begin: int
    end: int
    text: str


def rewritten(text: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    """`text`, whose content is `before`, edited so that its content is `after`.

    Values are changed where they stand. The lines of a key that is gone are removed; if a new key
    has the same value, the old key is renamed to it. A new key is added at the end of its mapping,
    or at the beginning if `after` begins with it. If the text cannot be edited, as with aliases, it
    is dumped anew without comments.
    """
    if repr(before) == repr(after):
        return text
    root = yaml.compose(text, Loader)
    if isinstance(root, yaml.MappingNode) and len(root.value) == len(before):
        changed = text
        for edit in sorted(_edits(text, root, before, after), reverse=True):
            changed = changed[: edit.begin] + edit.text + changed[edit.end :]
        if _content(changed) == after:
            return changed
    return _dumped(after, width=100)


def _dumped(value: Any, **how: Any) -> str:
    dumped = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **how)
    return str(dumped)


def _content(text: str) -> Any:
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError:
        return None


def _edits(text: str, node: yaml.Node, before: Any, after: Any) -> Iterator[_Edit]:
    if repr(before) == repr(after):  # true is not 1
        return
    if (
        isinstance(node, yaml.MappingNode)
        and isinstance(after, Mapping)
        and after
        and node.value
        and len(node.value) == len(before)
    ):
        yield from _of_mapping(text, node, before, after)
    elif (
        isinstance(node, yaml.SequenceNode)
        and isinstance(after, list)
        and len(node.value) == len(after)
    ):
        for part, old, new in zip(node.value, before, after, strict=True):
            yield from _edits(text, part, old, new)
    else:
        yield _Edit(node.start_mark.index, _end(node), _flow(after))


def _of_mapping(
    text: str, node: yaml.MappingNode, before: Mapping[Any, Any], after: Mapping[Any, Any]
) -> Iterator[_Edit]:
    new = {key: value for key, value in after.items() if key not in before}
    pairs = list(zip(node.value, before, strict=True))
    for number, ((name, value), key) in enumerate(pairs):
        if key in after:
            yield from _edits(text, value, before[key], after[key])
        elif (other := _same(new, before[key])) is not None:
            del new[other]
            yield _Edit(name.start_mark.index, name.end_mark.index, _flow(other))
        else:
            following = pairs[number + 1][0][0] if number + 1 < len(pairs) else None
            yield _removed(text, name, value, following)
    if new:
        yield from _added(text, node, after, new)


def _same(new: Mapping[Any, Any], value: Any) -> Any:
    """A key of `new` that has this value; None if there is none."""
    return next((key for key in new if repr(new[key]) == repr(value)), None)


def _added(
    text: str, node: yaml.MappingNode, after: Mapping[Any, Any], new: Mapping[Any, Any]
) -> Iterator[_Edit]:
    first, last = node.value[0][0], node.value[-1][1]
    if node.flow_style:
        told = "".join(f", {_flow(key)}: {_flow(value)}" for key, value in new.items())
        yield _Edit(_end(last), _end(last), told)
        return
    pad = " " * first.start_mark.column
    leads = next(iter(after)) in new
    lines = [f"{_flow(key)}: {_flow(value)}" for key, value in new.items()]
    if leads:
        yield _Edit(first.start_mark.index, first.start_mark.index, f"{lines.pop(0)}\n{pad}")
    place = _line_end(text, _end(last))
    if lines:
        yield _Edit(place, place, "".join(f"\n{pad}{line}" for line in lines))


def _removed(text: str, name: yaml.Node, value: yaml.Node, following: yaml.Node | None) -> _Edit:
    """Edit that removes the lines of a key; in a line with other content, as after ``- `` or in
    braces, the key and its value alone.
    """
    begin, end = name.start_mark.index, _end(value)
    line = text.rfind("\n", 0, begin) + 1
    if text[line:begin].strip():
        return _Edit(begin, end if following is None else following.start_mark.index, "")
    return _Edit(line, min(_line_end(text, end) + 1, len(text)), "")


def _line_end(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found


def _end(node: yaml.Node) -> int:
    """Index behind a node, without the blank lines and comments that follow it in a block."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, yaml.MappingNode) else last)
    return int(node.end_mark.index)


def _flow(value: Any) -> str:
    """YAML of a value, in one line."""
    dumped = _dumped(value, default_flow_style=True, width=10**9)
    return dumped.removesuffix("\n").removesuffix("\n...")
