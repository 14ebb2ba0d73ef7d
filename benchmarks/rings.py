"""Lines of Python and of templates by ring: product, tools, laboratory and tests.

    .venv/bin/python benchmarks/rings.py [COMMIT ...]

The lines of each COMMIT are counted, by default of HEAD. Files of commits from before the rings
were separated count where they are now.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
RINGS = {
    "tests": r"tests/",
    "laboratory": r"(benchmarks|examples)/"
    r"|mirage/simulate/(claims|decod|tiering/|harvest|swap|scenes|arithmetic|experts\.)",
    "tools": r"mirage/(tools|compare|demo|explain|profile|replay|report|traces|tune)/"
    r"|mirage/simulate/(html|pictures|table|report|command|progress|pool|figures|hardware)\.",
    "product": r"(mirage|vmm|scheduler|configs|traces)/",
}
"""Paths of each ring by how they begin; the first that fits."""
COUNTED = (".py", ".j2")


def lines(commit: str) -> Counter[str]:
    """Lines by ring. Raises `subprocess.CalledProcessError` if there is no such commit."""
    command = ["git", "archive", "--format=tar", commit]
    packed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    found: Counter[str] = Counter(dict.fromkeys(RINGS, 0))
    with tarfile.open(fileobj=io.BytesIO(packed)) as tree:
        for member in tree:
            file = tree.extractfile(member) if member.name.endswith(COUNTED) else None
            if file is not None:
                found[ring(member.name)] += file.read().count(b"\n")
    return found


def ring(path: str) -> str:
    """Ring of a file. Raises `ValueError` for a file that is in no ring."""
    for name, begins in RINGS.items():
        if re.match(begins, path):
            return name
    raise ValueError(f"{path}: of no ring: name its folder in RINGS")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("commit", nargs="*", default=["HEAD"])
    columns = {commit: lines(commit) for commit in parser.parse_args().commit}
    print(f"{'ring':12}", *(f"{commit:>10}" for commit in columns))
    for name in reversed(RINGS):
        print(f"{name:12}", *(f"{found[name]:10,}" for found in columns.values()))
    print(f"{'all':12}", *(f"{found.total():10,}" for found in columns.values()))


if __name__ == "__main__":
    main()
