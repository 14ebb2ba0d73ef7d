"""The newest vLLM's Python files over the compiled kernels of the installed vLLM for CPUs.

python -m tests.newest FOLDER

vLLM's builds for CPUs come later than others, or never. This downloads the newest build for any
device, and makes FOLDER/vllm: its Python files and data, with the compiled libraries of the
installed build. With PYTHONPATH=FOLDER programs run on it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

from packaging.version import Version

COMPILED = ".so"
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {}+cpu\n"
"""Metadata of the laid build; vLLM takes "cpu" in its version for a build for CPUs."""


def download(folder: Path) -> Path:
    """Path of the newest wheel of vLLM, downloaded into `folder` unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["download", "-q", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), "vllm"]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    *older, newest = sorted(folder.glob("vllm-*.whl"), key=lambda wheel: Version(version(wheel)))
    for wheel in older:
        wheel.unlink()
    return newest


def version(wheel: Path) -> str:
    """Version of a wheel, from its file name."""
    return wheel.name.split("-")[1]


def unpack(wheel: Path, folder: Path) -> Path:
    """Write all files of the wheel that are not compiled to `folder`/vllm, and return that."""
    shutil.rmtree(folder / "vllm", ignore_errors=True)
    with ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if name.startswith("vllm/")]
        packed.extractall(folder, [name for name in names if not name.endswith(COMPILED)])
    return folder / "vllm"


def installed() -> Path:
    """Folder of the installed vLLM, found without importing it."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise SystemExit("vLLM is not installed: make install")
    return Path(spec.origin).parent


def add_kernels(vllm: Path, of: Path) -> None:
    """Link the compiled libraries of the vLLM in `of` to the same places below `vllm`."""
    for library in of.rglob(f"*{COMPILED}"):
        link = vllm / library.relative_to(of)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(library)


def name(folder: Path, number: str) -> None:
    """Write metadata, so that Python's packaging tools find vLLM of this version for a CPU in
    `folder`.
    """
    for old in folder.glob("vllm-*.dist-info"):
        shutil.rmtree(old)
    said = folder / f"vllm-{number}+cpu.dist-info"
    said.mkdir()
    (said / "METADATA").write_text(METADATA.format(number))


def main(folder: Path) -> None:
    """Make the folder that the module's docstring describes."""
    wheel = download(folder / "wheels")
    add_kernels(unpack(wheel, folder), installed())
    name(folder, version(wheel))
    print(f"vLLM {version(wheel)} over the kernels of {installed()} is in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
