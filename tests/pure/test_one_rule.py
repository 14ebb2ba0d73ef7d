"""Each rule of `mirage/control` decides in a server: none is there for the simulator alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parent.parent.parent
CONTROL = ROOT / "mirage" / "control"
PACKAGES = ("serve", "engine", "tiers", "processes", "machines", "keeper")
SERVING = ("scheduler", *(f"mirage/{name}" for name in PACKAGES))
DEFINITIONS = {
    "hiding.hides": "the paper's condition, which `largest_hidden` is held against",
    "hiding.break_even": "`largest_hidden` the other way round, for `mirage explain`",
    "step_times.step_time": "the time whose bounds `step_cost_bounds` gives",
}
"""Names that no server calls, with the reason: they define or invert what a server computes."""
UNPACKED = ("covering.Rotation.gaining", "covering.Rotation.apart")
"""Attributes that are read by unpacking, so that their names do not occur."""
Name = tuple[str, str]
"""A module of `mirage.control`, and a name that it defines."""


def imported(tree: ast.AST) -> dict[str, Name]:
    """Names that a module imports from `mirage.control`: by the local name, the module and the name
    there.
    """
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mirage.control."):
            module = str(node.module).removeprefix("mirage.control.")
            found |= {name.asname or name.name: (module, name.name) for name in node.names}
    return found


def defined(tree: ast.Module) -> dict[str, ast.stmt]:
    """Functions, classes and constants at a module's top level, by name."""
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
    """All names that modules in `control` define, and those of them that files in the folders
    `serving` use, directly or through others.
    """
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


def members(control: Path) -> set[tuple[str, str, str]]:
    """Public methods and attributes of the classes in `control`: module, class and name."""
    found = set()
    for path in control.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        for each in (node for node in nodes if isinstance(node, ast.ClassDef)):
            names = [n.name for n in each.body if isinstance(n, ast.FunctionDef)]
            fields = [n.target for n in each.body if isinstance(n, ast.AnnAssign)]
            names += [target.id for target in fields if isinstance(target, ast.Name)]
            module = _module(control, path)
            found |= {(module, each.name, name) for name in names if not name.startswith("_")}
    return found


def members_without_user(control: Path, serving: list[Path]) -> set[tuple[str, str, str]]:
    """Members of `members` that no file in `control` or `serving` reads, by their names alone."""
    read: set[str] = set()
    for path in (path for folder in (control, *serving) for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
    return {member for member in members(control) if member[2] not in read}


def _module(control: Path, path: Path) -> str:
    return ".".join(path.relative_to(control).with_suffix("").parts)


def test_each_public_name_has_a_user_that_serves() -> None:
    every, reached = used_by_serving(CONTROL, [ROOT / folder for folder in SERVING])
    assert len(every) > 150 and len(reached & every) > 150
    unserved = [".".join(n) for n in every - reached if not n[1].startswith("_")]
    assert sorted(unserved) == sorted(DEFINITIONS)


def test_each_public_method_has_a_user_that_serves() -> None:
    assert len(members(CONTROL)) > 300
    unserved = members_without_user(CONTROL, [ROOT / folder for folder in SERVING])
    assert sorted(".".join(member) for member in unserved) == sorted(UNPACKED)


def test_a_method_without_such_a_user_would_be_found(tmp_path: Path) -> None:
    control, serve = tmp_path / "control", tmp_path / "serve"
    control.mkdir(), serve.mkdir()
    (control / "rule.py").write_text(
        "class Rule:\n    def asked(self): ...\n    def unasked(self): self._own()\n"
        "    def _own(self): ...\n    told: int = 0\n"
    )
    (serve / "server.py").write_text("def serve(rule): rule.told = rule.asked()\n")
    found = members_without_user(control, [serve])
    assert found == {("rule", "Rule", "unasked"), ("rule", "Rule", "told")}


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
