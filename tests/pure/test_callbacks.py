"""No callback of the product is overwritten after its object was made.

A reader of a class then sees in its `__init__` what it calls. A callback that has to come later is
set once, through a method that refuses a second one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
PRODUCT = ("mirage", "vmm", "scheduler", "traces")
ATTENDED = {"read_by"}
"""Methods that take a callback once and refuse a second one."""


def trees(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """Path and syntax tree of each source file of the product."""
    for path in (path for folder in PRODUCT for path in sorted((root / folder).rglob("*.py"))):
        yield str(path.relative_to(root)), ast.parse(path.read_text())


def is_callback(annotation: ast.expr) -> bool:
    """True for an annotation `Callable[...]`, also in a union such as `Callable[...] | None`."""
    if isinstance(annotation, ast.BinOp):
        return is_callback(annotation.left) or is_callback(annotation.right)
    return ast.unparse(annotation).startswith("Callable[")


def classes(tree: ast.AST) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def assigned(tree: ast.AST) -> Iterator[tuple[ast.Attribute, ast.Assign | ast.AnnAssign]]:
    """Attributes that are set below `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Attribute):
                    yield target, node


def callbacks(made: ast.ClassDef) -> set[str]:
    """Names of a class's attributes that are callbacks: annotated with `Callable`, or set to a
    lambda somewhere.
    """
    found = {
        node.target.id
        for node in made.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and is_callback(node.annotation)
    }
    for target, node in assigned(made):
        declared = isinstance(node, ast.AnnAssign) and is_callback(node.annotation)
        if declared or isinstance(node.value, ast.Lambda):
            found.add(target.attr)
    return found


def own(target: ast.Attribute) -> bool:
    return ast.unparse(target.value) == "self"


def later(made: ast.ClassDef) -> Iterator[ast.Attribute]:
    """Assignments to a class's own callbacks in methods other than `__init__` and those of
    `ATTENDED`.
    """
    names = callbacks(made)
    for method in made.body:
        if isinstance(method, ast.FunctionDef) and method.name not in {"__init__", *ATTENDED}:
            yield from (t for t, _ in assigned(method) if own(t) and t.attr in names)


def overwritten(root: Path) -> list[str]:
    """Places, by file and line, where a callback is set later than in its object's `__init__`."""
    files = list(trees(root))
    known = {name for _, tree in files for made in classes(tree) for name in callbacks(made)}
    found = []
    for path, tree in files:
        from_outside = [
            target
            for target, node in assigned(tree)
            if target.attr in known and not own(target) and not isinstance(node.value, ast.Constant)
        ]
        own_later = [target for made in classes(tree) for target in later(made)]
        found += [f"{path}:{t.lineno} {ast.unparse(t)}" for t in from_outside + own_later]
    return found


@pytest.mark.slow
def test_no_callback_is_overwritten() -> None:
    assert overwritten(ROOT) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class A:\n told: Callable[[], None]\nclass B:\n told = 0\nb = B()\nb.told = 7", []),
        ("class A:\n def __init__(self):\n  self.names: dict[str, Callable[[], None]] = {}", []),
        ("class A:\n def __init__(self):\n  self.told = lambda: None", []),
        ("class A:\n def __init__(self, told: Callable[[], None]):\n  self.told = told", []),
        (
            "class A:\n def __init__(self):\n  self.told = lambda: None\na = A()\na.told = print",
            ["mirage/a.py:5 a.told"],
        ),
        (
            "class A:\n told: Callable[[], None]\n"
            "class B:\n def __init__(self, a):\n  a.told = print",
            ["mirage/a.py:5 a.told"],
        ),
        (
            "class A:\n def __init__(self):\n  self.told: Callable[[], None] | None = None\n"
            " def begin(self):\n  self.told = print",
            ["mirage/a.py:5 self.told"],
        ),
    ],
)
def test_it_is_found_wherever_it_is_done(tmp_path: Path, text: str, found: list[str]) -> None:
    (tmp_path / "mirage").mkdir()
    (tmp_path / "mirage" / "a.py").write_text(text)
    assert overwritten(tmp_path) == found
