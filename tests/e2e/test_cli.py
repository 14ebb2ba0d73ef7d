"""Commands that must be refused: one line, exit code 2, and nothing started."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from resource import RLIMIT_NOFILE, setrlimit
from typing import IO, Any

import forked
import pytest
import yaml
from model_folder import make_folder
from supervised import WITH_FAKES

from mirage.cli import INSTEAD, OWN_MODULES

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parent.parent.parent


def mirage(
    *words: str,
    temporary: Path | None = None,
    vllm: bool = True,
    files: tuple[int, int] | None = None,
) -> subprocess.CompletedProcess[str]:
    program = ["-m", "mirage"] if vllm else [WITH_FAKES]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    if files is None:
        return forked.run([*program, *words], env=environment, timeout=120)
    return subprocess.run(
        [sys.executable, *program, *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        preexec_fn=partial(setrlimit, RLIMIT_NOFILE, files),
    )


def content(**changes: Any) -> dict[str, Any]:
    tenants = [{"name": name, "model": "model", "share": 50, "max_model_len": 128} for name in "ab"]
    return {"device": {"memory": "64MiB"}, "tenants": tenants, "dtype": "float32"} | changes


def tenants(**changes: Any) -> dict[str, Any]:
    """Content of a valid configuration, with `changes` in its second tenant."""
    valid = content()["tenants"]
    return content(tenants=[valid[0], valid[1] | changes])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (content(tenant=1), "unknown key 'tenant'"),
        (tenants(share=101), "tenants.1.share: "),
        (tenants(name="a"), "tenant name 'a' is used twice"),
        (content(device={"memory": "64 MM"}), "'64 MM' is not a size"),
    ],
)
@pytest.mark.parametrize("command", [["serve"], ["check"]])
def test_a_config_that_cannot_be_read_is_one_line_and_nothing_starts(
    tmp_path: Path, short: Path, command: list[str], config: dict[str, Any], words: str
) -> None:
    assert words in refused(tmp_path, short, command, config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "nowhere"}, "tenant 'b': no model folder at "),
        ({"max_model_len": 100_000}, "tenant 'b': it does not fit: it needs 49.1 MiB"),
        ({"share": 0.25}, "tenant 'b': it does not fit"),
        ({"floor_layers": 99}, "tenant 'b': floor_layers is 99, its model has 2 layers: lower"),
        ({"engine_args": {"block-size": 8}}, "engine_args.block-size follows from the rest"),
        ({"engine_args": {"port": 8}}, "engine_args.port follows from the rest"),
    ],
)
@pytest.mark.parametrize("command", [["serve", "--all-or-nothing"], ["check"]])
def test_a_tenant_that_cannot_be_served_is_one_line_and_nothing_starts(
    tmp_path: Path, short: Path, command: list[str], changes: dict[str, Any], words: str
) -> None:
    line = refused(tmp_path, short, command, tenants(**changes), others=command == ["check"])
    assert words in line


def test_if_no_tenant_can_be_served_nothing_starts(tmp_path: Path, short: Path) -> None:
    none = [each | {"model": each["name"]} for each in content()["tenants"]]
    line = refused(tmp_path, short, ["serve"], content(tenants=none))
    assert "tenant 'a': no model folder at " in line
    assert "; tenant 'b': no model folder at " in line


def refused(
    folder: Path, short: Path, command: list[str], config: dict[str, Any], *, others: bool = False
) -> str:
    """The single line with which a command refuses `config`. `others` is True if the table of
    tenant `a` is printed before it.
    """
    make_folder(folder / "model")
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    done = mirage(*command, str(path), temporary=short, vllm=False)
    assert done.returncode == 2
    first = [row.split()[0] for row in done.stdout.splitlines()]
    assert first[:4] == (["tenant", "a", "device", "a:"] if others else [])
    (line,) = done.stderr.splitlines()
    assert line.startswith("mirage: error: ")
    assert not list(short.iterdir())  # not even the run folder, the first thing that is made
    return line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve"], "Missing argument 'CONFIG|MODEL...'"),
        (["serve", "none.yaml"], "none.yaml: cannot be read (No such file or directory)"),
        (["srve"], "No such command 'srve'"),
        (
            ["serve", "a/b", "--max-model-len", "9"],
            "it is vLLM's: set tenants[].max_model_len instead",
        ),
        (
            ["serve", "a/b", "--generation-config", "x"],
            "it is vLLM's: set engine_args of its tenant",
        ),
        (
            ["serve", "a/b", "--api-key", "x"],
            "MIRAGE refuses it: vLLM asks for keys on some of its",
        ),
        (["status"], "no command 'status' here: use `mirage ps`"),
        (["tenants", "add", "a"], "no command 'tenants add' here: use `mirage apply -f FILE`"),
        (["tenants", "look", "a"], "verb: 'look' is not one of 'show', 'sleep', "),
        (["serve", "none.yaml", "--policy", "magic"], "'magic' is not one of"),
        (["serve", "none.yaml", "--port", "70000"], "--port"),
        (["serve", "none.yaml", "--log-level", "loud"], "'loud' is not one of"),
        (["check"], "Missing argument 'CONFIG|MODEL...'"),
        (["fetch"], "Missing argument 'CONFIG|MODEL...'"),
        (["serve", "none.yaml", "a/b"], "'none.yaml': name one configuration file, or models"),
        (["serve", "none.yaml", "--write-config", "x"], "--write-config works only with models"),
        (["serve", "a/b", "--memory", "many"], "--memory 'many': write a size as 64GiB"),
        (["models"], "Missing argument 'DIR'"),
    ],
)
def test_a_wrong_command_line_is_one_line(words: list[str], message: str) -> None:
    done = mirage(*words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("mirage: error: ")
    assert message in line


def test_a_command_is_no_word_that_stands_for_another_one() -> None:
    assert not INSTEAD.keys() & {*OWN_MODULES, "serve", "check", "models"}


@pytest.mark.parametrize("words", [["-h"], ["ps", "-h"]])
def test_the_short_word_for_help_is_known(words: list[str]) -> None:
    done = mirage(*words)
    assert done.returncode == 0
    assert "Usage: mirage" in done.stdout


def test_models_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = mirage("models", str(tmp_path / "file"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mirage: error: {tmp_path / 'file'}: models cannot be written (")


@pytest.mark.parametrize("option", ["--ready-file", "--log-dir"])
def test_a_path_that_cannot_be_written_is_one_line(
    tmp_path: Path, short: Path, option: str
) -> None:
    make_folder(tmp_path / "model")
    (tmp_path / "file").write_text("")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content()))
    done = mirage(
        "serve", str(path), option, str(tmp_path / "file" / "x"), temporary=short, vllm=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mirage: error: {option} ")
    assert not list(short.iterdir())


@pytest.mark.parametrize(
    ("option", "path", "words"),
    [
        ("--ready-file", "", "it is no file: name another one"),
        ("--ready-file", "/dev/null", "it is no file: name another one"),
        ("--ready-file", "/proc/ready", "it cannot be written (No such file or directory)"),
        ("--ready-file", "a" * 300, "it cannot be written (File name too long)"),
        ("--log-dir", "/proc/1", "it cannot be written ("),
        ("--log-dir", "config.yaml", "it cannot be written (File exists)"),
    ],
)
def test_a_path_that_can_hold_no_file_is_one_line_and_nothing_starts(
    tmp_path: Path, short: Path, option: str, path: str, words: str
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content()))
    config, named = str(tmp_path / "config.yaml"), str(tmp_path / path)
    done = mirage("serve", config, option, named, temporary=short, vllm=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mirage: error: {option} {named}: {words}")
    assert not list(short.iterdir())
    assert Path("/dev/null").is_char_device()


def test_a_ready_file_of_another_run_is_gone_before_anything_starts(
    tmp_path: Path, short: Path
) -> None:
    path, ready = tmp_path / "config.yaml", tmp_path / "ready.json"
    ready.write_text('{"url": "http://127.0.0.1:1"}')
    path.write_text(yaml.safe_dump(content()))  # its model is missing: nothing starts
    done = mirage("serve", str(path), "--ready-file", str(ready), temporary=short, vllm=False)
    assert done.returncode == 2
    assert [each.name for each in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("command", ["serve", "check"])
def test_few_open_files_are_one_line_and_nothing_starts(
    tmp_path: Path, short: Path, command: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content()))
    done = mirage(command, str(path), temporary=short, vllm=False, files=(64, 64))
    assert done.returncode == 2
    assert done.stderr == (
        "mirage: error: a process may open 64 files here, 512 are needed: raise the limit "
        "(ulimit -n 512, or LimitNOFILE of the service)\n"
    )


def test_check_prints_what_each_share_holds(tmp_path: Path) -> None:
    make_folder(tmp_path / "model")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content()))
    done = mirage("check", str(path), "--policy", "static", vllm=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["tenant", "a", "b", "device", "a:", "b:"]
    assert "policy static" in lines[3]


@pytest.mark.parametrize(
    "command",
    [[], ["--help"], *([of, "--help"] for of in ("serve", "check", "explain", "profile", "tune"))],
)
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    program = (
        "import sys\nfrom mirage.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code or 0\n"
        "heavy = {'torch', 'vllm', 'aiohttp', 'matplotlib', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: mirage" in done.stdout


def test_replays_help_names_its_options() -> None:
    done = mirage("replay", "--help")
    assert done.returncode == 0, done.stderr
    assert "--time-scale" in done.stdout


@pytest.mark.rare
def test_models_makes_folders_that_check_accepts(tmp_path: Path) -> None:
    done = mirage("models", str(tmp_path))
    assert done.returncode == 0, done.stderr
    folders = [Path(line) for line in done.stdout.splitlines()]
    assert len(folders) == 3
    config = content(
        tenants=[{"name": folder.name, "model": str(folder), "share": 33} for folder in folders],
        device={"memory": "256MiB"},
    )
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    checked = mirage("check", str(path))
    assert checked.returncode == 0, checked.stderr
    for name in ("OPTForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"):
        assert name in checked.stdout


IMPORTING = """
import builtins, sys
imported = builtins.__import__

def interrupted(name, *rest):
    if name == "mirage.cli":
        raise KeyboardInterrupt
    return imported(name, *rest)

builtins.__import__ = interrupted
from mirage.__main__ import run
run()
"""


DOCTOR = pytest.param(["doctor", "--json"], marks=pytest.mark.slow)
"""Parameter that is marked slow: this command imports vLLM, which takes ten seconds."""


@pytest.mark.drawn("unbuffered")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--version"], ["ps", "--help"], DOCTOR])
def test_output_that_cannot_be_written_is_one_line(words: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = printing(words, full, unbuffered)
    why = "standard output cannot be written (No space left on device)"
    assert (done.returncode, done.stderr) == (1, f"mirage: error: {why}\n")


@pytest.mark.parametrize("words", [["ps", "--help"], DOCTOR])
def test_a_reader_that_has_gone_needs_no_words(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = printing(words, pipe)
    assert (done.returncode, done.stderr) == (1, "")


def printing(
    words: list[str], to: IO[str], unbuffered: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mirage", *words],
        stdout=to,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
        timeout=600,
    )


def test_ctrl_c_while_it_is_imported_is_no_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
