"""The page of a profile: one file that needs nothing else, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mirage.tools.profile import pictures
from mirage.tools.profile.result import ACTS
from mirage.tools.report.page import picture, template

TEMPLATE = "profile.html.j2"

Result = Mapping[str, Any]


WANTED: tuple[tuple[str, str, Callable[[Result], Figure]], ...] = (
    (
        "The link",
        "How fast a copy to the device is, by its size. Points are medians, bars quartiles, lines "
        "the fit. Where small copies are slow, their start is what costs.",
        pictures.link,
    ),
    (
        "Decode",
        "A step over the number of requests in it, by the tokens that each has in its KV cache. A "
        "bar is from quartile to quartile of all passes; the point is the median of the quickest.",
        pictures.decode,
    ),
    ("Prefill", "A step that computes prompts and nothing else.", pictures.prefill),
    (
        "Measured against fitted",
        "Every step that was measured. On the dotted line the simulator would be exact.",
        pictures.fit,
    ),
)


def render(result: Result) -> str:
    """The page of a result; the same for the same result."""
    return template(Path(__file__).with_name(TEMPLATE)).render(
        result=result,
        of=result["provenance"],
        hardware=result["hardware"],
        pictures=[picture(title, note, partial(draw, result)) for title, note, draw in WANTED],
        pages=list(_pages(result)),
        acts=ACTS,
        layers=list(_layers(result)),
        serving=_serving(result),
        parts=[(n, result["seconds"][n], others) for n, others in result["others"].items()],
    )


def _pages(result: Result) -> Iterator[tuple[int, list[str]]]:
    """Microseconds of each act, by the number of pages."""
    for row in result["pages"]:
        yield row["pages"], [_spread(row[f"{act}_s"], 1e6) for act in ACTS]


def _layers(result: Result) -> Iterator[tuple[str, str, str, str]]:
    for name, tenant in result["tenants"].items():
        load = tenant["load_s"]
        size = f"{tenant['layer_bytes'] / 2**20:.2f} MiB" if load else "none can move"
        taken = _spread(load, 1e3) if load else ""
        yield name, size, taken, f"{100 * tenant['mean_error']:.1f} %"


def _serving(result: Result) -> list[tuple[str, str]]:
    found = result["serving"]
    inflation = ", ".join(f"{value:.2f}" for value in found["inflation"])
    return [
        ("to each step, in the engine", f"{found['engine'][0] * 1e3:.3g} ms"),
        ("to each token of it, in the engine", f"{found['engine'][1] * 1e6:.3g} µs"),
        ("to each step, in front of the engine", f"{found['front'][0] * 1e3:.3g} ms"),
        ("to each token of it, in front of the engine", f"{found['front'][1] * 1e6:.3g} µs"),
        ("a request that is alone, until the engine has it", f"{found['latency_s'] * 1e3:.3g} ms"),
        ("a request of a burst, engines busy", f"{found['request_s'] * 1e3:.3g} ms"),
        ("a step beside 0, 1, … other engines, of one alone", inflation),
        ("a control message", f"{_spread(result['message_s'], 1e3)} ms"),
        ("acting on an allotment", f"{_spread(result['apply_s'], 1e3)} ms"),
    ]


def _spread(values: Mapping[str, float], factor: float) -> str:
    """Median, and quartiles in brackets."""
    middle, low, high = (f"{values[key] * factor:.3g}" for key in ("median", "low", "high"))
    return f"{middle} ({low} to {high})"
