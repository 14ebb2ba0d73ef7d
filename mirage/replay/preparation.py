"""A replay, settled before anything starts: all that can be refused is refused here."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirage import config as configuration
from mirage.config import Config, Policy
from mirage.replay.report import Setting
from mirage.replay.slo import Slo, parse
from mirage.workload import dealing
from mirage.workload.calls import Calls
from mirage.workload.chosen import Chosen, chosen, of_config, shown
from mirage.workload.dealing import Call
from mirage.workload.rates import time_scale
from mirage.workload.trace import Reading

LARGEST_SCALE = 1e6
MOST = 1_000_000


class PlanError(ValueError):
    """Options that cannot be replayed; the message is one line."""


@dataclass(frozen=True)
class Plan:
    """What is replayed where. `policies` is empty when a running server is used."""

    config_path: Path
    config: Config
    setting: Setting
    calls: Collection[Call]
    policies: Sequence[Policy]
    output: Path
    server: str | None
    timeout_s: float
    key: str | None = field(repr=False)


@dataclass(frozen=True)
class Options:
    """What a person chose; None takes the configuration's default."""

    trace: str | None = None
    policies: str | None = None
    output: Path = Path("out/replay")
    window: tuple[float, float] | None = None
    time_scale: float | None = None
    length_scale: float | None = None
    seed: int | None = None
    limit: int | None = None
    server: str | None = None
    trace_format: str | None = None
    rate: float | None = None
    concurrency: int | None = None
    repeats: int = 1
    slo: str | None = None
    abandon_s: float | None = None
    warm_up_s: float = 0.0
    timeout: float | None = None
    key: str | None = None
    """What a server wants as ``Authorization: Bearer``; in no report."""


def settle(config_path: Path, options: Options) -> Plan:
    """Read the configuration and the trace, make the workload and the output folder.

    Raises `ConfigError`, `TraceError` or `PlanError`, each with one line.
    """
    config = configuration.load(config_path)
    defaults = config.replay
    setting = Setting(
        config=str(config_path),
        trace=shown(defaults.trace) if options.trace is None else options.trace,
        window=options.window or defaults.window,
        time_scale=_scale("time", options.time_scale, defaults.time_scale),
        length_scale=_scale("length", options.length_scale, defaults.length_scale),
        seed=defaults.seed if options.seed is None else options.seed,
        limit=options.limit,
        trace_format=options.trace_format,
        rate=options.rate,
        concurrency=_at_least_one("concurrency", options.concurrency),
        repeats=_at_least_one("repeats", options.repeats) or 1,
        abandon_s=_seconds("abandon", options.abandon_s),
        warm_up_s=_seconds("warm-up", options.warm_up_s or None) or 0.0,
        slo=parse(options.slo) if options.slo is not None else Slo(),
    )
    timeout_s = _seconds("timeout", options.timeout) or defaults.request_timeout_s
    policies = _policies(options)
    _at_least_one("limit", setting.limit)
    which = _chosen(config_path, config, options)
    how = Reading(setting.trace_format, setting.rate, setting.seed)
    if setting.rate is not None and which.has_arrivals(how):
        how = replace(how, rate=None)
        setting = replace(setting, time_scale=_stretched(config, setting, which, how, options))
    calls = _calls(config, setting, which, how)
    _something_is_measured(setting, calls)
    _make_writable(options.output)
    return Plan(
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


def _chosen(config_path: Path, config: Config, options: Options) -> Chosen:
    if options.trace is None:
        return of_config(config.replay.trace, config_path.parent)
    return chosen(options.trace, [tenant.name for tenant in config.tenants])


def _stretched(
    config: Config, setting: Setting, which: Chosen, how: Reading, options: Options
) -> float:
    """The time scale that gives a trace with arrivals of its own the rate of the setting."""
    if options.time_scale is not None:
        raise PlanError("--rate and --time-scale both set the gaps of this trace: give one of them")
    assert setting.rate is not None
    names = [tenant.name for tenant in config.tenants]
    traffic, seed, window, limit = config.replay.traffic, how.seed, setting.window, setting.limit
    requests = which.requests(names, traffic, seed, how, window, limit, Counter())
    scale = time_scale((request.arrival_s for _, request in requests), setting.rate)
    return _scale("time", scale, scale)


def _calls(config: Config, setting: Setting, which: Chosen, how: Reading) -> Collection[Call]:
    """Made from the trace whenever they are needed, or held if it can be read but once.

    What the trace skips is counted in the setting.
    """
    names = [tenant.name for tenant in config.tenants]
    traffic, seed = config.replay.traffic, setting.seed

    def made() -> Iterator[Call]:
        skipped: Counter[str] = Counter()
        window, limit = setting.window, setting.limit
        dealt = which.requests(names, traffic, seed, how, window, limit, skipped)
        yield from dealing.calls(config, dealt, setting.time_scale, setting.length_scale)
        setting.skipped.clear()
        setting.skipped.update(skipped)

    return Calls(made) if which.rewinds else list(made())


def _policies(options: Options) -> list[Policy]:
    if options.server:
        if options.policies:
            raise PlanError("--server replays under the policy it serves: leave --policy out")
        if not options.server.startswith(("http://", "https://")):
            raise PlanError(f"server {options.server!r}: write its address as http://HOST:PORT")
        return []
    if options.policies is None:
        return list(Policy)
    names = [name.strip() for name in options.policies.split(",")]
    known = [str(policy) for policy in Policy]
    if unknown := [name for name in names if name not in known]:
        raise PlanError(f"unknown policy {unknown[0]!r}: choose from {', '.join(known)}")
    return [Policy(name) for name in dict.fromkeys(names)]


def _at_least_one(name: str, count: int | None) -> int | None:
    if count is not None and not 1 <= count <= MOST:
        raise PlanError(f"{name} {count}: use a whole number from 1 to {MOST}")
    return count


def _seconds(name: str, value: float | None) -> float | None:
    if value is not None and not 0 < value <= LARGEST_SCALE:
        raise PlanError(f"{name} {value:g}: use seconds above 0, at most {LARGEST_SCALE:g}")
    return value


def _something_is_measured(setting: Setting, calls: Collection[Call]) -> None:
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


def _make_writable(folder: Path) -> None:
    """Now, not after minutes of measuring."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise PlanError(
            f"{folder}: cannot be written ({error.strerror}): choose another --output"
        ) from None
