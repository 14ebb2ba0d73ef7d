"""Each rule of `mirage/control` decides in a server: none is there for the simulator alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parent.parent.parent
CONTROL = ROOT / "mirage" / "control"
SERVING = ("mirage/serve", "mirage/engine", "mirage/tiers", "mirage/processes", "scheduler")
DEFINITIONS = {
    "hiding.hides": "the paper's condition, which `largest_hidden` is held against",
    "hiding.break_even": "`largest_hidden` the other way round, for `mirage explain`",
    "step_times.step_time": "the time whose bounds `step_cost_bounds` gives",
}
"""Names that no server calls: they define, or invert, what one does."""
Name = tuple[str, str]
"""A module of `mirage.control` and what it defines."""


def imported(tree: ast.AST) -> dict[str, Name]:
    """Names of `mirage.control` that a module imports, by what it calls them."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mirage.control."):
            module = str(node.module).removeprefix("mirage.control.")
            found |= {name.asname or name.name: (module, name.name) for name in node.names}
    return found


def defined(tree: ast.Module) -> dict[str, ast.stmt]:
    """Functions, classes and constants of a module."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {t.id: node for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


def used_by_serving(control: Path, serving: list[Path]) -> tuple[set[Name], set[Name]]:
    """Names defined in `control`, and those that files in `serving` use, directly or not."""
    trees = {_module(control, path): ast.parse(path.read_text()) for path in control.rglob("*.py")}
    uses: dict[Name, set[Name]] = {}
    for module, tree in trees.items():
        own, others = defined(tree), imported(tree)
        for name, node in own.items():
            words = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            uses[module, name] = {others[w] for w in words if w in others} | {
                (module, w) for w in words if w in own
            }
    files = [path for folder in serving for path in folder.rglob("*.py")]
    new = {name for path in files for name in imported(ast.parse(path.read_text())).values()}
    reached: set[Name] = set()
    while new:
        reached |= new
        new = {used for name in new for used in uses.get(name, ())} - reached
    return set(uses), reached


def _module(control: Path, path: Path) -> str:
    return ".".join(path.relative_to(control).with_suffix("").parts)


def test_each_public_name_has_a_user_that_serves() -> None:
    every, reached = used_by_serving(CONTROL, [ROOT / folder for folder in SERVING])
    assert len(every) > 150 and len(reached & every) > 150
    unserved = [".".join(n) for n in every - reached if not n[1].startswith("_")]
    assert sorted(unserved) == sorted(DEFINITIONS)


def test_one_without_such_a_user_would_be_found(tmp_path: Path) -> None:
    control, serve = tmp_path / "control", tmp_path / "serve"
    (control / "engine").mkdir(parents=True), serve.mkdir()
    (control / "rule.py").write_text(
        "def inner(): ...\ndef served(): inner()\ndef simulated(): inner()\n"
    )
    (control / "engine" / "side.py").write_text("def asked(): ...\ndef unasked(): ...\n")
    (serve / "server.py").write_text(
        "from mirage.control.rule import served\nfrom mirage.control.engine.side import asked\n"
    )
    every, reached = used_by_serving(control, [serve])
    assert every - reached == {("rule", "simulated"), ("engine.side", "unasked")}
