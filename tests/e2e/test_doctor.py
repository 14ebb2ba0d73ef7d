"""`mirage doctor` and the configuration of a GPU, with and without a driver for one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from model_folder import make_folder

from tests.vmm.libcuda import build

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a fake libcuda.so.1, which the loader finds before a real one."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "libcuda.so.1").symlink_to(build(folder))
    return folder


def mirage(*words: str, driver: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "200"}
    if driver is not None:
        environment["LD_LIBRARY_PATH"] = str(driver)
    return subprocess.run(
        [sys.executable, "-m", "mirage", *words],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )


@pytest.mark.slow
def test_it_says_what_works_here_and_what_to_do() -> None:
    done = mirage("doctor")
    assert done.returncode == 0, done.stderr
    assert "`mirage serve` can run here from device.kind host." in done.stdout
    assert "GPU, driver and device: without a GPU, serve from host memory" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["engine", "vLLM", "ok"] in [words[:3] for words in lines]
    assert ["hooks", "ok", "all"] in [words[:3] for words in lines]
    assert ["CUDA", "graphs", "ok"] in [words[:3] for words in lines]


@pytest.mark.rare
def test_it_tries_the_disk_that_is_named(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    tenants = "device: {memory: 64MiB}\ntenants: [{name: a, model: nowhere, share: 100}]\n"
    config.write_text(tenants)
    done = mirage("doctor", str(config))
    assert done.returncode == 2
    assert "no tiers.ssd.directory to try: name a --disk DIR" in done.stderr
    tiers = f"tiers: {{host: {{bytes: 1MiB}}, ssd: {{directory: {tmp_path / 'ssd'}, bytes: 1MiB}}}}"
    config.write_text(tenants + tiers)
    done = mirage("doctor", str(config), "--json")
    assert done.returncode == 0, done.stderr
    (found,) = [f for f in json.loads(done.stdout)["findings"] if f["topic"] == "disk"]
    assert found["what"] == str(tmp_path / "ssd") and "GB/s" in found["found"]
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


CONFIG = """
device: {kind: cuda, memory: %s}
tenants:
  - {name: a, model: %s, share: 60}
"""


@pytest.mark.parametrize(
    ("memory", "driver", "words"),
    [
        ("512MiB", False, "device.kind cuda: no NVIDIA driver"),
        ("2GiB", True, "this GPU has 1.0 GiB: lower it"),
    ],
)
def test_a_gpu_that_cannot_be_served_from_is_one_line(
    tmp_path: Path, driver_folder: Path, memory: str, driver: bool, words: str
) -> None:
    config = tmp_path / "gpu.yaml"
    config.write_text(CONFIG % (memory, tmp_path))
    done = mirage("check", str(config), driver=driver_folder if driver else None)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert words in line


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("model", "(nothing wrong was found); not checked: what vLLM says of the models"),
        ("none", "(tenant 'a': no model folder at "),
    ],
)
def test_without_a_gpu_the_rest_is_checked(tmp_path: Path, folder: str, found: str) -> None:
    make_folder(tmp_path / "model")
    config = tmp_path / "gpu.yaml"
    config.write_text(CONFIG % ("1GiB", tmp_path / folder))
    done = mirage("check", str(config))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "checked without it: the file, its folders, engine_args and the environment" in line
    assert found in line


@pytest.mark.parametrize("page", ["64KiB", "3MiB"])
def test_pages_of_a_gpu_are_2_mib_at_least(tmp_path: Path, page: str) -> None:
    config = tmp_path / "gpu.yaml"
    config.write_text((CONFIG % ("1GiB", tmp_path)).replace("cuda,", f"cuda, page: {page},"))
    done = mirage("check", str(config))
    assert done.returncode == 2 and "use a power of two from 2097152 bytes" in done.stderr
