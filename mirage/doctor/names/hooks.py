"""Uses of names that are reached through an object, from `mirage/vllm_hooks/reached.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mirage.doctor.names.signature import CallArguments
from mirage.doctor.names.uses import NameUse, of


def hooked(
    hooks: Mapping[str, Iterable[str]], where: str, replaced: Iterable[NameUse] = ()
) -> Iterator[NameUse]:
    """Uses of all names in `hooks`, and of those that functions of ours in `replaced` stand in
    for.
    """
    stand_ins = [*replaced]
    for owner, entries in hooks.items():
        for entry in entries:
            node = ast.parse(entry, mode="eval").body
            call = CallArguments.written(node) if isinstance(node, ast.Call) else None
            attribute = entry.partition("(")[0]
            name = of(owner, attribute)
            yield NameUse(name, where, call, bound=":" in owner)
            for each in stand_ins:
                if each.name == attribute and call is not None:
                    yield replace(each, name=name)
