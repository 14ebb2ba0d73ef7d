"""Simulated step times against the formulas of `layer_sets` and published figures."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from mirage import profiles
from mirage.control.step_times import step_time
from mirage.profiles import Sourced
from mirage.simulate.roofline import LAYER_SETS, PS, CostBound, Roofline, Streaming, Work
from mirage.simulate.span import largest, steps_until, total
from mirage.streaming.layer_sets import nested
from tests.examples import examples

pytestmark = pytest.mark.pure

MODELS = ["opt-13b", "opt-6.7b", "llama-3-8b", "mixtral-8x7b", "qwen2.5-7b"]
HARDWARE = ["gh200", "h100", "a100"]
works = st.builds(
    Work, st.integers(0, 600), st.integers(0, 10**6), st.integers(0, 4096), st.integers(0, 10**7)
)
bounds = st.lists(
    st.builds(CostBound, *[st.integers(0, 10**6)] * 5).filter(lambda f: f != (0,) * 5),
    min_size=1,
    max_size=5,
).map(tuple)


@cache
def roofline(
    model="opt-13b", hardware="gh200", fraction=1.0, parts=1, sets="nested", **figures
) -> Roofline:
    device = profiles.hardware(hardware)
    update = {k: Sourced(value=v, source="this test") for k, v in figures.items()}
    changed = device.model_copy(update=update)
    return Roofline(profiles.model(model), changed, fraction, parts, LAYER_SETS[sets])


def step_ps(roofline: Roofline, streaming: Streaming, co_runners: int, work: Work) -> int:
    return max(bound.at(work) for bound in roofline.bounds(streaming, co_runners))


# -- streaming --------------------------------------------------------------------------


@given(
    model=st.sampled_from(MODELS),
    hardware=st.sampled_from(HARDWARE),
    parts=st.sampled_from([1, 4]),
    part=st.floats(0, 1),
    slots=st.sampled_from([1, 2]),
    load=st.integers(10**6, 10**11),
    co_runners=st.integers(1, 3),
    work=works,
    sets=st.sampled_from(["nested", "even"]),
)
@examples(300)
def test_a_step_takes_what_the_pipeline_of_its_layers_takes(
    model, hardware, parts, part, slots, load, co_runners, work, sets
) -> None:
    """The simulator's step time equals that of the pipeline walked layer by layer. It may be
    shorter by its rounding: less than a picosecond for each token and pair.
    """
    line = roofline(model, hardware, parts=parts, sets=sets)
    n = line.layers
    remapped = round(part * (n - slots))
    t_compute = Fraction(line.compute_ps(work, co_runners), n)
    layers = LAYER_SETS[sets](n, remapped + slots if remapped else 0)
    exact = step_time(layers, n, slots, Fraction(load), t_compute)
    short = exact - step_ps(line, Streaming(remapped, slots, load), co_runners, work)
    assert -1 <= short < 1 + sum(astuple(work)) + 1
    assert short <= exact / 1000
    if not remapped:
        assert short == 0


@given(model=st.sampled_from(MODELS), m=st.integers(2, 27), size=st.integers(1, 512))
def test_of_a_decode_step_rounding_takes_less_than_a_ten_thousandth(model, m, size) -> None:
    line, work = roofline(model), Work(size, 400 * size)
    n = line.layers
    t_compute = Fraction(line.compute_ps(work), n)
    exact = step_time(nested(n)[:m], n, 1, Fraction(10**9), t_compute)
    assert -1 <= exact - step_ps(line, Streaming(m - 1, 1, 10**9), 1, work) < exact / 10**4


def test_streaming_nothing_costs_nothing() -> None:
    line, work = roofline(), Work(32, 12_000)
    assert line.bounds(Streaming(0, 2, 10**9), 1) == line.bounds(Streaming(), 1)
    assert step_ps(line, Streaming(), 1, work) == line.compute_ps(work)


# -- compute ----------------------------------------------------------------------------


@given(
    model=st.sampled_from(MODELS),
    hardware=st.sampled_from(HARDWARE),
    fraction=st.sampled_from([1.0, 0.5, 0.35]),
    co_runners=st.integers(1, 3),
    work=works,
)
@settings(deadline=None)
def test_compute_is_bytes_or_flops_whichever_take_longer(
    model, hardware, fraction, co_runners, work
):
    """The compute time of a step is computed here once more: each weight and each token's KV is
    read once, each weight takes two flops per token, and the longer of both times counts.
    """
    shape, device = profiles.model(model), profiles.hardware(hardware)
    unembed, width = shape.vocabulary * shape.hidden, shape.heads * shape.head_size
    read = 2 * (shape.layers * shape.layer_weights + unembed)
    read += shape.kv_token_bytes * (work.sequences + work.context + work.prefill)
    attended = work.sequences + work.context + work.area / 2
    flops = 2 * shape.layers * shape.active_layer_weights * (work.sequences + work.prefill)
    flops += 2 * unembed * work.sequences + 4 * shape.layers * width * attended
    seconds = max(read / device.bytes_per_s, flops / device.flop_per_s) * co_runners / fraction
    found = roofline(model, hardware, fraction).compute_ps(work, co_runners)
    overhead = device.step_overhead_ms.value / 1e3
    assert found / PS == pytest.approx(seconds + overhead, rel=1e-3)
    assert abs(found / PS - seconds - overhead) * PS <= co_runners * (1 + sum(astuple(work))) + 10


@given(co_runners=st.integers(1, 3), work=works)
def test_overhead_is_of_the_step_and_of_each_sequence_and_nobody_elses(co_runners, work) -> None:
    bare = roofline(step_overhead_ms=0, sequence_overhead_us=0)
    more = roofline(step_overhead_ms=3, sequence_overhead_us=7)
    extra = more.compute_ps(work, co_runners) - bare.compute_ps(work, co_runners)
    assert extra == 3 * PS // 1000 + 7 * PS // 10**6 * work.sequences


@given(co_runners=st.integers(1, 3), work=works)
def test_co_runners_share_the_compute(co_runners, work) -> None:
    line = roofline(step_overhead_ms=0)
    assert line.compute_ps(work, co_runners) == co_runners * line.compute_ps(work)


def test_one_layer_of_opt_13b_comes_in_a_millisecond_and_a_half() -> None:
    layer = profiles.model("opt-13b").layer_weights * 2
    assert layer == pytest.approx(629e6, rel=1e-3)
    link = profiles.hardware("gh200").link_gb_s.value
    assert link == 427
    assert layer / (link * 1e9) == pytest.approx(1.47e-3, rel=3e-3)


def test_one_sequence_of_opt_13b_reads_its_weights() -> None:
    line, model = roofline(step_overhead_ms=0), profiles.model("opt-13b")
    weights = 2 * (40 * model.layer_weights + 50272 * 5120)
    kv = 2 * 2 * 40 * 5120
    expected = (weights + 101 * kv) / (0.8 * 4e12)
    assert line.compute_ps(Work(1, 100)) / PS == pytest.approx(expected, rel=1e-9)
    assert expected == pytest.approx(weights / (0.8 * 4e12), rel=0.01)
    assert expected == pytest.approx(8.05e-3, rel=0.01)


# -- spans ------------------------------------------------------------------------------


@given(bounds=bounds, work=works, size=st.integers(1, 600), steps=st.integers(0, 40))
def test_each_bound_is_linear_in_context(bounds, work, size, steps) -> None:
    for bound in bounds:
        times = [
            bound.at(replace(work, context=work.context + step * size)) for step in range(steps)
        ]
        assert sum(times) == total(bound.at(work), bound.context * size, steps)


@given(bounds=bounds, work=works)
def test_the_largest_is_the_step_and_grows_fastest_of_equals(bounds, work) -> None:
    bound, first = largest(bounds, work)
    assert first == bound.at(work) == max(f.at(work) for f in bounds)
    assert bound.context == max(f.context for f in bounds if f.at(work) == first)


def test_of_equal_bounds_the_one_that_grows_is_taken() -> None:
    flat, steep = CostBound(30, 0, 0, 0, 0), CostBound(10, 0, 2, 0, 0)
    for bounds in ((flat, steep), (steep, flat)):
        assert largest(bounds, Work(1, 10)) == (steep, 30)


@given(
    first=st.integers(1, 1000),
    growth=st.integers(0, 50),
    most=st.integers(0, 60),
    span=st.integers(-10, 10**5),
)
def test_steps_until_is_the_fewest_that_reach_it(first, growth, most, span) -> None:
    enough = [steps for steps in range(most) if total(first, growth, steps) >= span]
    assert steps_until(first, growth, most, span) == min(enough, default=most)
