"""Time that serving adds to an engine's steps, from steps measured alone and served. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mirage.tools.profile.plan import SteadyLoad


class Extra(NamedTuple):
    """Seconds that serving adds to each step, and to each token in it."""

    step_s: float
    token_s: float


class ReadingCost(NamedTuple):
    """Processor seconds that each process spends on one request until the engine can schedule
    it."""

    client: float
    router: float
    """Router and supervisor, which plans after the engine's report."""
    server: float
    """vLLM's API server."""
    engine: float
    """The engine's process: it reads the request and reports it. 0 for a GPU, for which the
    processor spins while it waits."""


@dataclass(frozen=True)
class Serving:
    """Costs of serving that are not in the hardware file, in seconds."""

    cores: int
    inflation: tuple[float, ...]
    """Processor time of a step while 1, 2, … engines compute, relative to one engine alone."""
    engine: Extra
    """Time added in the engine's own process."""
    front: Extra
    """Time added on the way from the engine to the client."""
    latency_s: float
    """Time that a request which runs alone spends outside its engine: on the way there and back."""
    request_s: float
    """Median TTFT of the requests of a burst to one tenant, over the number of these requests, with
    all engines busy."""
    reading: ReadingCost
    """Processor times of a request in a burst to a tenant, with all engines idle."""
    load_s: float
    """T_T: time to copy one layer; 0 if none can move."""


def serving(
    engines: Mapping[str, Any],
    served: Mapping[str, Any],
    loads: Mapping[str, Sequence[SteadyLoad]],
    cores: int,
) -> Serving:
    """Costs of serving, from answers of `mirage.engine.steptimes` by tenant, and of `served`.

    `loads` are the loads that both measured: few requests at a time, and many.
    """
    reading = _reading(engines, served)
    front_s = sum(reading) - reading.engine
    alone = {group["tenants"][0]: group for group in served["loads"]["1"]}
    engine, front = [], []
    for name, bare in engines.items():
        pairs = zip(loads[name], (alone[name], served["crowded"][name]), strict=True)
        for (load, found), bare_s in zip(pairs, bare["request_s"], strict=True):
            steps_s = load.at_once / load.output  # of a request's seconds, in those of a step
            taken_s = _engine_s(bare["clock"], name, load, found)
            engine.append((load.at_once, (taken_s - bare_s - reading.engine) * steps_s))
            front.append((load.at_once, (found["front_s"] - front_s) * steps_s))
    spent = [statistics.mean(g["engine_s"] for g in groups) for groups in served["loads"].values()]
    latencies = [
        statistics.median(served["first_token_s"][name]) - _prompt_s(bare, served["prompt_tokens"])
        for name, bare in engines.items()
    ]
    layers = [statistics.median(bare["load_s"]) for bare in engines.values() if bare["load_s"]]
    return Serving(
        cores=cores,
        inflation=tuple(seconds / spent[0] for seconds in spent),
        engine=extra(engine),
        front=extra(front),
        latency_s=max(0.0, statistics.median(latencies)),
        request_s=statistics.mean(served["burst_s"].values()),
        reading=reading,
        load_s=statistics.median(layers) if layers else 0.0,
    )


def extra(points: Sequence[tuple[int, float]]) -> Extra:
    """The line through points of (sequences in a step, seconds that serving adds to it), not below
    0.
    """
    sequences, seconds = zip(*points, strict=True)
    if len(set(sequences)) == 1:
        return Extra(max(0.0, statistics.mean(seconds)), 0.0)
    by_token, by_step = statistics.linear_regression(sequences, seconds)
    return Extra(max(0.0, by_step), max(0.0, by_token))


def between(several: Sequence[Serving]) -> Serving:
    """The mean of each figure over several measurements."""

    def mean(*values: Any) -> Any:
        if isinstance(values[0], tuple):
            means = [mean(*each) for each in zip(*values, strict=True)]
            named = isinstance(values[0], Extra | ReadingCost)
            return type(values[0])(*means) if named else tuple(means)
        return statistics.mean(values)

    figures = [vars(one) for one in several]
    return Serving(**{name: mean(*(each[name] for each in figures)) for name in figures[0]})


def _reading(engines: Mapping[str, Any], served: Mapping[str, Any]) -> ReadingCost:
    """Means over the tenants. The engine's is its time in a burst less the time that its prompts
    take.
    """
    spent, tokens = served["spent_s"], served["prompt_tokens"]
    client, router, server = (
        statistics.mean(each[part] for each in spent.values())
        for part in ("client", "router", "server")
    )
    own = [
        max(0.0, spent[name]["engine"] - tokens * _token_s(bare))
        for name, bare in engines.items()
        if bare["clock"] == "cpu_s"
    ]
    return ReadingCost(client, router, server, statistics.mean(own or [0.0]))


def _token_s(engine: Mapping[str, Any]) -> float:
    """Seconds by which a step of prompts alone grows with each of their tokens."""
    alone = [s for s in engine["samples"] if s["prefill"] and not s["sequences"]]
    tokens, seconds = [s["prefill"] for s in alone], [s[engine["clock"]] for s in alone]
    if len(set(tokens)) == 1:
        return float(statistics.mean(seconds) / tokens[0])
    return max(0.0, statistics.linear_regression(tokens, seconds).slope)


def _engine_s(clock: str, name: str, load: SteadyLoad, found: Mapping[str, Any]) -> float:
    """A served request's part of its engine's time, by the clock that timed the steps alone.

    A processor that waits for a GPU spins, so for a GPU it is the request's end-to-end time at the
    client over the number of requests in flight.
    """
    if clock == "cpu_s":
        return float(found["engine_s"])
    return float(found["e2el_s"][name]) / load.at_once


def _prompt_s(engine: Mapping[str, Any], tokens: int) -> float:
    """Seconds of the step that computed a prompt of about `tokens` tokens alone."""
    alone = [s for s in engine["samples"] if s["prefill"] and not s["sequences"]]
    nearest = min(alone, key=lambda s: abs(s["prefill"] - tokens))
    return float(nearest[engine["clock"]])
