"""report.json's keys and verdicts; report.html needs nothing from outside."""

import dataclasses
import io
import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from rich.console import Console

from mirage.samples import Sample, TenantSample, TenantShape
from mirage.tools.replay import html, pictures, report, table
from mirage.tools.replay.client import Outcome
from mirage.tools.replay.run import PolicyRun
from mirage.tools.replay.timeline import RecordedTimeline
from mirage.tools.replay.trail import NOTHING, trail
from mirage.tools.report import comparison, drawing
from mirage.tools.report.slo import Slo
from mirage.workload.dealing import TenantRequest

pytestmark = pytest.mark.pure

SETTING = report.Setting("demo.yaml", "sample", (0.0, 60.0), 0.1, 0.2, 7, None)
SHAPE = TenantShape(layers=12, layer_bytes=1000, extent_bytes=100, extent_blocks=4)
CALLS = [TenantRequest(i, i / 10, "ab"[i % 2], 10, 4, clipped=i == 3) for i in range(6)]
REQUIRED = [
    *("policy", "completed", "failed", "preemptions", "duration"),
    *("request_throughput", "output_throughput", "layers_remapped_max"),
    *("kv_blocks_granted_max", "bytes_streamed", "tenants", "timeline"),
    *(
        f"{statistic}_{name}"
        for statistic in ("mean", "p50", "p99")
        for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
    ),
]


def outcomes(slow=1.0, count=6) -> list[Outcome]:
    return [
        Outcome(
            call=call,
            sent_s=call.at_s,
            lag_s=0.002,
            ended_s=call.at_s + slow,
            ttft_s=0.1 * slow * (call.index + 1),
            e2el_s=0.1 * slow * (call.index + 1) + 0.09,
            itl_s=(0.01, 0.02, 0.06),
            prompt_tokens=10,
            output_tokens=4,
            output=trail("", (1, 2, 3, call.index)),
            error=None,
        )
        for call in CALLS[:count]
    ]


def timeline(preempted: int, layers_remapped: int) -> RecordedTimeline:
    def tenant(t: int, layers_remapped: int) -> TenantSample:
        counted = {"preemptions": 5 + preempted * t, "bytes_streamed": 1000 * t, "stall_s": 0.5 * t}
        return TenantSample(20 + t, 10, layers_remapped, 2, 3, 1, 50_000, **counted)

    samples = [
        Sample(float(t), {"a": tenant(t, layers_remapped), "b": tenant(t, 0)}) for t in range(5)
    ]
    return RecordedTimeline(samples, 200_000, {"a": SHAPE, "b": SHAPE}, 1)


def run(policy="static", slow=1.0, preempted=0, layers_remapped=0, **changes) -> PolicyRun:
    return PolicyRun(
        **{
            "policy": policy,
            "calls": CALLS,
            "outcomes": outcomes(slow),
            "duration_s": 2.0,
            "timeline": timeline(preempted, layers_remapped),
            **changes,
        }
    )


def changed(at: int, **fields) -> list[Outcome]:
    found = outcomes()
    found[at] = dataclasses.replace(found[at], **fields)
    return found


@pytest.fixture
def three():
    return [
        run("static", 3.0, preempted=2),
        run("pooled", 2.0),
        run("mirage", 1.0, layers_remapped=3),
    ]


def test_every_run_has_the_keys(three):
    built = report.build(SETTING, three)
    assert [part["policy"] for part in built["runs"]] == ["static", "pooled", "mirage"]
    for part in built["runs"]:
        assert set(REQUIRED) <= set(part)
        assert set(part["tenants"]) == {"a", "b"}


def test_figures_of_a_run(three):
    static, _, mirage = report.build(SETTING, three)["runs"]
    assert (static["completed"], static["failed"], static["duration"]) == (6, 0, 2.0)
    assert (static["preemptions"], mirage["preemptions"]) == (16, 0)
    assert (static["layers_remapped_max"], mirage["layers_remapped_max"]) == (0, 3)
    assert static["kv_blocks_granted_max"] == 48
    assert (static["bytes_streamed"], static["stall_s"]) == (8000, 4.0)
    assert static["output_throughput"] == 12.0
    assert static["max_lag_ms"] == 2.0
    assert mirage["mean_ttft_ms"] == pytest.approx(350)


def test_figures_of_a_tenant(three):
    static, _, mirage = report.build(SETTING, three)["runs"]
    assert static["tenants"]["a"]["preemptions"] == 8
    assert static["tenants"]["b"]["requests"] == 3
    assert mirage["tenants"]["a"]["mean_ttft_ms"] == pytest.approx(300)
    assert mirage["tenants"]["b"]["layers_remapped_max"] == 0


def test_a_tenant_has_its_own_goodput(three):
    setting = dataclasses.replace(SETTING, slo=Slo(ttft_ms=350))
    found = report.build(setting, three)["runs"][2]
    each = {name: (one["slo_met"], one["goodput"]) for name, one in found["tenants"].items()}
    assert sum(met for met, _ in each.values()) == found["slo_met"] == 3
    assert each == {name: (met, met / 2.0) for name, (met, _) in each.items()}


def test_the_setting_is_in_it(three):
    built = report.build(SETTING, three, now=datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert built["date"] == "2025-01-02T03:04:05+00:00"
    assert (built["trace"], built["window"], built["seed"]) == ("sample", (0.0, 60.0), 7)
    assert (built["requests"], built["clipped"], built["schema_version"]) == (6, 1, 1)
    assert re.match(r"\d+ x \S", built["machine"])


def test_outputs_identical(three):
    built = report.build(SETTING, three)
    assert built["outputs_identical"] is True
    assert (built["outputs_different"], built["differences"]) == (0, [])


@pytest.mark.parametrize(
    ("output", "at"),
    [(trail("", (1, 2, 9, 4)), 2), (trail("", (1, 2)), 2), (trail("", (1, 2, 3, 4, 5)), 4)],
)
def test_outputs_that_differ_are_counted_and_named(three, output, at):
    odd = list(three[2].outcomes)
    odd[4] = dataclasses.replace(odd[4], output=output)
    three[2] = dataclasses.replace(three[2], outcomes=odd)
    built = report.build(SETTING, three)
    assert (built["outputs_identical"], built["outputs_different"]) == (False, 1)
    assert built["differences"] == [{"request": 4, "tenant": "a", "first_difference_at": at}]


def test_of_several_runs_that_differ_the_first_position_is_told(three):
    for number, output in ((1, trail("", (1, 2, 3, 9))), (2, trail("", (1, 9, 3, 4)))):
        odd = list(three[number].outcomes)
        odd[4] = dataclasses.replace(odd[4], output=output)
        three[number] = dataclasses.replace(three[number], outcomes=odd)
    assert report.differences(three) == [{"request": 4, "tenant": "a", "first_difference_at": 1}]


def test_a_failed_request_is_not_identical_but_not_different_either():
    bad = changed(2, error="HTTP 500: no", output=NOTHING)
    built = report.build(SETTING, [run(), run("mirage", outcomes=bad)])
    assert (built["outputs_identical"], built["outputs_different"]) == (False, 0)
    assert built["runs"][1]["failed"] == 1
    assert built["runs"][1]["errors"] == {"HTTP 500: no": 1}
    assert built["runs"][1]["tenants"]["a"]["failed"] == 1


def test_one_policy_cannot_be_compared():
    built = report.build(SETTING, [run()])
    assert built["outputs_identical"] is built["outputs_different"] is None


def test_an_interrupted_run_is_shown_and_not_compared():
    partly = run("mirage", outcomes=outcomes(count=2), interrupted=True)
    built = report.build(SETTING, [run(), partly])
    assert built["interrupted"] and built["outputs_identical"] is None
    assert built["runs"][1]["completed"] == 2
    assert report.build(SETTING, [run(), run("pooled"), partly])["outputs_identical"] is True


def test_a_server_without_a_timeline():
    built = report.build(SETTING, [run(timeline=None)])
    part = built["runs"][0]
    assert part["preemptions"] is part["timeline"] is part["tenants"]["a"]["bytes_streamed"] is None
    page = html.render(built, [run(timeline=None)])
    assert page.count("<svg") == 1


def test_it_is_written_as_json(three, tmp_path):
    report.write(report.build(SETTING, three), tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["runs"][2]["timeline"]["tenants"]["a"]["layers_remapped"] == [3] * 5
    with pytest.raises(ValueError):
        report.write({"value": float("nan")}, tmp_path / "nan.json")


# The table that people read.


def cells(three, label: str) -> list[comparison.Cell]:
    runs = report.build(SETTING, three)["runs"]
    rows = comparison.rows(runs, [part["policy"] for part in runs])
    return next(row.cells for row in rows if row.label == label)


def test_the_best_is_marked_and_set_against_static(three):
    found = cells(three, "TTFT P50, ms")
    assert [cell.text for cell in found] == ["1,050.0", "700.0", "350.0"]
    assert [cell.ratio for cell in found] == [None, "0.67×", "0.33×"]
    assert [cell.best for cell in found] == [False, False, True]


def test_more_is_better_for_throughput(three):
    three[1] = dataclasses.replace(three[1], duration_s=1.0)
    assert [cell.best for cell in cells(three, "requests per s")] == [False, True, False]


def test_nobody_is_best_where_all_are_equal(three):
    assert not any(cell.best for cell in cells(three, "requests completed"))
    assert not any(cell.best or cell.ratio for cell in cells(three, "layers remapped, most"))


def test_unknown_figures_are_a_dash():
    runs = [run(), run("mirage", timeline=None)]
    assert [cell.text for cell in cells(runs, "preemptions")] == ["0", "–"]


def test_the_terminal_shows_the_table_and_the_verdict(three, tmp_path):
    out = io.StringIO()
    console = Console(file=out, width=120)
    table.show(report.build(SETTING, three), tmp_path, console)
    shown = out.getvalue()
    for text in ("static", "TTFT P99, ms", "0.33×", "the same under every policy", "report.html"):
        assert text in shown


# The page.


class Page(HTMLParser):
    """Parser of report.html: fails if elements do not nest, and collects the attributes that would
    fetch something.
    """

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        wanted = ("src", "href", "xlink:href", "data", "action")
        self.references += [value for name, value in attributes if name in wanted]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def page(three):
    return html.render(report.build(SETTING, three), three)


def test_the_page_needs_nothing_from_outside(page):
    assert not re.search(r"https?:|//\w+\.|@import|url\((?!#)", page)
    found = Page(page)
    assert all(reference.startswith("#") for reference in found.references)
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert found.open == []
    assert '<meta name="viewport" content="width=device-width' in page
    assert "color-scheme: light dark" in page and "prefers-color-scheme: dark" in page
    assert page.count("<svg") == page.count('<svg role="img" aria-label="')


def test_the_page_holds_every_picture_and_table(page):
    assert page.count("<svg") == page.count("</svg>") == 1 + len(html.MEMORY)
    for text in ("KV capacity and use", "Layers remapped", "Latency distributions", "Pressure"):
        assert f"<h2>{text}</h2>" in page
    assert page.count("<table ") == 1 + 2, "all together, and one for each tenant"
    assert 'class="best"' in page and "0.33×" in page


def test_ids_are_the_page_s_own(page):
    ids = re.findall(r'<(?:path|clipPath) id="([^"]*)"', page)
    assert ids and len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(ids)


def test_names_are_escaped(three):
    setting = dataclasses.replace(SETTING, trace="<script>alert(1)</script>")
    page = html.render(report.build(setting, three), three)
    assert "<script" not in page and "&lt;script&gt;" in page


@pytest.mark.slow
def test_verdicts_on_the_page(three, page):
    assert "the same under every policy" in page
    one = html.render(report.build(SETTING, [run()]), [run()])
    assert "Outputs not compared" in one
    again = [run(), run()]
    assert "the same in every repeat" in html.render(report.build(SETTING, again), again)
    bad = [run(), run("mirage", outcomes=changed(2, error="HTTP 500: no"), interrupted=False)]
    text = html.render(report.build(SETTING, bad), bad)
    assert "0 outputs differ between policies; 1 requests failed" in text
    assert "1 × HTTP 500: no" in text


def test_a_run_of_nothing_still_makes_a_page():
    empty = run(outcomes=[], timeline=None, interrupted=True, duration_s=0.0)
    assert "Interrupted" in html.render(report.build(SETTING, [empty]), [empty])


def test_policies_share_their_axes(three):
    with drawing.style():
        drawn = pictures.kv_memory.draw(three)
    rows = [drawn.axes[start : start + 3] for start in (0, 3)]
    for row in rows:
        assert len({axes.get_ylim() for axes in row}) == 1
    assert len({axes.get_xlim() for axes in drawn.axes}) == 1


def test_colours_belong_to_names():
    policies = ["mirage", "static", "other", "another"]
    found = [drawing.policy_colour(policies, policy) for policy in policies]
    assert len(set(found)) == 4
    assert drawing.policy_colour(["static"], "static") == found[1]
    assert drawing.tenant_colour(["a", "b"], "b") != drawing.tenant_colour(["a", "b"], "a")


def test_a_distribution_reaches_all_values():
    x, share = drawing.cumulative(list(range(10_000, 0, -1)))
    assert (x[0], x[-1], share[-1]) == (1, 10_000, 1.0)
    assert len(x) <= drawing.MAX_POINTS
    assert all(value / 10_000 == part for value, part in zip(x, share, strict=True))


# What was computed before, and conversations.


def tiered(policy: str, found: int) -> PolicyRun:
    """Run of four seconds in which tenant `a` finds `found` tokens per second on the device, and
    twice as many in host memory.
    """

    def sample(t: int) -> TenantSample:
        figures = {"prefill_tokens": 1000 * t, "tokens_from_device": 100 + found * t}
        figures |= {"tokens_from_host": 2 * found * t, "saved_s": 0.5 * found * t}
        figures |= {"kv_bytes_up": 4096 * found * t, "kv_bytes_down": 8192 * found * t}
        return TenantSample(20, 10, 0, 0, 3, 1, 50_000, **figures)

    samples = [Sample(float(t), {"a": sample(t), "b": sample(0)}) for t in range(5)]
    return run(policy, timeline=RecordedTimeline(samples, 200_000, {"a": SHAPE, "b": SHAPE}, 1))


def test_what_tiers_did_counts_from_the_start_of_the_run():
    built = report.build(SETTING, [tiered("mirage", 0), tiered("mirage-tiers", 10)])
    found = built["runs"][1]
    assert (found["tokens_from_device"], found["tokens_from_host"]) == (40, 80)
    assert (found["tokens_from_peer"], found["tokens_from_ssd"]) == (0, 0)
    assert (found["kv_bytes_up"], found["kv_bytes_down"]) == (4096 * 40, 8192 * 40)
    assert (found["prefill_tokens"], found["saved_s"]) == (4000, 20)
    assert found["tenants"]["b"]["tokens_from_host"] == 0
    assert found["timeline"]["tenants"]["a"]["tokens_from_host"] == [0, 20, 40, 60, 80]
    setting = dataclasses.replace(SETTING, repeated_tokens=160)
    told = table.remarks(report.build(setting, [tiered("mirage", 4), tiered("mirage-tiers", 10)]))
    assert told[1:] == [
        "160 tokens of prompts began earlier prompts as well, in whole blocks. "
        "Found again instead of computed: mirage 30%, mirage-tiers 75%."
    ]
    labels = [row.label for row in comparison.rows(built["policies"], ["mirage", "mirage-tiers"])]
    assert "tokens found in host memory" in labels and "computing time saved, s" in labels
    assert "tokens found in a peer" not in labels, "nobody found any there"


def many(count: int, failed: int = 0) -> list[Outcome]:
    first = outcomes()[0]
    gone = dataclasses.replace(first, error="no answer")
    return [first] * (count - failed) + [gone] * failed


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([(3, 0)], 3),
        ([(99, 0), (100, 0)], 99),
        ([(100, 1), (100, 0)], 99),
        ([(100, 0), (100, 0)], None),
        ([(100, 100)], 0),
    ],
)
def test_so_few_requests_that_they_tell_nothing_are_said_first(counts, told):
    runs = [run(f"p{i}", outcomes=many(*each)) for i, each in enumerate(counts)]
    built = report.build(SETTING, runs)
    said = table.remarks(built)
    if told is None:
        assert said == []
    else:
        assert said[0].startswith(f"So few requests ({told}) tell nothing: P99 is the slowest")
        assert said[0] in html.render(built, runs).replace("&#39;", "'")


def test_a_run_that_was_broken_off_is_not_asked_whether_it_has_enough():
    runs = [run(outcomes=many(100)), run("mirage", outcomes=many(3), interrupted=True)]
    assert table.remarks(report.build(SETTING, runs)) == []


@pytest.mark.slow
def test_pictures_of_tiers_are_there_where_anything_was_found():
    without, some = tiered("mirage", 0), tiered("mirage-tiers", 10)
    titles = [f"<h2>{drawn.title}</h2>" for drawn in (pictures.prompts, pictures.below)]
    page = html.render(report.build(SETTING, [without, some]), [without, some])
    assert all(title in page for title in titles)
    page = html.render(report.build(SETTING, [without]), [without])
    assert not any(title in page for title in titles)


def test_first_and_later_turns_are_told_apart():
    turns = [
        dataclasses.replace(o, call=dataclasses.replace(o.call, turn=i // 3))
        for i, o in enumerate(outcomes())
    ]
    built = report.build(SETTING, [run(outcomes=turns), run("mirage")])
    talked, alone = built["runs"]
    assert len(table.remarks(built)) == 1, "nothing is known to repeat"
    assert (talked["p50_ttft_first_ms"], talked["p50_ttft_later_ms"]) == (200.0, 500.0)
    assert talked["tenants"]["a"]["p50_ttft_later_ms"] == 500.0
    assert (alone["p50_ttft_first_ms"], alone["p99_ttft_later_ms"]) == (None, None)
