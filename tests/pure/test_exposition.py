"""Metrics of several engines merged into one answer have the samples that each engine told."""

from __future__ import annotations

from collections import Counter as Counted

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from mirage.serve.metrics.exposition import families, merged, of_device

pytestmark = pytest.mark.pure

ODD = 'a "b"\n# HELP vllm:other it is none\n# TYPE vllm:other gauge\nvllm:other{model_name="x"} 1\\'


def told(model: str, by: float) -> bytes:
    """Metrics text of one engine's server for a model; `by` sets all values."""
    registry = CollectorRegistry()
    own = {"model_name": model, "engine": "0"}
    waiting = Gauge("vllm:num_requests_waiting", "Requests", [*own], registry=registry)
    waiting.labels(**own).set(by)
    Gauge("vllm:never_used", "No samples", [*own], registry=registry)
    tokens = Counter("vllm:prompt_tokens", "Two\nlines", [*own], registry=registry)
    tokens.labels(**own).inc(by)
    ttft = Histogram("vllm:time_to_first_token_seconds", "s", [*own], registry=registry)
    ttft.labels(**own).observe(by)
    answers = Counter("http_requests", "Without", ["status", "handler"], registry=registry)
    answers.labels("2xx", ODD).inc(by)
    answers.labels("5xx", "{none}").inc(1)
    Gauge("process_open_fds", "No labels", registry=registry).set(by)
    Info("python", "The interpreter", registry=registry).info({"version": "3"})
    return generate_latest(registry)


def of(model: str) -> dict[str, str]:
    return {"model_name": model}


Sample = tuple[str, tuple[tuple[str, str], ...], float]


def samples(text: bytes) -> Counted[Sample]:
    return Counted(
        (one.name, tuple(sorted(one.labels.items())), one.value)
        for family in text_string_to_metric_families(text.decode())
        for one in family.samples
    )


def labelled(text: bytes, model: str) -> Counted[Sample]:
    """Samples that the merged answer must have for one engine: its own, with the label
    `model_name`.
    """
    return Counted(
        (name, tuple(sorted({**dict(labels), "model_name": model}.items())), value)
        for name, labels, value in samples(text)
        if not name.startswith("python_") and not name.endswith("_created")
    )


def test_each_sample_is_there_once_and_has_its_model() -> None:
    one, other = told("one", 2), told("org/other-2.5", 3)
    both = merged([families(one, of("one")), families(other, of("org/other-2.5"))])
    assert samples(both) == labelled(one, "one") + labelled(other, "org/other-2.5")
    assert max(samples(both).values()) == 1


def test_samples_of_a_family_stand_together_behind_one_comment() -> None:
    lines = merged([families(told(name, 1), of(name)) for name in ("a", "b", "c")]).splitlines()
    comments = [line for line in lines if line.startswith(b"# HELP ")]
    assert len(comments) == len(set(comments)) == 5, "none without samples, none of python's"
    parsed = list(text_string_to_metric_families(b"\n".join(lines).decode() + "\n"))
    assert len({one.name for one in parsed}) == len(parsed) == 5
    assert {one.name: one.type for one in parsed}["vllm:prompt_tokens"] == "counter"


def test_what_is_no_metric_is_none() -> None:
    assert merged([families(b"", of("a")), families(b"<html>\n", of("a"))]) == b""


def test_an_answer_without_an_end_of_line_spoils_no_other() -> None:
    text = b"# HELP x X\n# TYPE x gauge\nx 1"
    both = merged([families(text, of("a")), families(text, of("b"))])
    assert samples(both) == samples(b'x{model_name="a"} 1\nx{model_name="b"} 1\n')


def text_of(value: float) -> bytes:
    registry = CollectorRegistry()
    Gauge("held", "Bytes", ["tenant"], registry=registry).labels("a").set(value)
    Counter("steps", "Steps", registry=registry).inc(value)
    return generate_latest(registry)


def test_each_sample_has_its_device() -> None:
    texts = {"": text_of(0), "left": text_of(1), "right": text_of(2)}
    both = merged(families(text, of_device(name)) for name, text in texts.items())
    assert set(samples(both)) == {
        ("held", (("tenant", "a"),), 0.0),
        ("held", (("device", "left"), ("tenant", "a")), 1.0),
        ("held", (("device", "right"), ("tenant", "a")), 2.0),
        ("steps_total", (), 0.0),
        ("steps_total", (("device", "left"),), 1.0),
        ("steps_total", (("device", "right"),), 2.0),
    }
    assert both.count(b"# TYPE held gauge") == both.count(b"# TYPE steps_total counter") == 1


def test_an_engine_of_one_of_several_devices_has_both_labels() -> None:
    both = merged([families(told("a", 1), of("a") | of_device("left"))])
    labels = [dict(labels) for _, labels, _ in samples(both)]
    assert {(one["model_name"], one["device"]) for one in labels} == {("a", "left")}
