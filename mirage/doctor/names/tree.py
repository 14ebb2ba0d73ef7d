"""Names in a tree of Python sources, found by syntax: nothing is imported.

A name is `package.module:Class.attribute`, or shorter; a variable may stand for `Class`. Its entry,
which `Tree.said` looks up, has the form of a table's: the parameters of a function, or of a class's
constructor; else `MODULE`, `CLASS` or `VALUE`. A method's parameters include `self` if it is named
by its class, not if it is named by a variable.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mirage.doctor.names.signature import of_method, said, without_self
from mirage.doctor.names.syntax import ANYWHERE, Function, assigned, is_name, statements

DEFINED = re.compile(
    rb"^ *(?:async )?(?:def|class) +(\w+)"
    rb"|\bself\.(\w+)(?: *:[^=\n]+)? *=[^=]"
    rb"|^    (\w+) *(?::|=[^=])",
    re.MULTILINE,
)
MODULE, CLASS, VALUE = "<module>", "<class>", "<value>"
FIELDS = ("dataclass", "config")
"""Parts of the names of decorators that make a constructor from a class's fields."""


class Module:
    """One file: the names that its code defines, and those that it imports."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.defined: dict[str, ast.AST] = {}
        self.imported: dict[str, str] = {}
        """Full name of each import, by the name that it has in this file."""
        self.all_of: list[str] = []
        """Modules from which all names are imported."""
        for node in statements(ast.parse(path.read_bytes()).body):
            self._note(node)

    def _note(self, node: ast.stmt) -> None:
        if isinstance(node, Function | ast.ClassDef):
            self.defined[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            module = self._absolute(node)
            for each in node.names:
                self.imported[each.asname or each.name] = f"{module}:{each.name}"
            if node.names[0].name == "*":
                self.all_of.append(module)
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.asname:
                    self.imported[each.asname] = each.name
        else:
            for target in assigned(node):
                if isinstance(target, ast.Name):
                    self.defined[target.id] = node

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


class Tree:
    """The sources of a package in the folder `root`/`package`."""

    def __init__(self, root: Path, package: str = "vllm") -> None:
        self.root = root
        self.words = cache(lambda: defined(self._path(package)))
        self.module = cache(self._module)
        self.said = cache(self._said)
        self.members = cache(_members)

    def _said(self, name: str) -> str | None:
        """Entry for `name`: parameters, `MODULE`, `CLASS` or `VALUE`; None if there is no such
        name.
        """
        if name.startswith(ANYWHERE):
            return VALUE if name.removeprefix(ANYWHERE) in self.words() else None
        if ":" not in name:
            return MODULE if self._is_module(name) else None
        where, _, path = name.partition(":")
        first, _, rest = path.partition(".")
        found = self._find(f"{where}:{first}")
        if found == MODULE and rest:
            return self.said(f"{where}.{first}:{rest}")
        if found is None or isinstance(found, str):
            return None if rest else found
        module, node = found
        if not rest:
            return self._say(module, node)
        if isinstance(node, ast.ClassDef):
            return self._member(module, node, rest)
        return self._of_object(module, node, rest)

    # -- modules ------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self.root.joinpath(*name.split("."))

    def _is_module(self, name: str) -> bool:
        path = self._path(name)
        return path.is_dir() or path.with_name(f"{path.name}.py").is_file()

    def _module(self, name: str) -> Module | None:
        path = self._path(name)
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file():
                return Module(name, file)
        return None

    def _find(self, name: str) -> tuple[Module, ast.AST] | str | None:
        """Definition of `module:name`, followed through the modules that import it.

        Returns its module and syntax node, or an entry if there is no node; None if there is no
        such name.
        """
        where, _, first = name.partition(":")
        module = self.module(where)
        if module is not None and first in module.defined:
            return module, module.defined[first]
        if self._is_module(f"{where}.{first}"):
            return MODULE
        if module is None:
            return None
        if first not in module.imported:
            others = (self._find(f"{each}:{first}") for each in module.all_of)
            return next((each for each in others if each is not None), None)
        source = module.imported[first]
        if source == name or source.split(".")[0] != where.split(".")[0]:
            return VALUE  # of another package
        return self._find(source) if ":" in source else self._said(source)

    # -- classes ------------------------------------------------------------------------

    def _say(self, module: Module, node: ast.AST) -> str:
        if isinstance(node, Function):
            return said(node.args)
        if isinstance(node, ast.ClassDef):
            return self._constructor(module, node)
        return VALUE

    def _of_object(self, module: Module, node: ast.AST, name: str) -> str | None:
        """Entry of attribute `name` of the variable that `node` defines, looked up in the class
        with which the variable is annotated or from which it is made; `VALUE` if that is unknown.
        """
        kind = getattr(node, "annotation", None) or getattr(node, "value", None)
        kind = kind.func if isinstance(kind, ast.Call) else kind
        found = self._find(f"{module.name}:{ast.unparse(kind)}") if kind else None
        if not isinstance(found, tuple) or not isinstance(found[1], ast.ClassDef):
            return VALUE
        there = self._member(found[0], found[1], name)
        return None if there is None else without_self(there)

    def _constructor(self, module: Module, node: ast.ClassDef) -> str:
        """Parameters of a class's `__init__`, or its fields; `CLASS` if neither is in these
        sources.
        """
        made = self._member(module, node, "__init__")
        if made is not None and made != VALUE:
            return without_self(made)
        fields: dict[str, bool] = {}
        for _, each in reversed([*self._line(module, node)]):
            fields |= _fields(each)
        # One without a default may stand behind one with it where fields go by name alone.
        ordered = sorted(fields, key=lambda name: fields[name])
        return ", ".join(f"{name}=..." if fields[name] else name for name in ordered) or CLASS

    def _line(self, module: Module, node: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
        """The class and its base classes, as far as they are in these sources."""
        yield module, node
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            found = self._find(f"{module.name}:{ast.unparse(plain)}")
            if isinstance(found, tuple) and isinstance(found[1], ast.ClassDef):
                yield from self._line(found[0], found[1])

    def _member(self, module: Module, node: ast.ClassDef, name: str) -> str | None:
        for _, each in self._line(module, node):
            if name in (own := self.members(each)):
                return own[name]
        return None


def defined(folder: Path) -> frozenset[str]:
    """Names of all classes, functions and attributes that are defined in a folder's files."""
    matches = (m for f in folder.rglob("*.py") for m in DEFINED.finditer(f.read_bytes()))
    return frozenset(m[m.lastindex or 0].decode() for m in matches)


def _members(node: ast.ClassDef) -> dict[str, str]:
    """Entries of the names that a class defines and of the attributes that its methods set."""
    found = {}
    for each in ast.walk(node):
        for target in assigned(each):
            if isinstance(target, ast.Attribute) and is_name(target.value, "self"):
                found[target.attr] = VALUE
    for each in statements(node.body):
        found |= {t.id: VALUE for t in assigned(each) if isinstance(t, ast.Name)}
        if isinstance(each, Function):
            parameters = of_method(each)
            found[each.name] = VALUE if parameters is None else parameters
    return found


def _fields(node: ast.ClassDef) -> dict[str, bool]:
    """Fields that become parameters of a generated constructor; True for those with a default.
    Empty without such a decorator.
    """
    if not any(word in ast.unparse(each) for each in node.decorator_list for word in FIELDS):
        return {}
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return {e.target.id: e.value is not None for e in fields if isinstance(e.target, ast.Name)}
