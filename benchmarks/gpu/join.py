"""``python3 join.py FOLDER``: check the parts beside this file, and make of them what they hold.

FOLDER then has `mirage`, the sources, and the packages are installed into the Python that runs
this, from these files alone. Needs nothing but the standard library and pip.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent


class Joined:
    """The parts, read as one file."""

    def __init__(self, parts: list[Path]) -> None:
        self._parts, self._rest = parts, b""

    def read(self, nbytes: int) -> bytes:
        while len(self._rest) < nbytes and self._parts:
            self._rest += self._parts.pop(0).read_bytes()
        now, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        return now


def wrong(sums: dict[str, str]) -> str:
    """Line that names a missing or damaged part; empty if all are as they were written."""
    for name, told in sums.items():
        part = HERE / name
        if not part.exists():
            return f"{name} is missing: all of {len(sums)} parts are needed"
        if hashlib.sha256(part.read_bytes()).hexdigest() != told:
            return f"{name} is damaged: copy it again"
    return ""


def main(folder: str) -> int:
    """The exit code."""
    sums = json.loads((HERE / "parts.json").read_text(encoding="utf-8"))
    if why := wrong(sums):
        print(why, file=sys.stderr)
        return 2
    joined = Joined([HERE / name for name in sums])
    with tarfile.open(fileobj=joined, mode="r|") as tar:  # type: ignore[call-overload]
        tar.extractall(folder, filter="data")
    wheels = sorted(map(str, (Path(folder) / "wheels").glob("*.whl")))
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", *wheels]
    if wheels and subprocess.run(pip).returncode:
        return 1
    print(f"cd {folder}/mirage && make gpu-smoke GPU_PYTHON={sys.executable}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {Path(__file__).name} FOLDER")
    sys.exit(main(sys.argv[1]))
