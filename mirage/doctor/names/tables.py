"""Names of vLLM that our engine needs, and a table with the entries of one version of vLLM."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mirage.doctor.names.agreement import Said, names
from mirage.doctor.names.hooks import hooked
from mirage.doctor.names.reading import gather
from mirage.doctor.names.tree import VALUE, defined
from mirage.doctor.names.uses import Need
from mirage.vllm_hooks.reached import GRAPHS, HOOKS
from mirage.vllm_hooks.versions import Table

ROOT = Path(__file__).parents[3]
ENGINE = ("mirage/engine", "mirage/serve")
OWN = ("mirage", "vmm", "scheduler")

OTHERS = frozenset({"get_dtype"})
"""Attributes of another library's objects (safetensors), which are not looked for in vLLM."""


@dataclass(frozen=True)
class Needs:
    """Names of vLLM that our engine needs."""

    always: list[Need]
    graphs: list[Need]
    """Names for CUDA graphs: if one is missing, steps run eagerly."""
    anywhere: list[Need]
    """Attributes whose class is unknown: all of vLLM is searched for them, which takes seconds."""


def sources(root: Path, folders: Iterable[str]) -> dict[str, str]:
    """Texts of the Python files in `folders` below `root`, by path relative to `root`."""
    files = (file for folder in folders for file in sorted((root / folder).rglob("*.py")))
    return {str(file.relative_to(root)): file.read_text() for file in files}


def engine_needs() -> Needs:
    """Names of vLLM that the installed sources of our engine use."""
    found = gather(sources(ROOT, ENGINE))
    own = OTHERS | {word for package in OWN for word in defined(ROOT / package)}
    hooks = hooked(HOOKS, "an object of the engine's", found.replaced)
    graphs = hooked(GRAPHS, "mirage/engine/graphs.py", found.replaced)
    return Needs([*found.all_needs(), *hooks], [*graphs], found.anywhere(own))


def once(seen: Iterable[Table]) -> Said:
    """Lookup in several tables: the entry in the first one that has the name."""
    return ChainMap(*map(dict, seen)).get


def table(needs: Iterable[Need], said: Said) -> Table:
    """Entries of the needed names that a vLLM has; parameters only if they matter."""
    asked = sorted(names(needs).items())
    found = {name: (said(name), fits) for name, fits in asked}
    return {n: there if fits else VALUE for n, (there, fits) in found.items() if there is not None}
