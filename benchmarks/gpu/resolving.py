"""The packages that another machine lacks, out of what pip resolves for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

THERE = re.compile(r"([A-Za-z0-9][\w.-]*)(?:(?:==|\s+)(\d\S*)| @ )")


@dataclass
class Lacking:
    """Packages that are missing, found by following requirements."""

    pins: dict[str, str] = field(default_factory=dict)
    """Requirement of the resolved version, by name, of each package to carry."""
    unresolved: list[str] = field(default_factory=list)
    """Requirements that hold there and not here, by whose Python pip judges."""
    unlike: dict[str, str] = field(default_factory=dict)
    """Packages there whose version no requirement allows: by name, a text with version and
    requirement."""


@dataclass(frozen=True)
class There:
    """The other machine: its Python, its platform, and its packages."""

    python: str
    machine: str
    packages: Mapping[str, str]
    """Versions by name; empty where not known."""

    def holds(self, need: Requirement, extra: str) -> bool:
        """True if the requirement `need` of a package applies on the other machine, with this extra
        of the package.
        """
        variables = {"python_version": self.python, "python_full_version": f"{self.python}.0"}
        variables |= {"platform_machine": self.machine, "extra": extra}
        return need.marker is None or need.marker.evaluate(variables)


def listed(text: str) -> dict[str, str]:
    """Versions by package name in the output of ``pip list`` or ``pip freeze``; the version of a
    package from a path is empty.
    """
    found = filter(None, map(THERE.match, text.splitlines()))
    return {canonicalize_name(one[1]): one[2] or "" for one in found}


def lacking(
    report: Mapping[str, Any], needs: Iterable[str], there: There, without: Iterable[str]
) -> Lacking:
    """Packages of pip's installation report that `needs` lead to and that `there` lacks.

    A package that is there, or whose name matches one of `without`, is not carried, and neither is
    what only it requires.
    """
    resolved = {canonicalize_name(one["metadata"]["name"]): one for one in report["install"]}
    patterns = [canonicalize_name(name) for name in without]
    found, seen = Lacking(), set[tuple[str, str]]()
    todo = [Requirement(need) for need in needs]
    while todo:
        need = todo.pop()
        name = canonicalize_name(need.name)
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        if name in there.packages:
            _compare(need, there.packages[name], found)
            continue
        if name not in resolved:
            found.unresolved.append(_plain(need))
            continue
        metadata = resolved[name]["metadata"]
        found.pins[name] = f"{name}=={metadata['version']}"
        for extra in {"", *need.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                more = map(Requirement, metadata.get("requires_dist", ()))
                todo += [one for one in more if there.holds(one, extra)]
    return found


def _compare(need: Requirement, version: str, found: Lacking) -> None:
    if version and not need.specifier.contains(version, prereleases=True):
        found.unlike[need.name] = f"{need.name} {version} ({need.specifier})"


def _plain(need: Requirement) -> str:
    extras = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
    return f"{need.name}{extras}{need.specifier}"
