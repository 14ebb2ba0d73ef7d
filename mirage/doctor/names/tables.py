"""Tables, beside this file, of the names that we use as each known version of vLLM has them.

A table lacks the names that its vLLM lacks. It has the parameters of functions that we call or
replace.
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
    """Names that our engine needs of vLLM."""

    always: list[Need]
    graphs: list[Need]
    """Names for CUDA graphs: without them steps run eagerly."""
    anywhere: list[Need]
    """Attributes whose owner is unknown: all of vLLM is searched for them, which takes seconds."""


def sources(root: Path, folders: Iterable[str]) -> dict[str, str]:
    """Texts of the Python files in `folders` below `root`, by path relative to `root`."""
    files = (file for folder in folders for file in sorted((root / folder).rglob("*.py")))
    return {str(file.relative_to(root)): file.read_text() for file in files}


def engine_needs() -> Needs:
    """Names of vLLM that our own sources use; they are read from the installed files."""
    found = gather(sources(ROOT, ENGINE))
    own = OTHERS | {word for package in OWN for word in defined(ROOT / package)}
    hooks = hooked(HOOKS, "an object of the engine's", found.replaced)
    graphs = hooked(GRAPHS, "mirage/engine/graphs.py", found.replaced)
    return Needs([*found.all_needs(), *hooks], [*graphs], found.anywhere(own))


def tables() -> dict[str, Table]:
    """Tables beside this file by vLLM's version, oldest first."""
    files = sorted(FOLDER.glob("*.json"), key=lambda file: _number(file.stem))
    return {file.stem: json.loads(file.read_text()) for file in files}


def minors(versions: Iterable[str]) -> list[str]:
    """The first two numbers of each version, once."""
    return [*dict.fromkeys(".".join(each.split(".")[:2]) for each in versions)]


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def once(seen: Iterable[Table]) -> Said:
    """Lookup in several tables: the entry in the first one that has the name."""
    return ChainMap(*map(dict, seen)).get


def table(needs: Iterable[Need], said: Said) -> Table:
    """Entries of a vLLM for the needed names that it has; parameters only where they matter."""
    asked = sorted(names(needs).items())
    found = {name: (said(name), fits) for name, fits in asked}
    return {n: there if fits else VALUE for n, (there, fits) in found.items() if there is not None}
