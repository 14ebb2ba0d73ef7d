"""`mirage explain` as a command: its output, its refusals, and modules that it must not import."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml
from model_folder import OPT_13B, make_unweighed
from refusing import refused

import configs

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parent.parent.parent


def explain(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return forked.run(
        ["-m", "mirage", "explain", *words],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "40"},
        timeout=180,
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Folder with c.yaml, a configuration of two OPT-13b on one GPU."""
    make_unweighed(tmp_path / "model", OPT_13B)
    write(tmp_path)
    return tmp_path


def write(folder: Path, **changes: Any) -> None:
    """Write c.yaml with `changes` in its second tenant."""
    each = {"model": "model", "share": 50}
    tenants = [{"name": "a", **each}, {"name": "b", **each, **changes}]
    device = {"kind": "cuda", "memory": "72GiB"}
    (folder / "c.yaml").write_text(yaml.safe_dump({"device": device, "tenants": tenants}))


def test_it_prints_a_table_for_each_tenant_and_three_sentences(written: Path) -> None:
    done = explain("c.yaml", folder=written)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    taken = "NVIDIA GH200 96 GB (gh200: taken for device.kind cuda, since no GPU is here)"
    assert lines[0].startswith(taken)
    assert sum(line.startswith("batch ") for line in lines) == 2
    assert "…" not in done.stdout  # nothing is cut, on a narrow terminal either
    assert lines[-3].startswith("Remapping pays here, for active models too: ")
    assert lines[-1].endswith("this link has 427 GB/s.")


def test_a_rule_that_is_no_setting_is_an_unknown_key(written: Path) -> None:
    content = yaml.safe_load((written / "c.yaml").read_text())
    (written / "c.yaml").write_text(yaml.safe_dump({**content, "remap": {"reversion": False}}))
    line = refused(explain("c.yaml", folder=written))
    assert "c.yaml: unknown key 'remap.reversion'" in line


def test_json_has_the_same_unrounded(written: Path) -> None:
    options = ("--json", "--batch", "4,2", "--hardware", "a100", "--context", "100")
    done = explain("c.yaml", *options, folder=written)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["hardware"]["name"] == "a100"
    assert [tenant["name"] for tenant in found["tenants"]] == ["a", "b"]
    assert found["tenants"][0]["load_s"] == 600 * 2**20 / 26.3e9
    assert [hidden["batch"] for hidden in found["tenants"][0]["hidden"]] == [4, 2]
    assert (found["tenants"][0]["context"], found["refused"]) == (100, {})
    assert len(found["sentences"]) == 3


def test_a_machine_of_ones_own(written: Path) -> None:
    profile = (configs.HERE / "hardware" / "h100.yaml").read_text()
    (written / "mine.yaml").write_text(profile.replace("value: 51,", "value: 500,"))
    done = explain("c.yaml", "--hardware", "mine.yaml", folder=written)
    assert done.returncode == 0, done.stderr
    assert "(mine.yaml), link 500 GB/s" in done.stdout


def test_a_model_that_only_vllm_knows_is_a_line_and_the_others_are_told(written: Path) -> None:
    make_unweighed(written / "other", {"model_type": "mamba2"})
    write(written, model="other")
    done = explain("c.yaml", folder=written)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("b "))
    assert line.startswith("b is not explained: its sizes are only vLLM's to tell")
    assert sum(line.startswith("batch ") for line in done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hardware", "x"], "no hardware profile is named 'x': known are a100, gb200, gh200,"),
        (["--hardware", "x.yaml"], "x.yaml: cannot be read"),
        (["--batch", "1,none"], "--batch '1,none': write 1 to 32 whole numbers"),
        (["--context", "0"], "--context"),
    ],
)
def test_an_option_that_is_wrong_is_one_line(written: Path, options: list[str], words: str) -> None:
    assert words in refused(explain("c.yaml", *options, folder=written))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "nowhere"}, "tenant 'b': no model folder at "),
        ({"model": "torn"}, "torn/model.safetensors: not a whole safetensors file (Error"),
        ({"engine_args": {"port": 8}}, "tenant 'b': engine_args.port follows from the rest"),
        ({"share": 60}, "mirage explain knows only tenants that are always awake"),
    ],
)
def test_a_file_or_folder_that_is_wrong_is_one_line(
    written: Path, changes: dict[str, Any], words: str
) -> None:
    write(written, **changes)
    torn = make_unweighed(written / "torn", OPT_13B) / "model.safetensors"
    torn.write_bytes(b"\xff" * 64)
    assert words in refused(explain("c.yaml", folder=written))


def test_it_imports_neither_vllm_nor_torch(written: Path) -> None:
    program = (
        "import sys\nfrom mirage.cli import main\n"
        "try: main(['explain', 'c.yaml'])\n"
        "except SystemExit as end: code = end.code or 0\n"
        "heavy = {'torch', 'vllm', 'numpy', 'matplotlib', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=written,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
