"""Uses that our sources make of vLLM's names: they take, call, override or replace them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace

from mirage.doctor.names.signature import CallArguments
from mirage.doctor.names.syntax import ANYWHERE

PACKAGE = "vllm"


def is_theirs(name: str) -> bool:
    """True if a name is one of vLLM's."""
    return re.match(rf"{PACKAGE}\b", name) is not None


def of(owner: str, attribute: str) -> str:
    """Full name of an attribute of a module or a class."""
    return f"{owner}{'.' if ':' in owner else ':'}{attribute}"


@dataclass(frozen=True)
class NameUse:
    """One name, and what of ours has to fit it."""

    name: str
    where: str
    """Our file and line."""
    call: CallArguments | None = None
    replacement: str | None = None
    """Parameters of the function of ours that stands in for it."""
    ours: bool = False
    """True if the name may be ours alone, so that vLLM may lack it; a name of `super()` is not."""
    bound: bool = False
    """True for a call on an object, whose first parameter Python passes."""


@dataclass(frozen=True)
class Either:
    """Uses of which one list has to fit: what is imported from where it is."""

    lists: tuple[tuple[Need, ...], ...]


Need = NameUse | Either


@dataclass
class Class:
    """One of our classes, as far as it has to do with those that it derives from."""

    bases: list[str] = field(default_factory=list)
    methods: list[NameUse] = field(default_factory=list)
    """Methods that may override one of a base class."""
    own: set[str] = field(default_factory=set)
    """Names that the class defines or assigns."""
    asks: list[NameUse] = field(default_factory=list)
    """Uses of `self` and `super()`, each with the bare name of an attribute."""


@dataclass
class FoundUses:
    """All that was found in some files."""

    needs: list[Need] = field(default_factory=list)
    classes: dict[str, Class] = field(default_factory=dict)
    replaced: list[NameUse] = field(default_factory=list)
    """Functions of ours that are given to objects, under the names of attributes."""
    made: set[str] = field(default_factory=set)
    """Classes of ours that are made an object of by name."""
    words: dict[str, str] = field(default_factory=dict)
    """Attributes of objects, and where one is asked for it first."""

    def anywhere(self, own: Container[str]) -> list[Need]:
        """Attributes that are of nobody known, if they are not our `own`.

        Only those of several words: others are anybody's.
        """
        asked = ((word, where) for word, where in self.words.items() if word not in own)
        several = ((word, where) for word, where in asked if "_" in word.strip("_"))
        return [NameUse(ANYWHERE + word, where, ours=True) for word, where in several]

    def all_needs(self) -> list[Need]:
        """Names that the files need, those that their classes need of their bases included."""
        derived = {base for each in self.classes.values() for base in each.bases}
        last = [name for name in self.classes if name not in derived or name in self.made]
        return self.needs + [need for name in last for need in self._of_class(name)]

    def _of_class(self, name: str) -> Iterator[NameUse]:
        line = [self.classes[each] for each in self.line(name)]
        for base in self._theirs(name):
            for each in line:
                for use in each.methods:
                    yield replace(use, name=of(base, use.name))
                for use in each.asks:
                    asked = line if use.ours else [other for other in line if other is not each]
                    ours = any(use.name in one.own for one in asked)
                    yield replace(use, name=of(base, use.name), ours=ours)

    def line(self, name: str) -> list[str]:
        """The class and ours that it derives from."""
        ours = [base for base in self.classes[name].bases if base in self.classes]
        return [name, *dict.fromkeys(each for base in ours for each in self.line(base))]

    def _theirs(self, name: str) -> list[str]:
        """vLLM's classes that it derives from: its own bases, or else those of its bases."""
        bases = self.classes[name].bases
        direct = [base for base in bases if is_theirs(base)]
        ours = [base for base in bases if base in self.classes]
        return direct or [*dict.fromkeys(each for base in ours for each in self._theirs(base))]
