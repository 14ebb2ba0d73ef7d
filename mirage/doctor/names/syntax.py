"""Queries on Python's syntax trees, and the spelling of an attribute of an unknown class."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
ANYWHERE = "*:"
"""Prefix of an attribute whose class is not known."""


def is_name(node: ast.AST, *names: str) -> bool:
    """True if an expression is one of these names and nothing more."""
    return isinstance(node, ast.Name) and node.id in names


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a body and of its ``if``, ``try`` and ``with`` blocks, without those inside
    functions and classes.
    """
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


def assigned(node: ast.AST) -> Iterator[ast.expr]:
    """Targets of an assignment; those of a tuple or list one by one."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    for target in targets:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
