"""Printed blocks in the pages about the server are what the program prints."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.gpu.dummies import hollow
from mirage.serve.registry.timeline import FIELDS

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parent.parent.parent
PAGES = ("operating", "configuring", "clients", "watching", "replaying", "trouble", "devices")
PAGE = "\n".join((ROOT / "docs" / f"{name}.md").read_text() for name in PAGES)


def mirage(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mirage", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=180,
    )


def blocks() -> list[str]:
    """Indented blocks of the page, without their indentation."""
    found = re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE)
    return ["".join(line[4:] for line in block.splitlines(keepends=True)) for block in found]


def shown(words: str) -> str:
    """The only block of the page that contains `words`."""
    (block,) = (block for block in blocks() if words in block)
    return block


def errors() -> list[str]:
    """Error messages printed in the page, each on one line, without "mirage: error: "."""
    text = shown("unknown key")
    return [" ".join(each.split()) for each in text.split("mirage: error: ")[1:]]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the demo's models and configuration."""
    folder = tmp_path_factory.mktemp("docs")
    assert mirage(folder, "models", "out/models").returncode == 0
    (folder / "configs").mkdir()
    (folder / "configs" / "demo.yaml").write_text((ROOT / "configs" / "demo.yaml").read_text())
    return folder


def changed(demo: Path, change: Any) -> str:
    """Error of `mirage check` for the demo's configuration after `change` was applied to its
    content.
    """
    content = yaml.safe_load((demo / "configs" / "demo.yaml").read_text())
    change(content)
    (demo / "configs" / "c.yaml").write_text(yaml.safe_dump(content))
    done = mirage(demo / "configs", "check", "c.yaml")
    assert done.returncode == 2
    return done.stderr.removeprefix("mirage: error: ").strip()


@pytest.mark.slow
def test_what_check_prints(demo: Path) -> None:
    done = mirage(demo, "check", "configs/demo.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown("KV up to")


def test_what_explain_prints(demo: Path) -> None:
    (demo / "configs" / "gpu.yaml").write_text((ROOT / "configs" / "gpu.yaml").read_text())
    for name in ("chat", "code"):
        hollow(demo / "out" / "models" / f"opt-13b-{name}")
    done = mirage(demo, "explain", "configs/gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert re.sub(r"\n+", "\n", done.stdout) == shown("for active models too")
    done = mirage(demo, "explain", "configs/gpu.yaml", "--hardware", "h100")
    assert done.stdout.endswith("\n\n" + shown("for idle models only"))


def test_a_key_that_is_unknown(demo: Path) -> None:
    said = changed(demo, lambda c: c["tenants"][0].update(prioritty=1))
    assert said in errors()


@pytest.mark.slow
def test_a_share_that_is_too_small(demo: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["device"]["memory"] = "100MiB"
        content["tenants"][0].update(share=32, max_model_len=512)

    assert changed(demo, change) in errors()


def test_the_timelines_example_is_its_form(demo: Path) -> None:
    text = re.sub(r",? …", "", shown('"schema_version": 3'))
    example = json.loads(text)
    config = yaml.safe_load((demo / "configs" / "demo.yaml").read_text())
    assert f"{example['device_bytes'] // 2**20}MiB" == config["device"]["memory"]
    assert set(example["samples"][0]["tenants"]["opt"]) <= set(FIELDS)
