"""A replay, settled before anything starts: all that can be refused is refused here."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage import config as configuration
from mirage.config import Config, Policy
from mirage.replay.report import Setting
from mirage.workload import dealing
from mirage.workload.calls import Calls
from mirage.workload.chosen import chosen
from mirage.workload.dealing import Call
from mirage.workload.trace import Reading

LARGEST_SCALE = 1e6


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


@dataclass(frozen=True)
class Options:
    """What a person chose; None takes the configuration's default."""

    trace: str = "sample"
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


def settle(config_path: Path, options: Options) -> Plan:
    """Read the configuration and the trace, make the workload and the output folder.

    Raises `ConfigError`, `TraceError` or `PlanError`, each with one line.
    """
    config = configuration.load(config_path)
    defaults = config.replay
    setting = Setting(
        config=str(config_path),
        trace=options.trace,
        window=options.window or defaults.window,
        time_scale=_scale("time", options.time_scale, defaults.time_scale),
        length_scale=_scale("length", options.length_scale, defaults.length_scale),
        seed=defaults.seed if options.seed is None else options.seed,
        limit=options.limit,
        trace_format=options.trace_format,
        rate=options.rate,
    )
    policies = _policies(options)
    if setting.limit is not None and setting.limit < 1:
        raise PlanError(f"limit {setting.limit}: at least one request must be replayed")
    calls = _calls(config, setting)
    _make_writable(options.output)
    return Plan(config_path, config, setting, calls, policies, options.output, options.server)


def _calls(config: Config, setting: Setting) -> Collection[Call]:
    """Made from the trace whenever they are needed, or held if it can be read but once.

    What the trace skips is counted in the setting.
    """
    names = [tenant.name for tenant in config.tenants]
    which = chosen(setting.trace, names)
    traffic, seed = config.replay.traffic, setting.seed
    how = Reading(setting.trace_format, setting.rate, seed)

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
