"""The bundled trace is what the generator makes, and what its README says."""

import re

import numpy as np
import pytest

from mirage.workload.trace import read, select
from traces import SAMPLE, generate

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def requests():
    return list(read(SAMPLE))


@pytest.fixture(scope="module")
def readme():
    return SAMPLE.with_name("README.md").read_text()


def column(readme: str, row: str, number: int = 1) -> list[float]:
    """Figures in one column of a row of the README's table; a cell may have several, separated by
    "/".
    """
    cells = next(line for line in readme.splitlines() if line.startswith(f"| {row} |")).split("|")
    return [float(text.replace(",", "")) for text in cells[number + 1].split("/")]


def test_the_file_is_what_the_generator_makes():
    assert generate.render(generate.SEED, generate.REQUESTS) == SAMPLE.read_bytes()


def test_main_writes_that_file(tmp_path):
    generate.main(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == SAMPLE.read_bytes()


def test_another_seed_makes_another_trace():
    assert generate.render(generate.SEED + 1, 50) != generate.render(generate.SEED, 50)


def test_it_has_the_quirks_of_the_published_format():
    data = SAMPLE.read_bytes()
    lines = data.split(b"\r\n")
    assert lines[0] == b"TIMESTAMP,ContextTokens,GeneratedTokens"
    assert data.count(b"\n") == data.count(b"\r\n")
    assert lines[-1], "no line end after the last row"
    assert all(re.fullmatch(rb"[-\d]{10} [:\d]{8}\.\d{7},\d+,\d+", row) for row in lines[1:])


def test_the_readme_states_its_arrivals(requests, readme):
    arrivals = np.array([request.arrival_s for request in requests])
    gaps = np.diff(arrivals)
    assert column(readme, "requests") == [len(requests)]
    assert column(readme, "length, s") == [round(arrivals[-1])]
    busiest = np.bincount(arrivals.astype(int)).max()
    assert column(readme, "requests in the busiest second") == [busiest]
    assert column(readme, "longest gap, s") == [round(gaps.max())]
    assert column(readme, "inter-arrival CV") == [round(gaps.std() / gaps.mean(), 1)]
    active = len(requests) / gaps[gaps <= 30].sum()
    assert column(readme, "requests per s, gaps over 30 s left out") == [round(active, 1)]


@pytest.mark.parametrize("name", ["context", "output"])
def test_the_readme_states_its_lengths(requests, readme, name):
    tokens = [getattr(request, f"{name}_tokens") for request in requests]
    figures = [np.mean(tokens), *np.percentile(tokens, [50, 99])]
    assert column(readme, f"{name} tokens, mean / P50 / P99") == [round(f) for f in figures]


def test_the_readme_states_its_spells(requests, readme):
    arrivals = np.array([request.arrival_s for request in requests])
    starts = [0, *arrivals[1:][np.diff(arrivals) > 30].round().astype(int)]
    text = " ".join(readme.split())
    assert "They begin at 0, 221, 295, 507, 548, 762, 826, 984, 1,105 and 1,154 s" in text
    assert starts == [0, 221, 295, 507, 548, 762, 826, 984, 1105, 1154]
    first = len(select(SAMPLE, (0, 310)))
    assert f"`--window 0:310` takes the first three, {first} requests" in text


def test_it_is_as_bursty_as_windows_of_the_published_trace(requests):
    """The coefficient of variation of the sample's gaps lies between P10 and P90 of windows of 600
    requests in Azure's code trace. test_trace_azure computes both bounds.
    """
    gaps = np.diff([request.arrival_s for request in requests])
    assert 6.4 < gaps.std() / gaps.mean() < 15.2
