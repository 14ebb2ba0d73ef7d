"""Documents name files that exist, and docstrings name their subjects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import modules

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
]
NAMED = re.compile(
    r"`((?:mirage|vmm|scheduler|tests|configs|traces|benchmarks|examples)/[^`\s:*{}…<>]+)"
)
LINKED = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_links_are_there(page: Path) -> None:
    text = page.read_text()
    named = {ROOT / path.rstrip("/.,") for path in NAMED.findall(text)}
    linked = {page.parent / path for path in LINKED.findall(text)}
    missing = {path for path in named | linked if not path.exists()}
    missing = {path for path in missing if not path.with_suffix(".py").exists()}
    assert not missing, sorted(map(str, missing))


def test_readme_counts_bands_as_claims_does() -> None:
    counted = re.search(r"Of \d+ bands .* do not", (ROOT / "docs" / "claims.md").read_text())
    assert counted is not None and counted[0] in (ROOT / "README.md").read_text()


ANCHORED = re.compile(r"\]\(([\w./-]*\.md)?#([\w-]+)\)")


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub derives them; a repeated one gets a number."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = anchor = re.sub(r"[^\w\- ]", "", words).lower().replace(" ", "-")
        number = 0
        while anchor in found:
            number += 1
            anchor = f"{plain}-{number}"
        found.add(anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_headings_that_are_linked_are_there(page: Path) -> None:
    for to, anchor in ANCHORED.findall(page.read_text()):
        assert anchor in headings((page.parent / to) if to else page), f"{to}#{anchor}"


BY_NAME = re.compile(
    r"(?:pip|uv|pipx)\s(?:[a-z]+\s)*?install\s[^\n`]*?(?<![\w/.-])mirage(?![\w/-])"
)
"""Advice to install what is called mirage, by whatever options and extras."""
INSTALLING = [*PAGES, ROOT / "Makefile", *(p for p in (ROOT / "deploy").rglob("*") if p.is_file())]


@pytest.mark.parametrize("line", ["pip install mirage", "python -m pip install -U 'mirage[vllm]'"])
def test_what_another_project_would_answer_is_noticed(line: str) -> None:
    assert BY_NAME.search(line)
    assert not BY_NAME.search(line.replace("mirage", "mirage-kv"))


def test_nobody_is_told_to_install_another_project() -> None:
    """No page or source file tells a user to install `mirage` by name, because that name in the
    public registry is another project.
    """
    sources = sorted((ROOT / "mirage").rglob("*.py"))
    wrong = [path for path in (*INSTALLING, *sources) if BY_NAME.search(path.read_text())]
    assert not wrong, wrong


def test_every_folder_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    words = set(
        re.findall(r"[\w-]+", text[text.index("## The folders") : text.index("## Processes")])
    )
    modules = [
        path for name in ("mirage", "vmm", "scheduler") for path in (ROOT / name).rglob("*.py")
    ]
    absent = {path.parent for path in modules if path.parent.name not in words}
    assert not absent, sorted(str(path.relative_to(ROOT)) for path in absent)


def test_the_page_of_modules_is_what_their_docstrings_say() -> None:
    made = "make it: .venv/bin/python benchmarks/modules.py docs/modules.md"
    assert (ROOT / "docs" / "modules.md").read_text() == modules.page(), made


def test_every_module_says_what_it_is() -> None:
    silent = [path for path in modules.listed() if not modules.sentence(path)]
    assert not silent, sorted(str(path.relative_to(ROOT)) for path in silent)


CLAUSES = {"What", "Of", "Whether", "Those", "That", "Who", "How", "Which", "Where", "When"}


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a module, its classes and functions, and the texts below attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for part in body if isinstance(body, list) else ():
            match part:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield text


def test_a_docstring_names_its_subject_first() -> None:
    """No docstring begins with a clause that has no subject: `Bytes of all layers`, not `Of all
    layers`.
    """
    wrong = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in modules.listed()
        for text in docstrings(path)
        if text.split()[0].strip("`,") in CLAUSES
    ]
    assert not wrong, "\n".join(wrong)
