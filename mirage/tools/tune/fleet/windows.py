"""Windows of an experiment's requests: parts spread over a trace, or arrivals drawn with several
seeds.
"""

from __future__ import annotations

from pathlib import Path

from mirage import profiles
from mirage.config import ConfigError
from mirage.simulate.experiment import MOST_DRAWN, Experiment, Workload
from mirage.tools.tune.fleet.counting import AskedWindow
from mirage.workload import trace
from mirage.workload.trace import Reading

WINDOWS = 5


def windows(asked: Experiment, near: Path, seed: int, seconds: float) -> list[AskedWindow]:
    """`WINDOWS` windows of `seconds` seconds. Raises `ConfigError` if the trace is too short or a
    tenant has no rate, and `TraceError` if the trace cannot be read.
    """
    models = {tenant.name: profiles.model(tenant.model, near) for tenant in asked.tenants}
    asked.workload.check_tenants(models)
    if asked.workload.arrivals != "trace":
        drawn = asked.model_copy(update={"workload": _drawn(asked, seconds)})
        return [AskedWindow(drawn, models, seed + number, seconds) for number in range(WINDOWS)]
    length = _length(asked.workload, seed)
    if length < WINDOWS * seconds:
        raise ConfigError(
            f"the trace is {length:.0f} s long: {WINDOWS} windows of {seconds:g} s need more, "
            "lower --window or name a longer one"
        )
    starts = [number * (length - seconds) / (WINDOWS - 1) for number in range(WINDOWS)]
    return [
        AskedWindow(_part(asked, start, start + seconds), models, seed, seconds) for start in starts
    ]


def _drawn(asked: Experiment, seconds: float) -> Workload:
    """The workload with the mean number of requests in `seconds`, and no peak. Raises `ConfigError`
    if a tenant has no rate, or the window no request or too many.
    """
    if without := [tenant.name for tenant in asked.tenants if tenant.rate is None]:
        raise ConfigError(f"tenant {without[0]!r} has no rate: write requests a second")
    requests = round(seconds * sum(tenant.rate or 0.0 for tenant in asked.tenants))
    if not 0 < requests <= MOST_DRAWN:
        raise ConfigError(f"a window of {seconds:g} s has {requests} requests: change --window")
    return asked.workload.model_copy(update={"requests": requests, "peak": None})


def _part(asked: Experiment, start: float, end: float) -> Experiment:
    """The experiment with the part of its trace from `start` to `end`, in seconds after scaling of
    time.
    """
    scale = asked.workload.time_scale
    window = {"window": (start / scale, end / scale)}
    return asked.model_copy(update={"workload": asked.workload.model_copy(update=window)})


def _length(workload: Workload, seed: int) -> float:
    """Seconds, after scaling of time, until the last request of the trace, or of the shortest
    trace. Raises `ConfigError` if the experiment sets rate, requests or window.
    """
    if workload.rate is not None or workload.window is not None or workload.requests is not None:
        raise ConfigError(
            "workload: rate, requests and window work only in a single run: leave them out; "
            "time_scale changes how often requests come"
        )
    paths = [*workload.files.values(), *([workload.file] if workload.file else [])]
    how = Reading(workload.trace_format, None, seed)
    ends = [max(r.arrival_s for r in trace.read(path, how)) for path in paths]
    return min(ends) * workload.time_scale
