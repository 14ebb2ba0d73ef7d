"""`mirage tune` as a command: output and files, refusals, and its end."""

import json
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from refusing import refused
from tune_case import write, write_trace

from mirage.config import load

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
OPTIONS = ("--trials", "8", "--processes", "1", "--profile", "h100", "--trace", "trace.csv")


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mirage", "tune", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "60"},
    )


def tune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    with start(folder, *words) as process:
        out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the configuration ``c.yaml`` and the trace ``trace.csv``."""
    folder = tmp_path_factory.mktemp("tune")
    write(folder)
    write_trace(folder)
    return folder


@pytest.fixture(scope="module")
def done(asked: Path) -> subprocess.CompletedProcess[str]:
    """Finished run of a search that succeeded, with its output in the folder ``one``."""
    done = tune(asked, "c.yaml", *OPTIONS, "--output", "one")
    assert done.returncode == 0, done.stderr
    return done


def test_it_prints_contenders_and_three_sentences(
    done: subprocess.CompletedProcess[str], asked: Path
) -> None:
    lines = done.stdout.splitlines()
    assert lines[0].startswith("NVIDIA H100 SXM 80 GB, PCIe 5 (h100), link 51 GB/s")
    for name in ("static", "pooled", "default", "fixed 0 %", "fixed 90 %", "tuned", "tuned at 0 %"):
        assert any(line.strip().startswith(name) for line in lines), name
    sentences = json.loads((asked / "one" / "tune.json").read_text())["sentences"]
    assert len(sentences) == 3
    assert lines[-4:-1] == sentences
    assert "…" not in done.stdout
    assert "mirage: tune: searching" in done.stderr


def test_the_file_it_writes_is_a_configuration(
    done: subprocess.CompletedProcess[str], asked: Path
) -> None:
    tuned, written = load(asked / "one" / "tuned.yaml"), load(asked / "c.yaml")
    assert [t.model for t in tuned.tenants] == [t.model for t in written.tenants]
    assert (tuned.device, tuned.replay) == (written.device, written.replay)


@pytest.mark.rare
def test_its_json_repeats_it_and_is_never_worse_than_the_default(
    done: subprocess.CompletedProcess[str], asked: Path
) -> None:
    found = json.loads((asked / "one" / "tune.json").read_text())
    assert len(found["trials"]) == 8
    assert found["searched"]["tuned"] >= found["searched"]["default"]
    assert {"mirage", "optuna", "python"} <= found["versions"].keys()
    words = found["command"]
    assert words[:3] == ["mirage", "tune", "c.yaml"]
    words[words.index("one")] = "two"
    again = tune(asked, *words[2:], "--processes", "2")
    assert again.returncode == 0, again.stderr
    second = json.loads((asked / "two" / "tune.json").read_text())
    for key in ("trials", "choice", "searched", "held_back", "sentences", "importances"):
        assert second[key] == found[key], key


class Outside(HTMLParser):
    """Parser that collects addresses outside a page which the page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [v for k, v in attrs if v and k in ("src", "href") and not v.startswith("#")]
        self.found += [tag] * (tag == "script")


def test_its_page_needs_nothing_else(done: subprocess.CompletedProcess[str], asked: Path) -> None:
    text = (asked / "one" / "tune.html").read_text()
    page = Outside()
    page.feed(text)
    assert page.found == []
    assert "url(http" not in text and "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert text.count("<svg") >= 4
    for title in ("What hides behind compute", "How much to remap", "How sure is it?"):
        assert f"<h2>{title}</h2>" in text


def interrupt(folder: Path, *words: str) -> None:
    """Send Ctrl-C once the search runs, and check exit code and last line."""
    with start(folder, *words) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "searching" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "mirage: interrupted: the same command goes on where it was"
    assert out == ""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_interrupted_it_says_how_to_go_on_and_writes_no_answer(asked: Path, processes: str) -> None:
    interrupt(asked, "c.yaml", *OPTIONS, "--processes", processes, "--output", "three")
    assert not any((asked / "three" / name).exists() for name in ("tuned.yaml", "tune.json"))


@pytest.mark.rare
def test_resumed_it_ends_as_if_it_had_not_been_interrupted(
    done: subprocess.CompletedProcess[str], asked: Path
) -> None:
    words = ("c.yaml", *OPTIONS, "--output", "four")
    interrupt(asked, *words)
    assert tune(asked, *words).returncode == 0
    one, four = (json.loads((asked / n / "tune.json").read_text()) for n in ("one", "four"))
    for key in ("trials", "choice", "held_back", "sentences"):
        assert one[key] == four[key]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slo", "ttft=5"], "--slo 'ttft=5': 'ttft=5' is no limit, write NAME=MILLISECONDS,"),
        (["--objective", "speed"], "--objective 'speed': choose from goodput"),
        (["--profile", "x"], "no hardware profile is named 'x'"),
        (["--trace", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["--trace", "azura"], "azura: cannot be read"),
        (["--trace", "sample", "--output", "c.yaml"], "--output c.yaml: cannot be written"),
        (["--trace", "short.csv"], "the trace has 20 requests: 80 are needed"),
        (["--trials", "0"], "--trials"),
        (["--output", "c.yaml"], "--output c.yaml: cannot be written"),
        (["--output", "one", "--seed", "1"], "has trials of another question"),
    ],
)
def test_an_option_that_is_wrong_is_one_line(
    done: subprocess.CompletedProcess[str], asked: Path, options: list[str], words: str
) -> None:
    lines = (asked / "trace.csv").read_text().splitlines()[:21]
    (asked / "short.csv").write_text("\r\n".join(lines))
    found = tune(asked, "c.yaml", *OPTIONS, *options)
    about = ("mirage: tune:", "mirage: warning:")
    said = [line for line in found.stderr.splitlines() if not line.startswith(about)]
    assert words in refused(
        subprocess.CompletedProcess([], found.returncode, found.stdout, "\n".join(said))
    )
