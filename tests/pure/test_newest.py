"""Installation of the newest vLLM for tests: its Python files, with the compiled kernels of another
version.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from tests import newest

pytestmark = pytest.mark.pure
FILES = (
    "vllm/__init__.py",
    "vllm/_C.abi3.so",
    "vllm/v1/core.py",
    "vllm/v1/config.json",
    "other/a.py",
)


def wheel(folder: Path, number: str, files: tuple[str, ...] = FILES) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"vllm-{number}-cp38-abi3-manylinux_2_28_x86_64.whl"
    with ZipFile(path, "w") as packed:
        for name in files:
            packed.writestr(name, number)
    return path


def test_files_of_the_one_and_kernels_of_the_other(tmp_path: Path) -> None:
    built = tmp_path / "built" / "vllm"
    (built / "attention").mkdir(parents=True)
    for library in ("_C.abi3.so", "attention/fast.so"):
        (built / library).write_text("built")
    there = tmp_path / "there"
    for number in ("0.33.0", "0.34.1"):  # the second takes the place of the first
        packed = wheel(tmp_path / "wheels", number)
        newest.add_kernels(newest.unpack(packed, there), built)
        newest.name(there, newest.version(packed))
    said = {str(p.relative_to(there)): p.read_text() for p in there.rglob("*") if p.is_file()}
    metadata = said.pop("vllm-0.34.1+cpu.dist-info/METADATA")
    assert "Version: 0.34.1+cpu\n" in metadata
    assert said == {
        "vllm/__init__.py": "0.34.1",
        "vllm/v1/core.py": "0.34.1",
        "vllm/v1/config.json": "0.34.1",
        "vllm/_C.abi3.so": "built",
        "vllm/attention/fast.so": "built",
    }


def test_the_newest_wheel_is_taken_and_older_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest.subprocess, "run", lambda *words, **how: None)
    for number in ("0.9.2", "0.33.0", "0.33.0.post1", "0.4.0"):
        wheel(tmp_path, number)
    assert newest.version(newest.download(tmp_path)) == "0.33.0.post1"
    assert len([*tmp_path.iterdir()]) == 1
