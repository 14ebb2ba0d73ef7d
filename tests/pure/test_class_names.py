"""No two classes of the product have one name: who reads a name knows where it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
PRODUCT = ("mirage", "vmm", "scheduler", "traces")


def places(root: Path) -> dict[str, list[str]]:
    """Files and lines of each class name under the product's folders."""
    found = defaultdict(list)
    for path in (path for folder in PRODUCT for path in sorted((root / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    return found


def test_each_class_name_occurs_once() -> None:
    found = places(ROOT)
    assert len(found) > 500
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_two_of_a_name_are_found(tmp_path: Path) -> None:
    for folder, text in (("mirage", "class Page: pass"), ("vmm", "def f():\n class Page: pass")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(text)
    assert places(tmp_path) == {"Page": ["mirage/a.py:1", "vmm/a.py:2"]}
