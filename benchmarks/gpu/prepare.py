"""``python -m benchmarks.gpu prepare FOLDER --part 64MiB``: what a machine without a network needs.

Wheels for its platform are downloaded and written, with these sources, as parts that are no larger
than asked, beside their checksums and `join.py`, which checks, joins and installs them there.
What cannot be had twice over is left out: the builds of torchvision and its like are for another
torch, and no row needs them. What follows ``--`` is for pip.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (
    *("mirage", "vmm", "scheduler", "traces", "configs", "benchmarks", "tests"),
    *("docs", "Makefile", "README.md", "LICENSE", "pyproject.toml"),
)
WITHOUT = ("torchvision", "torchaudio", "torchcodec")
TESTS = ("pytest", "hypothesis")
"""Packages for tests that the driver's contract needs."""
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
NEWEST_GLIBC = 39
"""Minor glibc version of the newest manylinux tag; each older tag is asked for as well."""
JOIN = Path(__file__).with_name("join.py")


class Parts:
    """A file to be written, cut into files of `nbytes`; `sums` has the SHA256 of each by name."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        self._folder, self._nbytes = folder, nbytes
        self._held = bytearray()
        self.sums: dict[str, str] = {}

    def write(self, more: bytes) -> int:
        self._held += more
        while len(self._held) >= self._nbytes:
            self._put(self._held[: self._nbytes])
            del self._held[: self._nbytes]
        return len(more)

    def close(self) -> None:
        if self._held:
            self._put(self._held)

    def _put(self, part: bytes | bytearray) -> None:
        name = f"part-{len(self.sums):03}"
        (self._folder / name).write_bytes(part)
        self.sums[name] = hashlib.sha256(part).hexdigest()


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu prepare", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", type=nbytes, default="64MiB", help="most bytes of a file")
    parser.add_argument("--python", default="3.12", help="version of Python over there")
    parser.add_argument("--machine", default="x86_64", choices=["x86_64", "aarch64"])
    parser.add_argument("--need", action="append", help="a requirement, instead of all")
    parser.add_argument("--without", action="append", default=[], help="packages that are there")
    own, _, pip = _cut(arguments)
    options = parser.parse_args(own)
    if options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty: name a new folder")
    with tempfile.TemporaryDirectory() as wheels:
        command = download(wheels, options.python, options.machine, options.need or needed())
        if subprocess.run([*command, *pip]).returncode:
            print("pip could not download all of it: nothing was written", file=sys.stderr)
            return 1
        kept = list(keeping(sorted(Path(wheels).iterdir()), [*WITHOUT, *options.without]))
        sums = written(options.folder, options.part, kept)
    print(f"{len(kept)} packages and the sources in {len(sums)} parts: {options.folder}/join.py")
    return 0


def nbytes(text: str) -> int:
    """``"64MiB"`` in bytes. Raises `ValueError`."""
    if not (found := re.fullmatch(r"([1-9]\d*)(KiB|MiB|GiB)", text)):
        raise ValueError(text)
    return int(found[1]) * UNITS[found[2]]


def needed() -> list[str]:
    """Requirements of the project, of vLLM on a GPU, and of the rows that are tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    tests = [one for one in extras["test"] if one.startswith(TESTS)]
    return [*project["dependencies"], *extras["vllm"], *extras["tools"], *tests]


def download(folder: str, python: str, machine: str, needs: Iterable[str]) -> list[str]:
    """pip's command line for wheels of another machine."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, 4, -1)]
    tags += [f"manylinux2014_{machine}", f"linux_{machine}"]
    words = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--dest", folder]
    words += ["--python-version", python, "--implementation", "cp"]
    return [*words, *(word for tag in tags for word in ("--platform", tag)), *needs]


def keeping(wheels: Iterable[Path], without: Iterable[str]) -> Iterator[Path]:
    """Requirements whose packages are not left out; names may have stars."""
    patterns = [_plain(name) for name in without]
    for wheel in wheels:
        name = _plain(wheel.name.split("-")[0])
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            yield wheel


def written(folder: Path, part_bytes: int, wheels: Iterable[Path]) -> dict[str, str]:
    """Checksums of the parts, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = Parts(folder, part_bytes)
    with tarfile.open(fileobj=parts, mode="w|") as tar:  # type: ignore[call-overload]
        for wheel in wheels:
            tar.add(wheel, f"wheels/{wheel.name}")
        for name in SOURCES:
            tar.add(ROOT / name, f"mirage/{name}", filter=_source)
    parts.close()
    (folder / "parts.json").write_text(json.dumps(parts.sums, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(JOIN, folder / JOIN.name)
    return parts.sums


def _source(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in info.name.split("/") else info


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _cut(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    """Words before and behind the first ``--``."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:place], "--", arguments[place + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
