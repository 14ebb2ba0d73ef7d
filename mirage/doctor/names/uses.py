"""Uses of vLLM's names in our sources: they are read, called, overridden or replaced."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace

from mirage.doctor.names.signature import CallArguments
from mirage.doctor.names.syntax import ANYWHERE

PACKAGE = "vllm"


def is_theirs(name: str) -> bool:
    """True if a full name is one of vLLM's."""
    return re.match(rf"{PACKAGE}\b", name) is not None


def of(owner: str, attribute: str) -> str:
    """Full name of an attribute of a module or a class."""
    return f"{owner}{'.' if ':' in owner else ':'}{attribute}"


@dataclass(frozen=True)
class NameUse:
    """One use of a name of vLLM's in our code, and the part of our code that must fit vLLM's
    definition: the arguments of a call, or the parameters of a function that overrides or replaces
    the name."""

    name: str
    where: str
    """File and line of ours."""
    call: CallArguments | None = None
    replacement: str | None = None
    """Parameters of our function that overrides or replaces it."""
    ours: bool = False
    """True if one of our own classes may define the name, so that vLLM may lack it; False for uses
    of `super()`.
    """
    bound: bool = False
    """True for a call on an object, for which Python passes the first parameter."""


@dataclass(frozen=True)
class Either:
    """Alternative lists of uses, one of which must fit: those of an import and of its fallback."""

    lists: tuple[tuple[Need, ...], ...]


Need = NameUse | Either


@dataclass
class Class:
    """One of our classes: its base classes, the names that it defines, and its uses of names that a
    base class may define."""

    bases: list[str] = field(default_factory=list)
    methods: list[NameUse] = field(default_factory=list)
    """Methods that may override a method of a base class."""
    own: set[str] = field(default_factory=set)
    """Names that the class defines or assigns."""
    asks: list[NameUse] = field(default_factory=list)
    """Uses of `self` and `super()`, each with the bare name of the attribute."""


@dataclass
class FoundUses:
    """Uses that were found in a set of files."""

    needs: list[Need] = field(default_factory=list)
    classes: dict[str, Class] = field(default_factory=dict)
    replaced: list[NameUse] = field(default_factory=list)
    """Our functions that are assigned to attributes of objects, with the attributes' names."""
    made: set[str] = field(default_factory=set)
    """Our classes that are instantiated by name."""
    words: dict[str, str] = field(default_factory=dict)
    """Attributes of any objects, and the place of the first use of each."""

    def anywhere(self, own: Container[str]) -> list[Need]:
        """Uses of attributes whose class is unknown, except names in `own`.

        Only names of several words are included, since single words occur in any library.
        """
        asked = ((word, where) for word, where in self.words.items() if word not in own)
        several = ((word, where) for word, where in asked if "_" in word.strip("_"))
        return [NameUse(ANYWHERE + word, where, ours=True) for word, where in several]

    def all_needs(self) -> list[Need]:
        """All names that the files need, including those that their classes need from base
        classes.
        """
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
        """A class of ours, then its direct and indirect base classes that are ours too, depth
        first."""
        ours = [base for base in self.classes[name].bases if base in self.classes]
        return [name, *dict.fromkeys(each for base in ours for each in self.line(base))]

    def _theirs(self, name: str) -> list[str]:
        """vLLM's classes from which a class derives: its direct ones, or else those of its
        bases.
        """
        bases = self.classes[name].bases
        direct = [base for base in bases if is_theirs(base)]
        ours = [base for base in bases if base in self.classes]
        return direct or [*dict.fromkeys(each for base in ours for each in self._theirs(base))]
