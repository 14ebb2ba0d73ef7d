"""docs/modules.md, made from the docstrings of all modules.

    .venv/bin/python benchmarks/modules.py docs/modules.md

Each folder has a table: a module, and the first paragraph of its docstring. A test compares the
file with what this program makes.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RINGS = {
    "Product": ("vmm", "scheduler", "mirage"),
    "Tools": ("mirage/tools",),
    "Laboratory": ("benchmarks",),
}
"""Folders of each ring; a folder belongs to the ring that names it most precisely."""
HEAD = """# Modules

The module list is made from the modules' docstrings by `benchmarks/modules.py`: change a
docstring, not this page. [architecture.md](architecture.md) explains the folders,
[ways.md](ways.md) follows a request through them.
"""


def sentence(module: Path) -> str:
    """First paragraph of a module's docstring, in one line; empty if it has no docstring."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def folders(ring: str) -> Iterator[Path]:
    """Folders of a ring that have modules, each before the folders inside it; those of another ring
    are left out.
    """
    mine = [ROOT / name for name in RINGS[ring]]
    others = [ROOT / name for names in RINGS.values() for name in names if ROOT / name not in mine]
    for top in mine:
        for folder in (top, *sorted(path for path in top.rglob("*") if path.is_dir())):
            taken = any(folder.is_relative_to(o) and o.is_relative_to(top) for o in others)
            if any(folder.glob("*.py")) and not taken:
                yield folder


def listed() -> list[Path]:
    """Paths of the modules of all rings, in the page's order."""
    return [path for ring in RINGS for folder in folders(ring) for path in modules(folder)]


def modules(folder: Path) -> list[Path]:
    """Modules of one folder, sorted, without its `__init__` and `__main__`."""
    return sorted(path for path in folder.glob("*.py") if not path.stem.startswith("__"))


def page() -> str:
    """Text of the whole page."""
    parts = [HEAD]
    for ring in RINGS:
        parts.append(f"## {ring}\n")
        for folder in folders(ring):
            said = sentence(folder / "__init__.py") if (folder / "__init__.py").exists() else ""
            parts.append(f"### {folder.relative_to(ROOT)}\n" + (f"\n{said}\n" if said else ""))
            if modules(folder):
                rows = "".join(f"| `{m.stem}` | {sentence(m)} |\n" for m in modules(folder))
                parts.append(f"| Module | |\n|---|---|\n{rows}")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="page to write")
    parser.parse_args().file.write_text(page())


if __name__ == "__main__":
    main()
