"""Azure's published files, where they lie beside the checkout: counts and README figures."""

from pathlib import Path

import numpy as np
import pytest

from mirage.workload.trace import read
from traces import SAMPLE

pytestmark = pytest.mark.pure

PUBLISHED = Path(__file__).parents[3] / "shared" / "traces"
COLUMN = {"code": 2, "conv": 3}


def load(name):
    path = PUBLISHED / f"AzureLLMInferenceTrace_{name}.csv"
    if not path.exists():
        pytest.skip(f"Azure's published {path.name} is not beside this checkout")
    return list(read(path))


@pytest.fixture(scope="module", params=COLUMN)
def published(request):
    return request.param, load(request.param)


def test_counts(published):
    name, requests = published
    assert len(requests) == {"code": 8819, "conv": 19366}[name]


def test_lengths_and_burstiness(published):
    name, requests = published
    gaps = np.diff([request.arrival_s for request in requests])
    context = [request.context_tokens for request in requests]
    assert round(np.mean(context)) == {"code": 2048, "conv": 1155}[name]
    assert round(gaps.std() / gaps.mean(), 1) == {"code": 13.2, "conv": 1.1}[name]


def test_the_sample_readme_states_their_figures(published):
    name, requests = published
    arrivals = np.array([request.arrival_s for request in requests])
    gaps = np.diff(arrivals)
    stated = {
        "requests": [len(requests)],
        "length, s": [round(arrivals[-1])],
        "requests in the busiest second": [np.bincount(arrivals.astype(int)).max()],
        "longest gap, s": [round(gaps.max(), 1 if gaps.max() < 100 else None)],
        "inter-arrival CV": [round(gaps.std() / gaps.mean(), 1)],
        "requests per s, gaps over 30 s left out": [
            round(len(requests) / gaps[gaps <= 30].sum(), 1)
        ],
    }
    for kind in ("context", "output"):
        tokens = [getattr(request, f"{kind}_tokens") for request in requests]
        figures = [np.mean(tokens), *np.percentile(tokens, [50, 99])]
        stated[f"{kind} tokens, mean / P50 / P99"] = [round(figure) for figure in figures]
    lines = SAMPLE.with_name("README.md").read_text().splitlines()
    for row, figures in stated.items():
        cells = next(line for line in lines if line.startswith(f"| {row} |")).split("|")
        found = [float(text.replace(",", "")) for text in cells[COLUMN[name] + 1].split("/")]
        assert found == figures, row


def test_windows_of_the_code_trace():
    gaps = np.diff([request.arrival_s for request in load("code")])
    windows = [gaps[first : first + 599] for first in range(0, len(gaps) - 599, 50)]
    spread = np.percentile([window.std() / window.mean() for window in windows], [10, 50, 90])
    assert spread.round(1).tolist() == [6.4, 9.8, 15.2]
