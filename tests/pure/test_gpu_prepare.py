"""Packages for a machine without a network are carried in parts, and joined there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import prepare

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
KIB = 1 << 10


def wheel(folder: Path, name: str, tag: str = "py3-none-any", needs: str = "") -> None:
    """Write a wheel of one module, with metadata that names what it needs, into `folder`."""
    info = f"{name}-0.1.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n"
    meta += f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(folder / f"{name}-0.1-{tag}.whl", "w") as file:
        file.writestr(f"{name}.py", "HERE = True\n")
        file.writestr(f"{info}/METADATA", meta)
        file.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "registry"
    folder.mkdir()
    wheel(folder, "engine_of_all", needs="torchvision")
    wheel(folder, "torchvision", "cp312-cp312-manylinux_2_28_x86_64")
    wheel(folder, "for_another", "cp312-cp312-manylinux_2_28_aarch64")
    wheel(folder, "nvidia_thing")
    return folder


def prepared(folder: Path, wheels: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "benchmarks.gpu", "prepare", str(folder), *options]
    words += ["--", "--no-index", "--find-links", str(wheels), "--quiet"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)


ONE = ("--part", "700KiB", "--need", "engine_of_all")


def joined(parts: Path, folder: Path, python: Path | str) -> subprocess.CompletedProcess[str]:
    words = [str(python), str(parts / "join.py"), str(folder)]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.mark.slow
def test_parts_are_joined_and_installed_on_a_machine_without_a_network(
    tmp_path: Path, wheels: Path
) -> None:
    parts, there = tmp_path / "parts", tmp_path / "there"
    done = prepared(parts, wheels, *ONE)
    assert done.returncode == 0, done.stderr
    sizes = [path.stat().st_size for path in sorted(parts.glob("part-*"))]
    assert len(sizes) > 2 and {*sizes[:-1]} == {700 * KIB} and sizes[-1] <= 700 * KIB
    assert f"1 packages and the sources in {len(sizes)} parts" in done.stdout
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    done = joined(parts, there, python)
    assert done.returncode == 0, done.stderr
    assert f"cd {there}/mirage && make gpu-smoke" in done.stdout
    subprocess.run([python, "-c", "import engine_of_all"], check=True)
    for name in ("benchmarks/gpu/plan.py", "mirage/__main__.py", "Makefile"):
        assert (there / "mirage" / name).read_bytes() == (ROOT / name).read_bytes()
    left_out = [path for path in (there / "wheels").iterdir() if "torchvision" in path.name]
    assert not left_out


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_part_that_did_not_arrive_is_named_and_nothing_is_made(
    damage: str, tmp_path: Path, wheels: Path
) -> None:
    parts = tmp_path / "parts"
    assert prepared(parts, wheels, *ONE).returncode == 0
    part = parts / "part-001"
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(b"x" + part.read_bytes()[1:])
    done = joined(parts, tmp_path / "there", sys.executable)
    assert done.returncode == 2
    assert done.stderr.startswith(f"part-001 is {damage}: ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "there").exists()


def test_what_is_there_already_is_left_out(tmp_path: Path, wheels: Path) -> None:
    needs = ("--need", "nvidia_thing", "--need", "engine_of_all", "--without", "nvidia-*")
    done = prepared(tmp_path / "parts", wheels, *needs)
    assert done.returncode == 0 and "1 packages" in done.stdout


@pytest.mark.slow
def test_wheels_are_those_of_the_other_machine(tmp_path: Path, wheels: Path) -> None:
    needs = ("--need", "for_another")
    refused = prepared(tmp_path / "one", wheels, *needs)
    assert refused.returncode == 1 and "nothing was written" in refused.stderr
    assert not (tmp_path / "one").exists()
    assert prepared(tmp_path / "other", wheels, *needs, "--machine", "aarch64").returncode == 0


@pytest.mark.parametrize("size", ["64", "0MiB", "-1MiB", "1.5MiB", "64 mb", ""])
def test_a_size_that_is_none_is_refused(size: str, tmp_path: Path, wheels: Path) -> None:
    done = prepared(tmp_path / "parts", wheels, f"--part={size}")
    assert done.returncode == 2 and "argument --part: invalid nbytes value" in done.stderr


def test_a_folder_that_has_something_is_not_written_to(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine").write_text("")
    done = prepared(tmp_path / "parts", wheels, *ONE)
    assert done.returncode == 2 and "is not empty: name a new folder" in done.stderr


def test_all_that_the_project_names_is_asked_for() -> None:
    names = {need.split("<")[0].split(">")[0].split("=")[0] for need in prepare.needed()}
    assert {"vllm", "cuda-python", "pydantic", "pytest", "hypothesis", "torch"} <= names
    assert not {"mypy", "ruff"} & names
