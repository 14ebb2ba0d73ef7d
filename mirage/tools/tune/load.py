"""Rate of requests and limits of their latencies, found by simulation where none are given.

Limits are multiples of what the same requests take when they are nearly alone. If the load is free,
the rate is the lowest one that the configuration does not bear: below it no knob matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import harmonic_mean

from mirage.config import Config, Policy
from mirage.tools.report.slo import Slo
from mirage.tools.tune.goals import WindowResult, figures, share_met
from mirage.tools.tune.runs import WindowRunner
from mirage.tools.tune.simulated import WindowRun
from mirage.workload.load import AMPLE, at_once, capacity_per_s

ALONE = 20.0
"""Times the gaps, with which requests are nearly alone."""
TTFT_TIMES, TPOT_TIMES = 10.0, 5.0
"""Times the median of requests that are nearly alone."""
LEAST_MET = 0.9
"""Part of the requests that keeps the limits of a configuration that bears its load."""
SLOWEST, FASTEST, STEP = 4.0, 1 / 512, 0.5**0.5
"""Times the gaps of the trace, and by how much they shrink at a time."""


def derived_slo(run: WindowRunner, config: Config, windows: Sequence[int], seed: int) -> Slo:
    """Two limits, rounded to two digits."""
    config = _static(config)
    alone = figures(_outcomes(run, config, windows, seed, ALONE), Slo())
    ttft = TTFT_TIMES * alone["ttft_p50"]
    if config.sharing.mode == "temporal":
        ttft += (len(config.tenants) - 1) * config.sharing.turn_s * 1e3
    return Slo(ttft_ms=_rounded(ttft), tpot_ms=_rounded(TPOT_TIMES * alone["tpot_p50"]))


def pressing(
    run: WindowRunner, config: Config, slo: Slo, windows: Sequence[int], seed: int
) -> float:
    """Factor of the trace's gaps (below 1: more load) at which too few requests keep the limits.

    The load rises from `SLOWEST` in steps; the first factor with too few is the result.
    """
    slower = SLOWEST
    while slower > FASTEST:
        seen = _outcomes(run, config, windows, seed, slower)
        if share_met(seen, slo) < LEAST_MET:
            break
        slower *= STEP
    return float(f"{slower:.3g}")


def computed_per_s(
    run: WindowRunner, config: Config, windows: Sequence[int], requests: int, seed: int
) -> float:
    """Requests a second that the machine computes where KV memory does not bind.

    `replay.load` is a part of this. It is measured as `mirage replay` does it, but in the
    simulator. Each window has so many `requests`; of few, fewer are under way at the same time.
    """
    ample = config.device.model_copy(update={"memory": config.device.memory * AMPLE})
    roomy = _static(config).model_copy(update={"device": ample})
    under_way = at_once(requests)
    found = run([WindowRun(roomy, window, seed, at_once=under_way) for window in windows])
    rates = [
        capacity_per_s([row.ended for row in outcome.rows], under_way)
        for outcome in found
        if outcome is not None
    ]
    return harmonic_mean(rates)


def each_pressing(
    run: WindowRunner, config: Config, slo: Slo, windows: Sequence[int], seed: int
) -> dict[str, float]:
    """`pressing` by policy: the configuration's own, and those that lend no layers.

    The configuration bears the loads between its own value and theirs; the others do not.
    """
    policies = dict.fromkeys((Policy.STATIC, Policy.POOLED, config.policy))
    return {
        str(policy): pressing(run, config.model_copy(update={"policy": policy}), slo, windows, seed)
        for policy in policies
    }


def _outcomes(
    run: WindowRunner, config: Config, windows: Sequence[int], seed: int, slower: float
) -> list[WindowResult]:
    found = run([WindowRun(config, window, seed, slower) for window in windows])
    return [outcome for outcome in found if outcome is not None]


def _static(config: Config) -> Config:
    return config.model_copy(update={"policy": Policy.STATIC})


def _rounded(milliseconds: float) -> float:
    return float(f"{milliseconds:.2g}")
