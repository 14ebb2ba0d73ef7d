"""`mirage simulate` as a command: files, refusals, and its end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from left_shared import shared_files

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 120


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.Popen(
        [sys.executable, "-m", "mirage", "simulate", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    )


def simulate(folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr (without progress) of `mirage simulate`."""
    process = start(folder, *words)
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    return process.returncode, out, without_progress(err)


def without_progress(err: str) -> str:
    """stderr of a command without its lines of progress, which appear every ten seconds on a busy
    machine.
    """
    lines = err.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("simulate: "))


def tenant(**changes: Any) -> dict[str, Any]:
    return {"name": "large", "model": "opt-13b", "share": 35, "rate": 20} | changes


def content(**changes: Any) -> dict[str, Any]:
    """Experiment of two models in turns, with `changes` of its keys."""
    return {
        "title": "Two models",
        "tenants": [tenant(), tenant(name="small", model="opt-6.7b", share=20, rate=4)],
        "sharing": {"mode": "temporal", "turn_s": 1, "drain": True},
        "workload": {"requests": 60},
    } | changes


def write(folder: Path, what: dict[str, Any]) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(what))
    return path


# What it writes.


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder of a successful run, and what the run printed."""
    folder = tmp_path_factory.mktemp("simulate")
    path = write(folder, content())
    code, out, err = simulate(
        folder, str(path), "--seeds", "0-1", "--policy", "mirage,growth-only", "--output", "one"
    )
    assert (code, err) == (0, "")
    return folder, out


@pytest.mark.slow
def test_every_request_is_completed_under_every_policy(done: tuple[Path, str]) -> None:
    result = json.loads((done[0] / "one" / "result.json").read_text())
    assert result["policies"] == ["static", "pooled", "mirage", "growth-only"]
    assert result["seeds"] == [0, 1]
    for part in result["results"].values():
        assert part["figures"]["completed"]["values"] == [60, 60]
        counts = [t["figures"]["completed"]["mean"] for t in part["tenants"].values()]
        assert counts == [50, 10]


def test_it_prints_a_table_and_where_the_report_is(done: tuple[Path, str]) -> None:
    folder, out = done
    for text in ("Two models", "TTFT P99, ms", "mirage against pooled", "one/report.html"):
        assert text in out
    assert "\x1b" not in out
    assert (folder / "one" / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_the_same_seeds_give_the_same_bytes(done: tuple[Path, str]) -> None:
    folder, _ = done
    words = [
        "--seeds",
        "0-1",
        "--policy",
        "mirage,growth-only",
        "--processes",
        "1",
        "--output",
        "two",
    ]
    code, _, err = simulate(folder, "experiment.yaml", *words)
    assert code == 0, err
    for name in ("result.json", "report.html"):
        assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes()


def test_help_names_its_options_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom mirage.cli import main\n"
        "try: main(['simulate', '--help'])\n"
        "except SystemExit as end: code = end.code or 0\n"
        "heavy = {'numpy', 'torch', 'vllm', 'matplotlib', 'aiohttp'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=180
    )
    assert run.returncode == 0, run.stderr
    for option in ("--seeds", "--policy", "--output", "--processes"):
        assert option in run.stdout


# What it refuses.


def assert_one_line(folder: Path, words: list[str], message: str) -> None:
    code, out, err = simulate(folder, *words)
    assert (code, out) == (2, ""), err
    (line,) = err.splitlines()
    assert line.startswith("mirage: error: ")
    assert message in line
    assert not list(folder.rglob("result.json"))


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        (content(tenants=[tenant(model="opt-14b")]), "no model shape is named 'opt-14b'"),
        (content(tenants=[tenant(rate=0)]), "tenants.0.rate: 0 requests a second: use 1e-06 to"),
        (content(tenants=[tenant(rate=1e-300)]), "tenants.0.rate: 1e-300 requests a second: use"),
        (content(tenants=[tenant(share=20)]), "tenant 'large' needs 2"),
        (content(tenants=[tenant(share=20)]), "its share of 20 %"),
        (content(tenants=[tenant(), tenant()]), "tenant name 'large' is used twice"),
        (content(tenants=[tenant(rate=None)]), "tenant 'large' has no rate"),
        (content(tenants=[tenant(lengths="chat")]), "no lengths are named 'chat'"),
        (content(tenants=[]), "tenants: "),
        (content(tenants=[tenant(model="my.yaml")]), "my.yaml: cannot be read"),
        (content(policies=["magic"]), "no policy is named 'magic'"),
        (content(hardware="gh300"), "no hardware profile is named 'gh300'"),
        (content(workload={"requests": 60, "lengths": "chat"}), "no lengths are named 'chat'"),
        (content(workload={"requests": 0}), "workload.requests: "),
        (content(workload={}), "requests is missing"),
        (content(workload={"arrivals": "trace"}), "arrivals 'trace' need a file"),
        (
            content(workload={"arrivals": "trace", "file": "no.csv"}, tenants=[tenant(rate=None)]),
            "no.csv: cannot be read",
        ),
        (
            content(workload={"arrivals": "windows", "file": "no.csv", "requests": 60}),
            "no.csv: cannot be read",
        ),
        (content(tenant=[]), "unknown key 'tenant'"),
    ],
)
def test_an_experiment_that_cannot_be_run_is_one_line(
    tmp_path: Path, experiment: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, experiment)
    assert_one_line(tmp_path, [str(path), "--seeds", "0"], message)


@pytest.mark.parametrize(
    ("text", "message"), [("- 1", "expected keys"), ("a: [", "not YAML"), ("", "expected keys")]
)
def test_a_file_that_is_no_experiment_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "experiment.yaml").write_text(text)
    assert_one_line(tmp_path, ["experiment.yaml"], f"experiment.yaml: {message}")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "nothing to replay"),
        ("2023-11-16 18:00:00,5\n", "line 2: found '2023-11-16 18:00:00,5'"),
        ("2023-11-16 18:00:00,5,0\n", "output tokens '0'"),
    ],
)
@pytest.mark.parametrize("arrivals", ["trace", "windows"])
def test_a_damaged_trace_is_one_line(
    tmp_path: Path, arrivals: str, rows: str, message: str
) -> None:
    (tmp_path / "trace.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    workload = {"arrivals": arrivals, "file": "trace.csv", "requests": 60}
    tenants = [tenant(rate=None if arrivals == "trace" else 1)]
    path = write(tmp_path, content(workload=workload, tenants=tenants))
    assert_one_line(tmp_path, [str(path), "--seeds", "0"], message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument 'EXPERIMENT'"),
        (["experiment.yaml", "--claims"], "No such option: --claims"),
        (["none.yaml"], "none.yaml: cannot be read (No such file or directory)"),
        (["experiment.yaml", "--seeds", "4-0"], "--seeds '4-0': write whole numbers"),
        (["experiment.yaml", "--seeds", "x"], "--seeds 'x': write whole numbers"),
        (["experiment.yaml", "--seeds", "-1"], "--seeds '-1': write whole numbers"),
        (["experiment.yaml", "--seeds", "0-1000"], "--seeds '0-1000': at most 1000 seeds"),
        (["experiment.yaml", "--policy", "magic"], "no policy is named 'magic'"),
        (["experiment.yaml", "--policy", ""], "no policy is named ''"),
        (["experiment.yaml", "--processes", "0"], "--processes"),
        (["experiment.yaml", "--output", "experiment.yaml"], "--output experiment.yaml: cannot"),
    ],
)
def test_a_wrong_command_line_is_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    write(tmp_path, content())
    assert_one_line(tmp_path, words, message)


# How it ends.


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Processes in which the command runs simulations."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def until(process: subprocess.Popen[str], holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """File of an experiment that takes far longer than `DEADLINE_S`."""
    return write(tmp_path, content(workload={"requests": 5_000_000}))


@pytest.mark.drawn("number")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["while processes start", "in the middle"])
def test_a_signal_ends_all_processes_in_one_line(
    tmp_path: Path, endless: Path, number: signal.Signals, when: str
) -> None:
    process = start(tmp_path, str(endless), "--processes", "2")
    try:
        until(process, lambda: len(workers(process)) == 2)
        if when == "in the middle":
            until(process, lambda: all(w.cpu_times().user > 1.5 for w in workers(process)))
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    said = without_progress(err)
    assert (process.returncode, out, said) == (130, "", "mirage: interrupted\n")
    assert not psutil.wait_procs(family, timeout=DEADLINE_S)[1]
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_of_the_terminal_reaches_the_whole_group(
    tmp_path: Path, endless: Path, number: signal.Signals
) -> None:
    """Ctrl-C, or the signal of a closed terminal, goes to all processes of the command. It ends
    with exit code 130 and one line.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "mirage", "simulate", str(endless), "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        until(process, lambda: len(workers(process)) == 2)
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert (process.returncode, without_progress(err)) == (130, "mirage: interrupted\n")


def test_without_processes_of_its_own_ctrl_c_is_the_same(tmp_path: Path, endless: Path) -> None:
    process = start(tmp_path, str(endless), "--processes", "1")
    try:
        until(process, lambda: psutil.Process(process.pid).cpu_times().user > 2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert (process.returncode, without_progress(err)) == (130, "mirage: interrupted\n")


@pytest.mark.slow
def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path, endless: Path) -> None:
    process = start(tmp_path, str(endless), "--processes", "2")
    try:
        until(process, lambda: len(workers(process)) == 2)
        until(process, lambda: all(w.cpu_times().user > 1.5 for w in workers(process)))
        family = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
    assert not psutil.wait_procs(family, timeout=DEADLINE_S)[1]
    process.communicate()


@pytest.mark.slow
def test_nothing_is_left_where_all_processes_are_killed_at_once(
    tmp_path: Path, endless: Path
) -> None:
    """While simulations run, no process has a file in /dev/shm. So nothing would be left if all
    were killed at once.
    """
    process = start(tmp_path, str(endless), "--processes", "2")
    try:
        until(process, lambda: len(workers(process)) == 2)
        until(process, lambda: all(w.cpu_times().user > 1.5 for w in workers(process)))
        family = [
            psutil.Process(process.pid),
            *psutil.Process(process.pid).children(recursive=True),
        ]
        assert not shared_files(family)
    finally:
        process.kill()
        process.communicate()


def test_a_killed_process_of_a_run_is_one_line(tmp_path: Path, endless: Path) -> None:
    process = start(tmp_path, str(endless), "--processes", "2")
    try:
        until(process, lambda: len(workers(process)) == 2)
        workers(process)[0].kill()
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 1
    (line,) = without_progress(err).splitlines()
    assert line.startswith("mirage: error: the process of a run was killed")


@pytest.mark.slow
def test_several_devices_are_told_one_by_one(tmp_path: Path) -> None:
    fleet = content(
        title="Two devices",
        sharing={"mode": "spatial"},
        devices=["one", {"name": "two", "lost": [{"at_s": 1.0}]}],
        placement={"large": ["one"], "small": ["two"]},
    )
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    code, out, err = simulate(tmp_path, "fleet.yaml", "--seeds", "0-1", "--output", "out")
    assert (code, err) == (0, "")
    assert "requests that found no replica" in out
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    shares = {name: device["shares"] for name, device in result["devices"].items()}
    assert shares == {"one": {"large": 35.0}, "two": {"small": 20.0}}
    for policy in result["policies"]:
        figures, devices = (
            result["results"][policy]["figures"],
            result["results"][policy]["devices"],
        )
        answered = sum(device["completed"]["mean"] for device in devices.values())
        assert answered == figures["completed"]["mean"]
        assert answered + figures["lost"]["mean"] == fleet["workload"]["requests"]
    assert "The devices" in (tmp_path / "out" / "report.html").read_text()


def test_a_device_that_is_none_is_named(tmp_path: Path) -> None:
    fleet = content(devices=["one"], placement={"large": ["one"], "small": ["two"]})
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    code, out, err = simulate(tmp_path, "fleet.yaml")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "placement of 'small': no device is named 'two'" in err
