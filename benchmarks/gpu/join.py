"""``python3 join.py FOLDER``: check the parts beside this file, and unpack what they contain.

FOLDER then has `mirage`, the sources. Packages that came as wheels are installed into the Python
that runs this, from these files alone; those that came unpacked are in `packages`, for PYTHONPATH.
Needs nothing but the standard library, and pip for wheels.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent


class Joined:
    """File object that reads all parts as one file."""

    def __init__(self, parts: list[Path]) -> None:
        self._parts, self._part = parts, io.BytesIO()

    def read(self, nbytes: int) -> bytes:
        found = self._part.read(nbytes)
        while len(found) < nbytes and self._parts:
            self._part = io.BytesIO(self._parts.pop(0).read_bytes())
            found += self._part.read(nbytes - len(found))
        return found


def wrong(sums: dict[str, str]) -> str:
    """Line that names a missing or damaged part; empty if all parts are right."""
    for name, told in sums.items():
        part = HERE / name
        if not part.exists():
            return f"{name} is missing: all of {len(sums)} parts are needed"
        if hashlib.sha256(part.read_bytes()).hexdigest() != told:
            return f"{name} is damaged: copy it again"
    return ""


def main(folder: str) -> int:
    """Run the program and return the exit code."""
    sums = json.loads((HERE / "parts.json").read_text(encoding="utf-8"))
    if why := wrong(sums):
        print(why, file=sys.stderr)
        return 2
    joined = Joined([HERE / name for name in sums])
    with tarfile.open(fileobj=joined, mode="r|*") as tar:  # type: ignore[call-overload]
        tar.extractall(folder, filter="data")
    wheels = sorted(map(str, (Path(folder) / "wheels").glob("*.whl")))
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", *wheels]
    if wheels and subprocess.run(pip).returncode:
        return 1
    unpacked = (Path(folder) / "packages").resolve()
    path = f"PYTHONPATH={unpacked} " if unpacked.exists() else ""
    print(f"cd {folder}/mirage && {path}make gpu-smoke GPU_PYTHON={sys.executable}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {Path(__file__).name} FOLDER")
    sys.exit(main(sys.argv[1]))
