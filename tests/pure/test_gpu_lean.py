"""Packs for one GPU architecture: a wheel of kernels keeps what runs there, and no more."""

from __future__ import annotations

import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import lean
from benchmarks.gpu.fatbinaries import slimmed
from benchmarks.gpu.resolving import There, lacking, listed

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
PTX, CODE = 1, 2


def entry(kind: int, architecture: int, payload: bytes, header: int = 64) -> bytes:
    head = struct.pack("<HHIQ12xI", kind, 1, header, len(payload), architecture)
    return head.ljust(header, b"\1") + payload


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


AROUND = b"host code"
OLD, OWN, NEW = entry(CODE, 80, b"eighty!"), entry(CODE, 90, b"ninety!!"), entry(CODE, 120, b"new")
TEXT = entry(PTX, 90, b".version 8", 80)


def zeroed(part: bytes, nbytes: int) -> bytes:
    return part[:-nbytes] + bytes(nbytes)


def test_of_a_fat_binary_one_architectures_code_stays_and_nothing_moves() -> None:
    two = AROUND + container(OLD, OWN, TEXT, NEW) + AROUND + container(NEW) + AROUND
    gone = zeroed(OLD, 7), OWN, zeroed(TEXT, 10), zeroed(NEW, 3)
    wanted = AROUND + container(*gone) + AROUND + container(gone[3]) + AROUND
    assert slimmed(two, 90) == wanted


def test_code_of_an_older_minor_version_runs_if_there_is_no_nearer_one() -> None:
    near = entry(CODE, 86, b"near")
    assert slimmed(container(OLD, near, OWN), 89) == container(zeroed(OLD, 7), near, zeroed(OWN, 8))
    assert slimmed(container(OLD, near), 80) == container(OLD, zeroed(near, 4))


def test_a_library_none_of_whose_code_runs_there_is_none() -> None:
    assert slimmed(AROUND + container(OLD, TEXT), 90) is None


@pytest.mark.parametrize(
    "library",
    [
        b"",
        AROUND,
        struct.pack("<I", 0xBA55ED50),
        AROUND + struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 3) + OLD,
        container(OLD)[:-1],
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(OLD)) + struct.pack("<HHIQ", 2, 1, 0, 9) + OLD,
    ],
)
def test_what_is_no_fat_binary_stays_as_it_is(library: bytes) -> None:
    assert slimmed(library, 90) == library


def wheel(folder: Path, name: str, files: dict[str, bytes], *needs: str) -> None:
    info = f"{name}-0.1.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n"
    meta += "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{name}-0.1-py3-none-any.whl", "w") as file:
        for place, content in files.items():
            file.writestr(place, content)
        file.writestr(f"{info}/METADATA", meta)
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


FILES = {
    "vllm/__init__.py": b"import helper\n",
    "vllm/_C.abi3.so": container(OLD, OWN),
    "vllm/_fa2.abi3.so": container(OLD, TEXT),
    "vllm/plain.so": AROUND,
    "vllm/vllm-rs": b"server",
    "vllm/third_party/deep_gemm/include/a.h": b"header",
    "vllm-0.1.data/purelib/vllm/more.py": b"",
    "vllm-0.1.data/scripts/vllm": b"script",
}


def test_files_that_no_row_needs_stay_away(tmp_path: Path) -> None:
    wheel(tmp_path, "vllm", FILES)
    found = {one.place: one.content for one in lean.unpacked(next(tmp_path.iterdir()), 90)}
    names = {"__init__.py", "_C.abi3.so", "plain.so", "more.py"}
    info = {f"vllm-0.1.dist-info/{name}" for name in ("METADATA", "WHEEL")}
    assert found.keys() == {f"vllm/{name}" for name in names} | info
    assert found["vllm/_C.abi3.so"] == container(zeroed(OLD, 7), OWN)


@pytest.mark.slow
def test_a_pack_for_one_gpu_is_joined_without_pip(tmp_path: Path) -> None:
    registry, parts, there = (tmp_path / name for name in ("registry", "parts", "there"))
    registry.mkdir()
    wheel(registry, "vllm", FILES, "helper", "torch>0", "scipy")
    wheel(registry, "helper", {"helper.py": b""})
    wheel(registry, "scipy", {"scipy.py": b""}, "behind_scipy")
    wheel(registry, "behind_scipy", {"behind_scipy.py": b""})
    wheel(registry, "torch", {"torch.py": b""})
    (tmp_path / "list.txt").write_text("Package Version\n------- -------\ntorch   0\n")
    words = [sys.executable, "-m", "benchmarks.gpu", "prepare", str(parts), "--need", "vllm"]
    words += ["--compute", "9.0", "--there", str(tmp_path / "list.txt"), "--part", "1MiB"]
    words += ["--", "--no-index", "--find-links", str(registry), "--quiet"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "there in another version than asked for: torch 0 (>0)" in done.stdout
    assert "2 packages and the sources" in done.stdout
    words = [sys.executable, "-I", str(parts / "join.py"), str(there)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    packages = there / "packages"
    assert f"PYTHONPATH={packages} make gpu-smoke" in done.stdout
    assert {path.name for path in packages.glob("[!.]*") if "-" not in path.name} == {
        *("vllm", "helper.py")
    }
    asked = "import vllm, importlib.metadata as m; print(m.version('vllm'), vllm.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", asked], env={"PYTHONPATH": str(packages)}, text=True, stdout=-1
    )
    assert done.stdout.split() == ["0.1", str(packages / "vllm" / "__init__.py")]


@pytest.mark.parametrize("asked", ["9", "90", "9.0.1", "sm_90", "0.9", ""])
def test_an_architecture_that_is_none_is_refused(asked: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.gpu", "prepare", str(tmp_path), f"--compute={asked}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "argument --compute: invalid compute value" in done.stderr


def test_a_list_that_names_no_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("\n")
    words = [sys.executable, "-m", "benchmarks.gpu", "prepare", str(tmp_path / "parts")]
    words += ["--there", str(tmp_path / "list")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "names no package: write `pip list` into it" in done.stderr


def test_packages_are_read_as_pip_lists_and_freezes_them() -> None:
    columns = "Package Version Editable project location\n---- ---\nPyYAML  6.0  /src\nzope.x 1.0\n"
    assert listed(columns) == {"pyyaml": "6.0", "zope-x": "1.0"}
    frozen = "torch==2.11.0+cu130\nmine @ file:///src\n# a remark\n-e git+https://x#egg=y\n"
    assert listed(frozen) == {"torch": "2.11.0+cu130", "mine": ""}


REPORT = {
    "install": [
        {"metadata": {"name": name, "version": "1.0", "requires_dist": needs}}
        for name, needs in {
            "Engine": [
                *("web[fast]>=1", "torch==2", "Flash_Infer", 'old; python_version < "3.12"'),
                *('six>=1; python_version > "3.11"', 'arm; platform_machine == "aarch64"'),
            ],
            "web": ['loop; extra == "fast"', 'docs; extra == "docs"'],
            "torch": ["nvidia-blas"],
            "flash-infer": ["compiler"],
            **{name: [] for name in ("loop", "docs", "nvidia-blas", "compiler", "old", "arm")},
        }.items()
    ]
}


def test_what_only_a_package_needs_that_is_there_or_left_out_is_not_carried() -> None:
    there = There("3.12", "x86_64", {"torch": "1.9", "web-other": ""})
    found = lacking(REPORT, ["engine"], there, ["flash*"])
    assert set(found.pins.values()) == {"engine==1.0", "web==1.0", "loop==1.0"}
    assert found.unlike == {"torch": "torch 1.9 (==2)"}
    assert found.unresolved == ["six>=1"], "holds for that Python, and pip judged by its own"
