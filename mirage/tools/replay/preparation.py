"""Preparation of a replay before anything starts; all invalid input is refused here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from mirage import config as configuration
from mirage.config import Config
from mirage.errors import InputRefused
from mirage.tools.replay.policies import ReplayVariant
from mirage.tools.replay.policies import chosen as variants
from mirage.tools.replay.report import Setting
from mirage.tools.report.files import make_room
from mirage.tools.report.slo import Slo, parse
from mirage.workload import dealing
from mirage.workload.calls import Calls
from mirage.workload.chosen import Chosen, chosen, of_config, shown
from mirage.workload.dealing import TenantRequest
from mirage.workload.overlap import repeated_tokens
from mirage.workload.rates import mean_rate, time_scale
from mirage.workload.trace import Reading

FILES = ("report.json", "report.html")
LARGEST_SCALE = 1e6
MOST = 1_000_000
MOST_LOAD = 100.0


class PlanError(InputRefused):
    """Options cannot be replayed; the message is one line."""


@dataclass(frozen=True)
class ReplayPlan:
    """Workload, server and policies of a replay. `policies` is empty for a running server."""

    config_path: Path
    config: Config
    setting: Setting
    calls: Collection[TenantRequest]
    policies: Sequence[ReplayVariant]
    output: Path
    server: str | None
    timeout_s: float
    key: str | None = field(repr=False)


@dataclass(frozen=True)
class ReplayOptions:
    """Options of the command line. None takes the configuration's value; an option that the
    configuration does not have is then off.
    """

    trace: str | None = None
    policies: str | None = None
    output: Path = Path("out/replay")
    window: tuple[float, float] | None = None
    time_scale: float | None = None
    load: float | None = None
    length_scale: float | None = None
    seed: int | None = None
    limit: int | None = None
    server: str | None = None
    trace_format: str | None = None
    rate: float | None = None
    concurrency: int | None = None
    repeats: int = 1
    slo: str | None = None
    think_s: float | None = None
    abandon_s: float | None = None
    warm_up_s: float = 0.0
    timeout: float | None = None
    key: str | None = None
    """Key that the server requires as ``Authorization: Bearer``; it is in no report."""


def settle(config_path: Path, options: ReplayOptions) -> ReplayPlan:
    """Read the configuration and the trace, make the workload and the output folder.

    Raises `ConfigError`, `TraceError`, `PolicyRefused` or `PlanError`, each with one line.
    """
    config = configuration.load(config_path)
    defaults = config.replay
    setting = Setting(
        config=str(config_path),
        trace=shown(defaults.trace) if options.trace is None else options.trace,
        window=options.window or defaults.window,
        time_scale=_scale("time", options.time_scale, defaults.time_scale),
        load=_load(config, options),
        length_scale=_scale("length", options.length_scale, defaults.length_scale),
        seed=defaults.seed if options.seed is None else options.seed,
        limit=options.limit,
        trace_format=options.trace_format,
        rate=options.rate,
        concurrency=_at_least_one("concurrency", options.concurrency),
        repeats=_at_least_one("repeats", options.repeats) or 1,
        think_s=_think_s(options, defaults.think_s),
        abandon_s=_seconds("abandon", options.abandon_s),
        warm_up_s=_seconds("warm-up", options.warm_up_s or None) or 0.0,
        slo=parse(options.slo) if options.slo is not None else Slo(),
    )
    timeout_s = _seconds("timeout", options.timeout) or defaults.request_timeout_s
    policies = _policies(options, config)
    _at_least_one("limit", setting.limit)
    which = _chosen(config_path, config, options)
    how = Reading(setting.trace_format, setting.rate, setting.seed)
    if setting.rate is not None and which.has_arrivals(how):
        how = replace(how, rate=None)
        setting = replace(setting, time_scale=_stretched(config, setting, which, how, options))
    calls = _calls(config, setting, which, how)
    if setting.load is not None and mean_rate(call.at_s for call in calls) is None:
        raise PlanError("load: all requests arrive at once, so no gap can be scaled: leave it out")
    _something_is_measured(setting, calls)
    repeated = repeated_tokens(calls, setting.seed, config.block_tokens)
    setting = replace(setting, repeated_tokens=repeated)
    # Now, not after minutes of measuring.
    make_room(options.output, [options.output / name for name in FILES])
    return ReplayPlan(
        config_path=config_path,
        config=config,
        setting=setting,
        calls=calls,
        policies=policies,
        output=options.output,
        server=options.server,
        timeout_s=timeout_s,
        key=options.key,
    )


def _chosen(config_path: Path, config: Config, options: ReplayOptions) -> Chosen:
    if options.trace is None:
        return of_config(config.replay.trace, config_path.parent)
    return chosen(options.trace, [tenant.name for tenant in config.tenants])


def _stretched(
    config: Config, setting: Setting, which: Chosen, how: Reading, options: ReplayOptions
) -> float:
    """Time scale at which a trace with arrivals of its own has `setting.rate` requests a second.

    Raises `PlanError` if an option sets a time scale or a load as well, or if the scale is out of
    range, and `TraceError` if all requests arrive at one time.
    """
    for name, value in (("time-scale", options.time_scale), ("load", options.load)):
        if value is not None:
            raise PlanError(f"--rate and --{name} both set the gaps of this trace: give one")
    assert setting.rate is not None
    names = [tenant.name for tenant in config.tenants]
    traffic, seed, window, limit = config.replay.traffic, how.seed, setting.window, setting.limit
    requests = which.requests(names, traffic, seed, how, window, limit, Counter())
    scale = time_scale((request.arrival_s for _, request in requests), setting.rate)
    return _scale("time", scale, scale)


def _calls(
    config: Config, setting: Setting, which: Chosen, how: Reading
) -> Collection[TenantRequest]:
    """Calls generated from the trace at each iteration, or a list if the trace can be read only
    once.

    Rows that the trace skips are counted in the setting.
    """
    names = [tenant.name for tenant in config.tenants]
    traffic, seed = config.replay.traffic, setting.seed

    def made() -> Iterator[TenantRequest]:
        skipped: Counter[str] = Counter()
        window, limit = setting.window, setting.limit
        dealt = which.requests(names, traffic, seed, how, window, limit, skipped)
        yield from dealing.calls(config, dealt, setting.time_scale, setting.length_scale)
        setting.skipped.clear()
        setting.skipped.update(skipped)

    return Calls(made) if which.rewinds else list(made())


def _policies(options: ReplayOptions, config: Config) -> list[ReplayVariant]:
    if options.server:
        if options.policies:
            raise PlanError("--server replays under the policy it serves: leave --policy out")
        if not _is_address(options.server):
            raise PlanError(f"server {options.server!r}: write its address as http://HOST:PORT")
        return []
    return variants(options.policies, config)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False


def _at_least_one(name: str, count: int | None) -> int | None:
    if count is not None and not 1 <= count <= MOST:
        raise PlanError(f"{name} {count}: use a whole number from 1 to {MOST}")
    return count


def _seconds(name: str, value: float | None) -> float | None:
    if value is not None and not 0 < value <= LARGEST_SCALE:
        raise PlanError(f"{name} {value:g}: use seconds above 0, at most {LARGEST_SCALE:g}")
    return value


def _think_s(options: ReplayOptions, default: float | None) -> float | None:
    """Seconds between turns of a session; None in a closed loop, which has no such pauses."""
    if options.think_s is None:
        return None if options.concurrency is not None else default
    if options.concurrency is not None:
        raise PlanError("--think and --concurrency: a closed loop has no pauses, give one")
    if not 0 <= options.think_s <= LARGEST_SCALE:
        raise PlanError(f"think {options.think_s:g}: use seconds from 0, at most {LARGEST_SCALE:g}")
    return options.think_s


def _something_is_measured(setting: Setting, calls: Collection[TenantRequest]) -> None:
    if not setting.warm_up_s or setting.concurrency is not None:
        return
    last = max((call.at_s for call in calls), default=0.0)
    if setting.warm_up_s > last:
        raise PlanError(
            f"warm-up {setting.warm_up_s:g}: the last request leaves at {last:.1f} s, "
            "so none is measured: shorten the warm-up"
        )


def _scale(name: str, chosen: float | None, default: float) -> float:
    scale = default if chosen is None else chosen
    if not 0 < scale <= LARGEST_SCALE:
        raise PlanError(f"{name} scale {scale:g}: use a number above 0, at most {LARGEST_SCALE:g}")
    return scale


def scaled_to(
    config_path: Path, options: ReplayOptions, plan: ReplayPlan, capacity_rps: float
) -> ReplayPlan:
    """The plan with its gaps scaled so that the rate of requests is its `load` times the capacity.

    Reads configuration and trace again. Raises `ConfigError`, `TraceError` or `PlanError`, as
    `settle` does.
    """
    load = plan.setting.load
    asked = (load or 1.0) * capacity_rps
    scale = plan.setting.time_scale * time_scale((call.at_s for call in plan.calls), asked)
    again = settle(config_path, replace(options, time_scale=scale, load=None))
    said = replace(again.setting, load=load, capacity_rps=capacity_rps)
    return replace(again, setting=said)


def _load(config: Config, options: ReplayOptions) -> float | None:
    """Part of the machine's capacity to which gaps are scaled; None if they are not. Raises
    `PlanError` for a load that is out of range, contradicts another option, or cannot be measured
    here.
    """
    if options.load is None:
        instead = (options.time_scale, options.rate, options.concurrency)
        said = any(value is not None for value in instead)
        load = None if said else config.replay.load
    else:
        load = options.load
        if options.time_scale is not None:
            raise PlanError("--load and --time-scale: both scale the gaps, give one")
        if options.concurrency is not None:
            raise PlanError("--load and --concurrency: a closed loop has no arrivals, give one")
        if not 0 < load <= MOST_LOAD:
            raise PlanError(f"load {load:g}: use a number above 0, at most {MOST_LOAD:g}, as 0.7")
    if load is not None and options.server:
        raise PlanError(
            f"load {load:g} is measured on a server of our own: with --server give --time-scale"
        )
    if load is not None and config.device.kind != "host":
        raise PlanError(
            f"load {load:g} is measured with more memory than the device has, and a GPU has no "
            "more: give --time-scale"
        )
    return load
