"""Profile that `mirage profile` computes from made-up measurements: the known figures behind the
measurements are recovered.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import profile_answers as known
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mirage.profiles import Hardware
from mirage.profiles import hardware as read_hardware
from mirage.tools.profile import hardware, html
from mirage.tools.profile.children import CACHE, one_cache
from mirage.tools.profile.fitting import fit, line, step
from mirage.tools.profile.hardware import ProfileProvenance
from mirage.tools.profile.measuring import Measuring, all_parts
from mirage.tools.profile.parts import Part, Parts
from mirage.tools.profile.plan import (
    FEW,
    QUICK,
    THOROUGH,
    Effort,
    MeasuringLimits,
    SteadyLoad,
    points,
    thinned,
)
from mirage.tools.profile.result import RunFacts, result
from mirage.tools.profile.served import part
from mirage.tools.profile.serving import Extra, ReadingCost, between, extra, serving
from mirage.tools.profile.spread import spread
from mirage.tools.profile.understanding import Measured, doubts, understood

pytestmark = pytest.mark.pure

MEASURED = set(Hardware.model_fields) - {"tiers"}
"""Keys of a file that `mirage profile` writes; `tiers` is used by the simulator alone."""
NAMES = ["a", "b"]
WHERE = ProfileProvenance(
    "mirage profile", "2 x Some CPU", "2026-01-01", "c.yaml", 90 << 20, 1 << 16
)
LOADS = dict.fromkeys(NAMES, (SteadyLoad(*known.FEW), SteadyLoad(*known.MANY)))


def measured() -> Measured:
    engines = {name: known.engine(known.model()) for name in NAMES}
    return understood(
        [engines],
        [known.transfers()],
        [known.message()],
        [known.served(NAMES)],
        dict.fromkeys(NAMES, known.model()),
        LOADS,
        2,
    )


def test_all_children_have_one_cache_but_where_the_environment_names_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(CACHE, raising=False)
    with one_cache(tmp_path):
        assert os.environ[CACHE] == str(tmp_path)
    assert CACHE not in os.environ
    monkeypatch.setenv(CACHE, "/mine")
    with one_cache(tmp_path):
        assert os.environ[CACHE] == "/mine"
    assert os.environ[CACHE] == "/mine"


# -- fitting ----------------------------------------------------------------------------------


def test_known_figures_come_out_of_the_steps_that_they_make() -> None:
    found = fit([step(known.model(), s) for s in known.engine(known.model())["samples"]])
    assert found.overhead_s == pytest.approx(known.KNOWN.overhead_s, rel=1e-6)
    assert found.sequence_s == pytest.approx(known.KNOWN.sequence_s, rel=1e-6)
    assert found.bytes_per_s == pytest.approx(known.KNOWN.bytes_per_s, rel=1e-6)
    assert found.flop_per_s == pytest.approx(known.KNOWN.flop_per_s, rel=1e-6)
    assert found.error < 1e-9


def test_a_step_that_is_no_roofline_s_shows_as_error() -> None:
    model = known.model()
    samples = known.engine(model)["samples"]
    samples[0] = samples[0] | {"cpu_s": 3 * samples[0]["cpu_s"]}
    assert fit([step(model, s) for s in samples]).error > 0.01


def test_a_line_has_its_start_and_its_slope() -> None:
    found = line([(size, 1e-5 + 2e-10 * size) for size in (1e4, 1e6, 1e8)])
    assert found.fixed_s == pytest.approx(1e-5)
    assert found.each_s == pytest.approx(2e-10)
    assert found.at(1e9) == pytest.approx(1e-5 + 0.2)


def test_quartiles() -> None:
    found = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.low, found.median, found.high, found.count) == (2.0, 3.0, 4.0, 5)
    assert found.width == pytest.approx(2 / 3)
    assert spread([7.0]).width == 0
    with pytest.raises(ValueError, match="measure at least once"):
        spread([])


# -- what serving adds ------------------------------------------------------------------------


def test_what_serving_adds_comes_out_of_bare_and_served_requests() -> None:
    engines = {name: known.engine(known.model()) for name in NAMES}
    found = serving(engines, known.served(NAMES), LOADS, cores=2)
    assert found.engine == pytest.approx(known.SERVED)
    assert found.inflation == pytest.approx((1.0, 1.1), rel=1e-3)
    assert found.reading == pytest.approx((0.02, 0.03, 0.05, known.READING))


def test_what_was_measured_twice_counts_as_its_mean() -> None:
    found = serving({"a": known.engine(known.model())}, known.served(["a"]), LOADS, cores=2)
    other = replace(
        found, latency_s=found.latency_s + 2, reading=ReadingCost(0.04, 0.03, 0.05, 0.002)
    )
    mean = between([found, other])
    assert mean.latency_s == pytest.approx(found.latency_s + 1)
    assert mean.reading == pytest.approx((0.03, 0.03, 0.05, 0.003))
    assert mean.engine.step_s == pytest.approx(found.engine.step_s)
    assert mean.inflation == pytest.approx(found.inflation)


def test_a_process_counts_to_what_it_is() -> None:
    server = "python -m vllm.entrypoints.openai.api_server --model a"
    assert part("python -m mirage.tools.profile.served 6", is_client=True) == "client"
    assert part(server, is_client=False) == "server"
    assert part("VLLM::EngineCore", is_client=False) == "engine"
    assert part("python -m mirage serve a.yaml", is_client=False) == "router"


def test_one_size_of_batch_tells_of_steps_alone() -> None:
    assert extra([(1, 2e-3), (1, 4e-3)]) == Extra(3e-3, 0.0)
    assert extra([(1, -1.0), (2, -2.0)]) == Extra(0.0, 0.0)


def test_by_the_clock_on_the_wall_requests_are_timed_at_the_client() -> None:
    engines = {"a": known.engine(known.model()) | {"clock": "wall_s", "request_s": [0.5, 0.1]}}
    found = serving(engines, known.served(["a"]), LOADS, cores=2)
    few, many = LOADS["a"]
    per_step = [
        (2.0 / load.at_once - bare) * load.at_once / load.output
        for load, bare in ((few, 0.5), (many, 0.1))
    ]
    slope = (per_step[1] - per_step[0]) / (many.at_once - few.at_once)
    assert found.engine.token_s == pytest.approx(max(0.0, slope))


# -- what is measured -------------------------------------------------------------------------

any_limits = st.builds(
    MeasuringLimits,
    sequences=st.integers(1, 600),
    length=st.integers(4, 40) | st.integers(24, 40_000),
    budget=st.integers(16, 16_384),
    block_tokens=st.sampled_from([16, 32, 64]),
    blocks=st.integers(100, 20_000),
)


@given(any_limits, st.sampled_from([QUICK, THOROUGH]))
def test_every_point_is_within_the_limits(limits: MeasuringLimits, effort: Effort) -> None:
    chosen = points(limits, effort)
    assert chosen.prompts
    for count, tokens in chosen.prompts:
        assert count * tokens <= limits.budget
        assert tokens < limits.length
    for batch, context, output in chosen.decodes:
        assert context >= 1
        assert limits.holds(batch, context + output)
        assert output > effort.decode_steps
    for batch, tokens in chosen.mixtures:
        assert batch < limits.sequences
        assert tokens + batch <= limits.budget


@given(any_limits)
def test_a_load_is_one_that_the_engine_bears(limits: MeasuringLimits) -> None:
    load = FEW.limited(limits)
    assert 1 <= load.at_once <= limits.sequences
    assert load.prompt >= 1 and load.output >= 2
    assert load.prompt + load.output <= limits.length


def test_the_demo_s_points_are_those_of_the_cross_check() -> None:
    chosen = points(MeasuringLimits(32, 330, 1024, 32, 400), THOROUGH)
    assert [tokens for count, tokens in chosen.prompts if count == 1] == [
        *(4, 16, 32, 64, 96, 128, 192, 256, 320),
    ]
    assert {context for _, context, _ in chosen.decodes} == {16, 128, 288}
    assert {batch for batch, _, _ in chosen.decodes} == {1, 2, 4, 8, 16, 32}
    assert chosen.mixtures == [(1, 128), (4, 128), (4, 256), (8, 64), (8, 256)]


def test_thinning_keeps_both_ends() -> None:
    assert thinned([5, 1, 9, 1, 7, 3], 3) == [1, 5, 9]
    assert thinned([2, 1], 4) == [1, 2]


# -- the hardware file ------------------------------------------------------------------------


def test_the_file_has_the_known_figures_and_is_read_again(tmp_path: Path) -> None:
    figures = hardware.figures(measured(), WHERE, Extra(*known.SERVED))
    file = tmp_path / "machine.yaml"
    file.write_text(hardware.document("Some CPU", figures, "Made by a test."))
    read = read_hardware(str(file))
    assert read.step_overhead_ms.value == pytest.approx(5.0)
    assert read.sequence_overhead_us.value == pytest.approx(280.0)
    assert read.link_gb_s.value == pytest.approx(10.0)
    assert read.link_mixed_gb_s.value == pytest.approx(5.0)
    assert read.message_ms.value == pytest.approx(0.2)
    assert read.apply_ms.value == pytest.approx(2.0)
    assert read.page_bytes == 1 << 16
    assert read.memory_bytes == 90 << 20


def test_every_source_says_how_on_what_and_when() -> None:
    figures = hardware.figures(measured(), WHERE, Extra(0.0, 0.0))
    assert set(figures) | {"title"} == MEASURED
    measured_ones = [source for _, source in figures.values() if "measured by" in source]
    assert len(measured_ones) >= 8
    assert all("2 x Some CPU" in s and "2026-01-01" in s for s in measured_ones)


def test_a_bound_that_no_step_met_is_said_to_be_unseen() -> None:
    found = measured()
    blind = replace(found, fitted=replace(found.fitted, bytes_per_s=1e20))
    value, source = hardware.figures(blind, WHERE, Extra(0.0, 0.0))["bandwidth_gb_s"]
    assert "no step was bound by memory traffic" in source
    assert value > 1e9


# -- doubts -----------------------------------------------------------------------------------


def test_a_quiet_machine_raises_no_doubt() -> None:
    engines = {"a": known.engine(known.model())}
    assert doubts({"engine a": 0.1, "served": 0.0}, engines, measured().fitted) == []


def test_doubts_name_what_is_wrong() -> None:
    engine = known.engine(known.model())
    shaky = [s | {"times_s": [1.0, 2.0, 3.0, 4.0]} for s in engine["samples"]]
    poor = replace(measured().fitted, error=0.3)
    found = doubts({"engine a": 1.5, "served": 0.0}, {"a": engine | {"samples": shaky}}, poor)
    assert len(found) == 3
    assert "while engine a was measured, 1.5 other" in found[0]
    assert found[1].startswith("steps of a differ by")
    assert "30 %" in found[2]


# -- resuming ---------------------------------------------------------------------------------

PART = Part(measured={"x": 1}, others=0.5, seconds=2.0, date="2026-01-01")


def test_a_part_is_read_again_where_nothing_has_changed(tmp_path: Path) -> None:
    Parts(tmp_path, {"machine": "m"}).put("engine a/b", PART)
    assert Parts(tmp_path, {"machine": "m"}).get("engine a/b") == PART
    assert Parts(tmp_path, {"machine": "m"}).get("engine a") is None
    assert Parts(tmp_path, {"machine": "other"}).get("engine a/b") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"key": {}}', '{"part": 1}'])
def test_a_torn_part_is_none(tmp_path: Path, text: str) -> None:
    parts = Parts(tmp_path, {})
    parts.put("served", PART)
    (tmp_path / "served.json").write_text(text)
    assert parts.get("served") is None


def test_fresh_forgets(tmp_path: Path) -> None:
    parts = Parts(tmp_path, {})
    parts.put("served", PART)
    parts.forget()
    assert parts.get("served") is None


class Counted(Measuring):
    """Measuring that returns known figures, and is interrupted after `most` parts."""

    def __init__(self, most: int) -> None:
        self.asked: list[str] = []
        self._most = most

    @property
    def names(self) -> list[str]:
        return ["transfers", "engine a", "message", "served"]

    def measure(self, name: str, parts: Parts, waiting: Any) -> Part:
        if len(self.asked) == self._most:
            raise KeyboardInterrupt
        self.asked.append(name)
        parts.put(name, PART)
        return PART


def test_an_interrupted_profile_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage.tools.profile.measuring.collected", lambda _, parts: parts)
    first, second = Counted(2), Counted(9)
    with pytest.raises(KeyboardInterrupt):
        all_parts(first, Parts(tmp_path, {}))
    found = all_parts(second, Parts(tmp_path, {}))
    assert first.asked == ["transfers", "engine a"]
    assert second.asked == ["message", "served"]
    assert list(found) == second.names  # type: ignore[call-overload]


# -- the page ---------------------------------------------------------------------------------


def test_the_page_stands_alone_and_shows_every_figure() -> None:
    found = measured()
    figures = hardware.figures(found, WHERE, Extra(*known.SERVED))
    run = RunFacts(
        "Some <CPU>", WHERE, {"mirage": "1"}, "quick", 2, {"served": 0.5}, {"served": 9.0}, []
    )
    engines = {name: known.engine(known.model()) for name in NAMES}
    models = dict.fromkeys(NAMES, known.model())
    page = html.render(result(run, found, figures, engines, known.transfers(), models))
    assert page.count("<svg") == 4
    assert "Some &lt;CPU&gt;" in page and "Some <CPU>" not in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"https?://|<script|url\((?!#)", page)
    for name in MEASURED - {"title"}:
        assert name in page
    assert html.render(result(run, found, figures, engines, known.transfers(), models)) == page


def test_a_doubt_is_on_the_page() -> None:
    found = measured()
    figures = hardware.figures(found, WHERE, Extra(0.0, 0.0))
    run = RunFacts(
        "A", WHERE, {}, "quick", 2, {"served": 3.0}, {"served": 9.0}, ["it was not quiet"]
    )
    engines = {"a": known.engine(known.model())}
    page = html.render(
        result(run, found, figures, engines, known.transfers(), {"a": known.model()})
    )
    assert '<div class="verdict bad">it was not quiet</div>' in page
    assert "The machine was quiet" not in page


def test_the_document_is_plain_yaml() -> None:
    text = hardware.document("A", hardware.figures(measured(), WHERE, Extra(0.0, 0.0)), "Made.")
    assert text.startswith("# Made.\n")
    assert set(yaml.safe_load(text)) == MEASURED
