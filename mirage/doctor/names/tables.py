"""Tables of what each vLLM that was seen has under the names that we use; beside this file.

A name that is not there is not in its table. Parameters are, if we call the function or replace it.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mirage.doctor.names.agreement import Said, names
from mirage.doctor.names.hooks import GRAPHS, HOOKS, hooked
from mirage.doctor.names.reading import gather
from mirage.doctor.names.tree import VALUE, defined
from mirage.doctor.names.uses import Need

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
ENGINE = ("mirage/engine", "mirage/serve")
OWN = ("mirage", "vmm", "scheduler")

Table = Mapping[str, str]
OTHERS = frozenset({"get_dtype"})
"""Attributes of other libraries' objects: of safetensors."""


@dataclass(frozen=True)
class Needs:
    """What our engine needs of vLLM."""

    always: list[Need]
    graphs: list[Need]
    """Without these, steps run eagerly."""
    anywhere: list[Need]
    """Attributes of nobody known: vLLM is searched through for them, which takes seconds."""


def sources(root: Path, folders: Iterable[str]) -> dict[str, str]:
    """Those in folders below `root`, by path."""
    files = (file for folder in folders for file in sorted((root / folder).rglob("*.py")))
    return {str(file.relative_to(root)): file.read_text() for file in files}


def engine_needs() -> Needs:
    """From our own sources, which lie beside this file."""
    found = gather(sources(ROOT, ENGINE))
    own = OTHERS | {word for package in OWN for word in defined(ROOT / package)}
    hooks = hooked(HOOKS, "an object of the engine's", found.replaced)
    graphs = hooked(GRAPHS, "mirage/engine/graphs.py", found.replaced)
    return Needs([*found.all_needs(), *hooks], [*graphs], found.anywhere(own))


def tables() -> dict[str, Table]:
    """By version, oldest first."""
    files = sorted(FOLDER.glob("*.json"), key=lambda file: _number(file.stem))
    return {file.stem: json.loads(file.read_text()) for file in files}


def minors(versions: Iterable[str]) -> list[str]:
    """The first two numbers of each version, once."""
    return [*dict.fromkeys(".".join(each.split(".")[:2]) for each in versions)]


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def once(seen: Iterable[Table]) -> Said:
    """What any of the tables has under a name."""
    return ChainMap(*map(dict, seen)).get


def table(needs: Iterable[Need], said: Said) -> Table:
    """What a vLLM has under each name that is needed."""
    asked = sorted(names(needs).items())
    found = {name: (said(name), fits) for name, fits in asked}
    return {n: there if fits else VALUE for n, (there, fits) in found.items() if there is not None}
