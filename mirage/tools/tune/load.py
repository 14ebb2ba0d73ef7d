"""Rate of requests and limits of their latencies, found by simulation if they are not given.

Limits are multiples of the latencies of the same requests when they run nearly alone. If the load
is free, the rate is the lowest one at which the configuration misses the limits: below it no knob
matters.
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
"""Factor on the gaps with which requests run nearly alone."""
TTFT_TIMES, TPOT_TIMES = 10.0, 5.0
"""Limits as multiples of the median latencies of requests that run nearly alone."""
LEAST_MET = 0.9
"""Part of the requests that must keep the limits; with less, the load is too high."""
SLOWEST, FASTEST, STEP = 4.0, 1 / 512, 0.5**0.5
"""Largest and smallest factor on the trace's gaps, and the ratio of two successive factors."""


def derived_slo(run: WindowRunner, config: Config, windows: Sequence[int], seed: int) -> Slo:
    """Limits of TTFT and TPOT, derived under policy `static` and rounded to two digits. In turns
    the limit of TTFT includes the turns of all other tenants.
    """
    config = _static(config)
    alone = figures(_outcomes(run, config, windows, seed, ALONE), Slo())
    ttft = TTFT_TIMES * alone["ttft_p50"]
    if config.sharing.mode == "temporal":
        ttft += (len(config.tenants) - 1) * config.sharing.turn_s * 1e3
    return Slo(ttft_ms=_rounded(ttft), tpot_ms=_rounded(TPOT_TIMES * alone["tpot_p50"]))


def pressing(
    run: WindowRunner, config: Config, slo: Slo, windows: Sequence[int], seed: int
) -> float:
    """Factor on the trace's gaps (below 1: more load) at which too few requests keep the limits.

    The load rises from `SLOWEST` in steps; the first factor with too few is the result, or about
    `FASTEST` if none has too few.
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
    """Requests a second that the machine can compute with ample KV memory.

    `replay.load` is a part of this rate. It is measured as by `mirage replay`, but in the
    simulator. Each window has `requests` requests; if they are few, fewer are in flight at the same
    time.
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
    """`pressing` for the configuration's own policy, and for those that lend no layers.

    At loads between the highest of those policies and that of the configuration, only the
    configuration keeps the limits.
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
