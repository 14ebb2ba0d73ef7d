"""A simulation's result over its seeds, its table and its page; the memory's timeline."""

import io
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.variants import KNOWN
from mirage.config import ConfigError
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.run import PLOTTED
from mirage.simulate.tally import FIRST_PERIOD_PS, SAMPLES, MemorySamples
from mirage.tools.simulate import html, report, table
from mirage.tools.simulate.command import parse_seeds

pytestmark = pytest.mark.pure

SEEDS = [0, 1]
NAMES = ("a", "b")
LATENCIES = [
    f"{statistic}_{name}_ms"
    for name in ("ttft", "tpot", "itl", "e2el")
    for statistic in ("mean", "p50", "p90", "p99")
]
COUNTS = ("completed", "preemptions", "layers_remapped_max", "bytes_restored", "moves")


def setup(**changes) -> Setup:
    workload = changes.pop("workload", {"requests": 60})
    content = {
        "title": "two <models>",
        "tenants": [
            {"name": "a", "model": "opt-13b", "share": 40, "rate": 2},
            {"name": "b", "model": "llama-2-7b", "share": 20, "rate": 1, "lengths": "alpaca"},
        ],
        "workload": workload,
        "policies": ["mirage", "lru"],
    }
    near = changes.get("near")
    return Setup(Experiment.model_validate(content | changes), near, known=KNOWN)


def figures(value: float, **changes) -> dict:
    return {
        **dict.fromkeys(COUNTS, 0),
        **dict.fromkeys(LATENCIES, 10 * value),
        "output_throughput": 1000 / value,
        "request_throughput": 10 / value,
        "bytes_streamed": 2**30,
        **changes,
    }


def run(policy: str, seed: int, value: float = 1.0, **changes) -> dict:
    line = {
        "t": [0.0, 1.0],
        "kv_extents": [3, 4],
        "kv_used_blocks": [0, 9],
        "layers_remapped": [0, 2],
    }
    curve = [value * (1 + percent) for percent in PLOTTED]
    return {
        "policy": policy,
        "seed": seed,
        **figures(value, **changes),
        "tenants": {name: figures(value) for name in NAMES},
        "curves": {"ttft_ms": curve, "itl_ms": curve},
        "timelines": dict.fromkeys(NAMES, line),
    }


def all_runs() -> list[dict]:
    """Made results of all runs: `static` is slowest, and runs with seed 1 take twice as long as
    those with 0.
    """
    slow = {"static": 4.0, "pooled": 2.0, "mirage": 1.0, "lru": 1.0}
    return [
        run(policy, seed, value * (1 + seed)) for seed in SEEDS for policy, value in slow.items()
    ]


@pytest.fixture
def result() -> dict:
    return report.build(setup(), SEEDS, all_runs())


# The result.


def test_figures_are_means_and_ranges_over_the_seeds(result):
    assert result["policies"] == ["static", "pooled", "mirage", "lru"]
    assert result["seeds"] == SEEDS
    found = result["results"]["static"]["figures"]["p99_ttft_ms"]
    assert found == {"mean": 60.0, "min": 40.0, "max": 80.0, "values": [40.0, 80.0]}
    assert set(result["results"]["static"]["tenants"]) == set(NAMES)


def test_ratios_are_against_both_baselines(result):
    against = result["results"]["mirage"]["ratios"]
    assert set(against) == {"static", "pooled"}
    assert against["static"]["p99_ttft_ms"] == {"of_means": 0.25, "min": 0.25, "max": 0.25}
    assert against["pooled"]["output_throughput"]["of_means"] == 2.0
    tenant = result["results"]["mirage"]["tenants"]["b"]["ratios"]["static"]
    assert tenant["p50_itl_ms"]["of_means"] == 0.25


def test_a_ratio_s_range_is_seed_by_seed():
    found = report.ratios([{"x": 1.0}, {"x": 6.0}], [{"x": 2.0}, {"x": 2.0}])
    assert found == {"x": {"of_means": 1.75, "min": 0.5, "max": 3.0}}


@pytest.mark.parametrize("base", [0, None])
def test_nothing_has_no_ratio(base):
    assert report.ratios([{"x": 1.0}, {"x": 1.0}], [{"x": base}, {"x": 2.0}]) == {}
    assert report.ratios([{"x": None}], [{"x": 2.0}]) == {}


def test_a_figure_that_some_seeds_lack():
    assert report.spread([None, 3.0]) == {
        "mean": 3.0,
        "min": 3.0,
        "max": 3.0,
        "values": [None, 3.0],
    }
    assert report.spread([None, None]) is None


def test_runs_may_come_in_any_order(result):
    assert report.build(setup(), SEEDS, all_runs()[::-1]) == result


def test_what_it_was_computed_from_is_in_it(result):
    assert result["experiment"]["workload"]["requests"] == 60
    assert result["hardware"]["bandwidth_gb_s"]["source"]
    assert result["models"]["a"]["layers"] == result["shapes"]["a"]["layers"] == 40
    assert [result["lengths"][name]["name"] for name in NAMES] == ["sharegpt", "alpaca"]
    assert result["variants"]["lru"] == {
        "policy": "mirage",
        "remap": {"victims": "lru"},
        "tiers": False,
        "meaning": "",
    }


def test_a_trace_is_named_as_in_the_file():
    workload = {"arrivals": "trace", "file": "/some/where/trace.csv"}
    bare = [{"name": n, "model": "opt-13b", "share": 40} for n in NAMES]
    there = setup(workload=workload, tenants=bare)
    there.near = Path("/some")
    built = report.build(there, SEEDS, all_runs())
    assert built["experiment"]["workload"]["file"] == "where/trace.csv"
    assert built["lengths"] == {}
    assert "the trace&#39;s" in html.render(built)


def test_it_is_written_with_sorted_keys(result):
    text = report.as_json(result)
    assert json.loads(text) == result
    keys = re.findall(r'^ "(\w+)"', text, re.MULTILINE)
    assert keys == sorted(keys)
    with pytest.raises(ValueError):
        report.as_json({"value": float("nan")})


def test_curves_are_averaged_percentile_by_percentile(result):
    curve = result["results"]["mirage"]["curves"]["ttft_ms"]
    assert len(curve["mean"]) == len(PLOTTED)
    assert (curve["min"][0], curve["mean"][0], curve["max"][0]) == (1.0, 1.5, 2.0)


# The table.


def cells(result, label: str) -> list:
    return next(row.cells for row in table.rows(result) if row.label == label)


def test_the_best_is_marked_and_set_against_static(result):
    found = cells(result, "TTFT P99, ms")
    assert [cell.text for cell in found] == ["60.0", "30.0", "15.0", "15.0"]
    assert [cell.ratio for cell in found] == [None, "0.50×", "0.25×", "0.25×"]
    assert [cell.best for cell in found] == [False, False, True, True]


def test_means_of_small_counts_have_a_fraction_and_large_numbers_none():
    runs = all_runs()
    runs[0] |= {"preemptions": 1, "p99_ttft_ms": 123456.7}
    built = report.build(setup(), SEEDS, runs)
    assert [cell.text for cell in cells(built, "preemptions")] == ["0.5", "0.0", "0.0", "0.0"]
    assert cells(built, "TTFT P99, ms")[2].text == "15"
    assert cells(built, "moves of memory")[0].text == "0"


def test_the_terminal_shows_the_table_and_ratios_to_pooled(result, tmp_path):
    out = io.StringIO()
    console = Console(file=out, width=120)
    table.show(result, tmp_path, console)
    shown = out.getvalue()
    for text in ("two <models>", "TPOT P99, ms", "0.25×", "Means of 2 seeds", "result.json"):
        assert text in shown
    assert "mirage against pooled: output tokens per s 2.00×, TTFT P99 0.50×" in shown
    assert "pooled against" not in shown and "static against" not in shown


# The page.


class Page(HTMLParser):
    """Parser of a report's page: fails if elements do not nest, and collects what
    would be fetched.
    """

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.references += [v for k, v in attributes if k in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)
        self.references += [v for k, v in attributes if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return html.render(report.build(setup(), SEEDS, all_runs()))


def test_the_page_needs_nothing_from_outside(page):
    assert not re.search(r"https?:|@import|url\((?!#)", page)
    found = Page(page)
    assert found.open == []
    assert all(reference.startswith("#") for reference in found.references)
    assert not {"script", "link", "img", "iframe"} & found.tags


@pytest.mark.slow
def test_the_page_is_the_same_for_the_same_result(page):
    assert html.render(report.build(setup(), SEEDS, all_runs())) == page


def test_the_page_holds_tables_pictures_and_settings(page):
    for heading in ("Throughput", "Latencies", "KV capacity and use", "Layers remapped"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<svg") == 5
    for text in (
        "40.0 – 80.0",
        "as mirage, with victims lru",
        "remap.hysteresis_s",
        "Not modelled",
    ):
        assert text in page
    assert "two &lt;models&gt;" in page and "<models>" not in page
    assert "NVIDIA GH200 data sheet: 4 TB/s" in page


def test_a_page_of_one_seed_without_timelines():
    empty = {
        name: {key: [] for key in ("t", "kv_extents", "kv_used_blocks", "layers_remapped")}
        for name in NAMES
    }
    runs = [each | {"timelines": empty} for each in all_runs() if each["seed"] == 0]
    page = html.render(report.build(setup(), [0], runs))
    assert page.count("<svg") == 3
    assert " – " not in page


def test_a_page_of_runs_in_which_nothing_finished():
    nothing = dict.fromkeys(LATENCIES) | {"output_throughput": 0.0, "request_throughput": 0.0}
    curves = {"ttft_ms": [], "itl_ms": []}
    runs = [each | nothing | {"curves": curves} for each in all_runs()]
    built = report.build(setup(), SEEDS, runs)
    assert "<h2>Latencies</h2>" in html.render(built)
    assert table.verdicts(built) == []


@pytest.mark.slow
def test_many_policies_are_drawn_side_by_side_in_several_rows():
    names = ["mirage", "lru", "swap", "uncapped"]
    runs = [run(name, 0) for name in ["static", "pooled", *names]]
    page = html.render(report.build(setup(policies=names), [0], runs))
    assert page.count("<svg") == 3 + 2 + 2


# The timeline.


def test_a_timeline_is_bounded_and_keeps_its_beginning():
    timeline = MemorySamples()
    for step in range(100_000):
        if (now := step * FIRST_PERIOD_PS) >= timeline.due:
            timeline.add((now, step, 2 * step, step % 7))
    samples = timeline.samples
    assert SAMPLES // 2 <= len(samples) < SAMPLES
    assert samples[0] == (0, 0, 0, 0)
    times = [sample[0] for sample in samples]
    gaps = {after - before for before, after in pairwise(times)}
    assert len(gaps) == 1, "even"
    assert times[-1] > 99_000 * FIRST_PERIOD_PS


# Seeds.


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", [3]),
        ("0-4", [0, 1, 2, 3, 4]),
        ("0,2,7", [0, 2, 7]),
        (" 5, 1-2 ,5", [5, 1, 2]),
        ("0-999", list(range(1000))),
    ],
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", "x", "4-0", "-1", "1-", "1,,2", "1.5", "0-1000", "0-999,1000", "9" * 30, "²"]
)
def test_seeds_that_are_none(text):
    with pytest.raises(ConfigError, match=re.escape(f"--seeds {text!r}")):
        parse_seeds(text)
