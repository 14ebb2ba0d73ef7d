"""Renews the tables of vLLM's names with which `mirage.doctor.names` compares our sources.

python -m tests.vllm_names FOLDER...

Writes those of the installed vLLM, and of the vLLM in each FOLDER, as `tests.newest` makes one.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from mirage.doctor.names.reading import gather
from mirage.doctor.names.tables import engine_needs, sources, table
from mirage.doctor.names.tree import Tree
from mirage.doctor.names.uses import Need
from mirage.vllm_hooks.versions import FOLDER
from tests.newest import installed

ROOT = Path(__file__).parents[1]
IMPORTS = re.compile(r"^ *(?:from|import) vllm\b", re.MULTILINE)
VERSION = re.compile(r"^__version__ = version = '(\d+(?:\.\d+)*)", re.MULTILINE)


def needs() -> list[Need]:
    """Names of vLLM that the engine uses, and those that tests and benchmarks import."""
    others = sources(ROOT, ("benchmarks", "tests"))
    importing = {path: text for path, text in others.items() if IMPORTS.search(text)}
    ours = engine_needs()
    return [*ours.always, *ours.graphs, *ours.anywhere, *gather(importing).needs]


def version(folder: Path) -> str:
    """Version of vLLM by the file `_version.py` of its package, which lies in `folder`."""
    found = VERSION.search((folder / "vllm" / "_version.py").read_text())
    assert found is not None, folder
    return found[1]


def renew(folder: Path) -> Path:
    """Write the table of names of the vLLM whose package lies in `folder`; return the table's
    path."""
    file = FOLDER / f"{version(folder)}.json"
    found = table(needs(), Tree(folder).said)
    file.write_text(json.dumps(found, indent=1) + "\n")
    return file


if __name__ == "__main__":
    for each in [installed().parent, *map(Path, sys.argv[1:])]:
        print(renew(each))
