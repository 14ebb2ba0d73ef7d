"""Search of our sources for names of vLLM, by syntax.

Objects that reach our code without an imported name (an argument, an attribute of an attribute) are
not found here: `hooks.py` lists them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from mirage.doctor.names.signature import CallArguments, of_method, said
from mirage.doctor.names.syntax import Function, assigned, is_name
from mirage.doctor.names.uses import PACKAGE, Class, Either, FoundUses, NameUse, is_theirs, of

NAMED = re.compile(PACKAGE + r"(\.\w+){2,}")
"""Pattern of a text that names a module of vLLM."""


def gather(sources: Mapping[str, str]) -> FoundUses:
    """Uses of vLLM's names in `sources`, a map from a file's path to its text."""
    found = FoundUses()
    for path, source in sources.items():
        _File(path, found).visit(ast.parse(source))
    return found


class _File(ast.NodeVisitor):
    def __init__(self, path: str, found: FoundUses) -> None:
        self.path, self.found = path, found
        self.module = path.removesuffix(".py").replace("/", ".")
        self.needs = found.needs
        self.names: dict[str, tuple[str, ...]] = {}
        """Full names that each name in this file may stand for; several if vLLM has moved it."""
        self.functions: dict[str, ast.arguments] = {}
        self.inside: Class | None = None

    def where(self, node: ast.expr | ast.stmt) -> str:
        return f"{self.path}:{node.lineno}"

    def need(self, node: ast.expr | ast.stmt, names: tuple[str, ...], **how: object) -> None:
        uses = [NameUse(name, self.where(node), **how) for name in names]  # type: ignore[arg-type]
        if uses:
            self.needs.append(uses[0] if len(uses) == 1 else Either(tuple((u,) for u in uses)))

    def visit_Constant(self, node: ast.Constant) -> None:
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
        """Visit imports of which the second is tried if the first raises ImportError: one of them
        must fit.
        """
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
        call = CallArguments.of(node)
        if is_name(node.func, "getattr", "hasattr"):
            for each in node.args[1:2]:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    self.found.words.setdefault(each.value, self.where(node))
        elif isinstance(node.func, ast.Name):
            self.found.made |= {*self._base(node.func)}
            self.need(node, self._theirs(node.func), call=call)
        elif isinstance(node.func, ast.Attribute):
            self._ask(node.func, call)
            self.visit(node.func.value)
        else:
            self.visit(node.func)
        for argument in (*node.args, *node.keywords):
            self.visit(argument)

    def _ask(self, node: ast.Attribute, call: CallArguments | None) -> None:
        itself = is_name(node.value, "self")
        parent = isinstance(node.value, ast.Call) and is_name(node.value.func, "super")
        if node.attr.startswith("__") and node.attr != "__init__":
            return  # Python's
        self.found.words.setdefault(node.attr, self.where(node))
        if self.inside is not None and (itself or parent):
            use = NameUse(node.attr, self.where(node), call, bound=True, ours=itself)
            self.inside.asks.append(use)
        elif isinstance(node.ctx, ast.Load):
            self.need(node, self._theirs(node), call=call)

    def _theirs(self, node: ast.expr) -> tuple[str, ...]:
        """Names of vLLM that an expression may stand for."""
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
                use = NameUse(target.attr, self.where(node), replacement=parameters)
                self.found.replaced.append(use)
        self.generic_visit(node)

    def _function(self, node: ast.expr) -> str | None:
        """Parameters of a function of this file; None for any other expression."""
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

    def visit_FunctionDef(self, node: Function) -> None:
        """Visit a function. Names that it imports are valid only inside it."""
        names = dict(self.names)
        self.generic_visit(node)
        self.names = names

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.inside = self.inside, Class([b for e in node.bases for b in self._base(e)])
        for each in node.body:
            if isinstance(each, Function):
                self.inside.own.add(each.name)
                if each.name != "__init__":  # which vLLM does not call but through our class
                    use = NameUse(
                        each.name, self.where(each), replacement=of_method(each), ours=True
                    )
                    self.inside.methods.append(use)
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
