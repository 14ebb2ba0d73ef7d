"""Names of vLLM that our sources take, call, override or replace, found by their syntax.

What reaches our code without a name of its own (an argument, an attribute of an attribute) is not
seen here: `hooks.py` names that.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace

from mirage.doctor.names.signature import Call, said
from mirage.doctor.names.syntax import ANYWHERE, Function, assigned, is_name

PACKAGE = "vllm"
NAMED = re.compile(PACKAGE + r"(\.\w+){2,}")


def is_theirs(name: str) -> bool:
    """Whether a name is one of vLLM's."""
    return re.match(rf"{PACKAGE}\b", name) is not None


def of(owner: str, attribute: str) -> str:
    """The name of what a module or a class has."""
    return f"{owner}{'.' if ':' in owner else ':'}{attribute}"


@dataclass(frozen=True)
class Use:
    """One name, and what of ours has to fit it."""

    name: str
    where: str
    """Our file and line."""
    call: Call | None = None
    replacement: str | None = None
    """Parameters of the function of ours that stands in for it."""
    ours: bool = False
    """Whether the name may be ours alone, and then need not be there; of `super()` it is not."""
    bound: bool = False
    """Whether it is asked of an object, so that its first parameter is given."""


@dataclass(frozen=True)
class Either:
    """Uses of which one list has to fit: what is imported from where it is."""

    lists: tuple[tuple[Need, ...], ...]


Need = Use | Either


@dataclass
class Class:
    """One of our classes, as far as it has to do with those that it derives from."""

    bases: list[str] = field(default_factory=list)
    methods: list[Use] = field(default_factory=list)
    """Those that may stand in for one of a base."""
    own: set[str] = field(default_factory=set)
    """Its attributes."""
    asks: list[Use] = field(default_factory=list)
    """Of itself or of `super()`, whose attributes alone are named yet."""


@dataclass
class Sources:
    """All that was found in some files."""

    needs: list[Need] = field(default_factory=list)
    classes: dict[str, Class] = field(default_factory=dict)
    replaced: list[Use] = field(default_factory=list)
    """Functions of ours that are given to objects, under the names of attributes."""
    words: dict[str, str] = field(default_factory=dict)
    """Attributes of objects, and where one is asked for it first."""

    def anywhere(self, own: Container[str]) -> list[Need]:
        """Attributes that are of nobody known, if they are not our `own`.

        Only those of several words: others are anybody's.
        """
        asked = ((word, where) for word, where in self.words.items() if word not in own)
        several = ((word, where) for word, where in asked if "_" in word.strip("_"))
        return [Use(ANYWHERE + word, where, ours=True) for word, where in several]

    def all_needs(self) -> list[Need]:
        """Those of classes too."""
        derived = {base for each in self.classes.values() for base in each.bases}
        last = [name for name in self.classes if name not in derived]
        return self.needs + [need for name in last for need in self._of_class(name)]

    def _of_class(self, name: str) -> Iterator[Use]:
        line = [self.classes[each] for each in self._line(name)]
        for base in self._theirs(name):
            for each in line:
                for use in each.methods:
                    yield replace(use, name=of(base, use.name))
                for use in each.asks:
                    asked = line if use.ours else [other for other in line if other is not each]
                    ours = any(use.name in one.own for one in asked)
                    yield replace(use, name=of(base, use.name), ours=ours)

    def _line(self, name: str) -> list[str]:
        """The class and ours that it derives from."""
        ours = [base for base in self.classes[name].bases if base in self.classes]
        return [name, *dict.fromkeys(each for base in ours for each in self._line(base))]

    def _theirs(self, name: str) -> list[str]:
        """vLLM's classes that it derives from: its own bases, or else those of its bases."""
        bases = self.classes[name].bases
        direct = [base for base in bases if is_theirs(base)]
        ours = [base for base in bases if base in self.classes]
        return direct or [*dict.fromkeys(each for base in ours for each in self._theirs(base))]


def gather(sources: Mapping[str, str]) -> Sources:
    """What sources take of vLLM, which are given by the paths of their files."""
    found = Sources()
    for path, source in sources.items():
        _File(path, found).visit(ast.parse(source))
    return found


class _File(ast.NodeVisitor):
    def __init__(self, path: str, found: Sources) -> None:
        self.path, self.found = path, found
        self.module = path.removesuffix(".py").replace("/", ".")
        self.needs = found.needs
        self.names: dict[str, tuple[str, ...]] = {}
        """What an imported name may stand for: more than one place, if it has moved."""
        self.functions: dict[str, ast.arguments] = {}
        self.inside: Class | None = None

    def where(self, node: ast.expr | ast.stmt) -> str:
        return f"{self.path}:{node.lineno}"

    def need(self, node: ast.expr | ast.stmt, names: tuple[str, ...], **how: object) -> None:
        uses = [Use(name, self.where(node), **how) for name in names]  # type: ignore[arg-type]
        if uses:
            self.needs.append(uses[0] if len(uses) == 1 else Either(tuple((u,) for u in uses)))

    def visit_Constant(self, node: ast.Constant) -> None:
        """A module that is named to Python or to vLLM."""
        if isinstance(node.value, str) and NAMED.fullmatch(node.value):
            self.need(node, (node.value,))

    # -- imports ------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            if is_theirs(each.name):
                self.need(node, (each.name,))
                self._name(each.asname or PACKAGE, each.name if each.asname else PACKAGE)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for each in node.names:
            name = f"{node.module}:{each.name}"
            if is_theirs(name):
                self.need(node, (name,))
            self._name(each.asname or each.name, name)

    def _name(self, here: str, there: str) -> None:
        self.names[here] = (there,)

    def visit_Try(self, node: ast.Try) -> None:
        """Imports of which the second is tried if the first is not there."""
        if not any(h.type and "ImportError" in ast.unparse(h.type) for h in node.handlers):
            self.generic_visit(node)
            return
        outer, names = self.needs, self.names
        lists, named = [], []
        for body in ([*node.body, *node.orelse], [s for h in node.handlers for s in h.body]):
            self.needs, self.names = [], dict(names)
            for each in body:
                self.visit(each)
            lists.append(tuple(self.needs))
            named.append(self.names)
        outer.append(Either(tuple(lists)))
        self.needs = outer
        for name in {**named[0], **named[1]}:
            both = [place for each in named for place in each.get(name, ())]
            names[name] = tuple(dict.fromkeys(both))
        self.names = names

    # -- what is done with names ---------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._ask(node, None)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        call = Call.of(node)
        if is_name(node.func, "getattr", "hasattr"):
            for each in node.args[1:2]:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    self.found.words.setdefault(each.value, self.where(node))
        elif isinstance(node.func, ast.Name):
            self.need(node, self._theirs(node.func), call=call)
        elif isinstance(node.func, ast.Attribute):
            self._ask(node.func, call)
            self.visit(node.func.value)
        else:
            self.visit(node.func)
        for argument in (*node.args, *node.keywords):
            self.visit(argument)

    def _ask(self, node: ast.Attribute, call: Call | None) -> None:
        itself = is_name(node.value, "self")
        parent = isinstance(node.value, ast.Call) and is_name(node.value.func, "super")
        if node.attr.startswith("__") and node.attr != "__init__":
            return  # Python's
        self.found.words.setdefault(node.attr, self.where(node))
        if self.inside is not None and (itself or parent):
            use = Use(node.attr, self.where(node), call, bound=True, ours=itself)
            self.inside.asks.append(use)
        elif isinstance(node.ctx, ast.Load):
            self.need(node, self._theirs(node), call=call)

    def _theirs(self, node: ast.expr) -> tuple[str, ...]:
        """vLLM's names that an expression may stand for."""
        if isinstance(node, ast.IfExp):  # a base for the type checker
            return self._theirs(node.body)
        if isinstance(node, ast.Name):
            return tuple(filter(is_theirs, self.names.get(node.id, ())))
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            return ()
        places = filter(is_theirs, self.names.get(node.value.id, ()))
        return tuple(of(name, node.attr) for name in places)

    def visit_Assign(self, node: ast.Assign) -> None:
        parameters = self._function(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                if theirs := self._theirs(node.value):
                    self.names[target.id] = theirs
            elif isinstance(target, ast.Attribute) and parameters is not None:
                self.need(node, self._theirs(target), replacement=parameters)
                use = Use(target.attr, self.where(node), replacement=parameters)
                self.found.replaced.append(use)
        self.generic_visit(node)

    def _function(self, node: ast.expr) -> str | None:
        """The parameters, if it is a function of this file."""
        if isinstance(node, ast.Lambda):
            return said(node.args)
        known = self.functions.get(node.id) if isinstance(node, ast.Name) else None
        return None if known is None else said(known)

    # -- our own functions and classes ----------------------------------------------------

    def visit_Module(self, node: ast.Module) -> None:
        for each in ast.walk(node):
            if isinstance(each, Function):
                self.functions[each.name] = each.args
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name) and node.value is not None:
            self.names |= {node.target.id: names} if (names := self._theirs(node.value)) else {}
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """What a function imports is its own."""
        names = dict(self.names)
        self.generic_visit(node)
        self.names = names

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.inside = self.inside, Class([b for e in node.bases for b in self._base(e)])
        for each in node.body:
            if isinstance(each, Function):
                plain = not each.decorator_list
                self.inside.own.add(each.name)
                if plain and each.name != "__init__":
                    self.inside.methods.append(
                        Use(each.name, self.where(each), replacement=said(each.args), ours=True)
                    )
        for part in ast.walk(node):
            for target in assigned(part):
                self.inside.own |= {target.attr} if isinstance(target, ast.Attribute) else set()
                self.inside.own |= {target.id} if isinstance(target, ast.Name) else set()
        self.found.classes[f"{self.module}:{node.name}"] = self.inside
        self.generic_visit(node)
        self.inside = outer

    def _base(self, node: ast.expr) -> tuple[str, ...]:
        if not isinstance(node, ast.Name):
            return ()
        return self.names.get(node.id, (f"{self.module}:{node.id}",))
