"""Files that a GPU machine without a network needs: ``python -m benchmarks.gpu prepare FOLDER``.

``--part 64MiB`` is the size of a part. Wheels for the machine's platform are downloaded and
written, with these sources, as parts of at most that size, beside their checksums and `join.py`,
which checks, joins and installs them there. ``--there FILE`` leaves out the packages that the
machine has, by its ``pip list``. ``--compute 9.0`` leaves out all kernels of other GPUs and all
files that no row needs, and packs the unpacked rest by xz. Packages that are built for another
torch, such as torchvision, are always left out. Arguments after ``--`` are for pip.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.gpu import lean
from benchmarks.gpu.resolving import Lacking, There, lacking, listed

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
PRESET = 9 | lzma.PRESET_EXTREME
JOIN = Path(__file__).with_name("join.py")


class Parts:
    """File object whose content is cut into files of `nbytes`; `sums` has the SHA256 of each by
    name.
    """

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
    """Run the program and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu prepare", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", type=nbytes, default="64MiB", help="most bytes of a file")
    parser.add_argument("--python", default="3.12", help="version of Python over there")
    parser.add_argument("--machine", default="x86_64", choices=["x86_64", "aarch64"])
    parser.add_argument("--need", action="append", help="a requirement, instead of all")
    parser.add_argument("--without", action="append", default=[], help="packages that are there")
    parser.add_argument("--there", type=packages, default={}, help="file of its `pip list`")
    parser.add_argument("--compute", type=compute, help="one GPU architecture alone, as 9.0")
    own, _, pip = _cut(arguments)
    options = parser.parse_args(own)
    if options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty: name a new folder")
    without = [*WITHOUT, *options.without, *(lean.PACKAGES if options.compute else ())]
    there = There(options.python, options.machine, options.there)
    with tempfile.TemporaryDirectory() as wheels:
        try:
            found = resolved(options.need or needed(), there, without, pip)
            fetched(Path(wheels), there, found.pins.values(), pip)
        except subprocess.CalledProcessError:
            print("pip could not download all of it: nothing was written", file=sys.stderr)
            return 1
        kept = sorted(Path(wheels).iterdir())
        sums = written(options.folder, options.part, kept, options.compute)
    if found.unlike:
        print("there in another version than asked for:", ", ".join(found.unlike.values()))
    print(f"{len(kept)} packages and the sources in {len(sums)} parts: {options.folder}/join.py")
    return 0


def resolved(
    needs: Iterable[str], there: There, without: Iterable[str], pip: Iterable[str]
) -> Lacking:
    """Packages that must be carried to the machine `there`. Raises `CalledProcessError` if pip
    cannot resolve them.

    pip judges by the Python that runs it which requirements apply. Those that apply on the other
    machine alone are resolved in another round.
    """
    asked = list(needs)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--report", str(report)]
        while True:
            _pip([*words, "--target", folder], there, [*asked, *pip])
            found = lacking(json.loads(report.read_bytes()), asked, there, without)
            if not found.unresolved:
                return found
            asked += found.unresolved


def fetched(folder: Path, there: There, pins: Iterable[str], pip: Iterable[str]) -> None:
    """Download the wheels. Raises `CalledProcessError` if pip fails."""
    if pins := [*pins]:
        _pip(["download", "--no-deps", "--dest", str(folder)], there, [*pins, *pip])


def nbytes(text: str) -> int:
    """Bytes of a text such as ``"64MiB"``. Raises `ValueError` for a text of another form."""
    if not (found := re.fullmatch(r"([1-9]\d*)(KiB|MiB|GiB)", text)):
        raise ValueError(text)
    return int(found[1]) * UNITS[found[2]]


def compute(text: str) -> int:
    """Number of a text such as ``"9.0"``: 90. Raises `ValueError` for a text of another form."""
    if not (found := re.fullmatch(r"([1-9]\d?)\.(\d)", text)):
        raise ValueError(text)
    return int(found[1] + found[2])


def packages(text: str) -> dict[str, str]:
    """Versions by package name, from the file `text` with the output of ``pip list`` or ``pip
    freeze``. Raises `ArgumentTypeError` if the file cannot be read or names no package.
    """
    try:
        found = listed(Path(text).read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be read: {error}") from error
    if not found:
        raise argparse.ArgumentTypeError(f"{text} names no package: write `pip list` into it")
    return found


def needed() -> list[str]:
    """Requirements of the project, its tools, vLLM on a GPU, and the rows that are tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    tests = [one for one in extras["test"] if one.startswith(TESTS)]
    return [*project["dependencies"], *extras["vllm"], *extras["tools"], *tests]


def _pip(command: list[str], there: There, rest: list[str]) -> None:
    """Run pip for the other machine's wheels. Raises `CalledProcessError` if it fails."""
    tags = [f"manylinux_2_{minor}_{there.machine}" for minor in range(NEWEST_GLIBC, 4, -1)]
    tags += [f"manylinux2014_{there.machine}", f"linux_{there.machine}"]
    words = [sys.executable, "-m", "pip", *command, "--only-binary=:all:"]
    words += ["--python-version", there.python, "--implementation", "cp"]
    words += [word for tag in tags for word in ("--platform", tag)]
    subprocess.run([*words, *rest], check=True)


def written(
    folder: Path, part_bytes: int, wheels: Iterable[Path], compute: int | None
) -> dict[str, str]:
    """Checksums of the written parts, by name; with `compute` the parts are one xz file of unpacked
    wheels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = Parts(folder, part_bytes)
    with ExitStack() as closing:
        closing.callback(parts.close)
        file = closing.enter_context(lzma.LZMAFile(parts, "w", preset=PRESET)) if compute else parts
        tar = closing.enter_context(tarfile.open(fileobj=file, mode="w|"))  # type: ignore[call-overload]
        for wheel in wheels:
            if compute:
                _unpack(wheel, compute, tar)
            else:
                tar.add(wheel, f"wheels/{wheel.name}")
        for name in SOURCES:
            tar.add(ROOT / name, f"mirage/{name}", filter=_source)
    (folder / "parts.json").write_text(json.dumps(parts.sums, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(JOIN, folder / JOIN.name)
    return parts.sums


def _unpack(wheel: Path, compute: int, tar: tarfile.TarFile) -> None:
    for file in lean.unpacked(wheel, compute):
        info = tarfile.TarInfo(f"packages/{file.place}")
        info.size, info.mode = len(file.content), file.mode
        tar.addfile(info, io.BytesIO(file.content))


def _source(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in info.name.split("/") else info


def _cut(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    """Words before and after the first ``--``, which is between them."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:place], "--", arguments[place + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
