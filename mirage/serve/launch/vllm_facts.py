"""Facts about the tenants' models, for which vLLM is asked in a child process before engines
start.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import msgspec

from mirage.config import Config, ConfigError, Policy
from mirage.facts import ModelFacts
from mirage.processes.asking import ForkEnded, Waiting, asked_child
from mirage.processes.asking import ask as ask_at
from mirage.serve.adapting.adapters import with_declared
from mirage.serve.launch import launcher
from mirage.serve.launch.host_limits import with_causes
from mirage.serve.logs.engine_log import last_error
from mirage.serve.rundir.folders import RunDir
from mirage.wire import Broken

Probe = tuple[str, ...] | Path
"""Arguments of Python for a process to start and ask, or the address of a process that has imported
vLLM (`mirage.engine.forkserver`); if that is gone, `PROBE` is started.
"""
Answers = dict[str, Mapping[str, Any]]
"""Answers by the tenants' names."""
PROBE = ("-m", "mirage.engine.probe")
ROLE = "probe"
TIMEOUT_S = 120.0
"""Seconds for importing vLLM, beside those for the tenants."""
MORE_S = 120.0
"""Most seconds for each tenant's model, as many as the probe allows; the largest models take a
few.
"""


def ask(config: Config, probe: Probe = PROBE) -> tuple[dict[str, ModelFacts], dict[str, str]]:
    """Ask vLLM, through the process `probe`, about all tenants' models: facts, and reasons of
    refusals, both by tenant.

    This takes some ten seconds, most of it for importing vLLM. Raises `ConfigError` if the answer
    about any model is missing or late.
    """
    with TemporaryDirectory(prefix="mirage-check-") as folder:
        log = Path(folder) / "log"
        answers = _answers(config, log, probe)
        if any(tenant.name not in answers for tenant in config.tenants):
            raise ConfigError(f"vLLM cannot be asked about the models: {_why(log)}")
    refused = {name: a["refused"] for name, a in answers.items() if "refused" in a}
    facts = {n: msgspec.convert(a["facts"], ModelFacts) for n, a in answers.items() if "facts" in a}
    return facts, refused


def _answers(config: Config, log: Path, probe: Probe) -> Answers:
    """Answers that came before the process that was asked has ended.

    Raises `ConfigError` if they take too long.
    """
    steps = launcher.step_settings(config).model_dump(mode="json")
    additional = {"additional_config": {"mirage": steps}}
    questions: list[dict[str, Any]] = [
        {
            "tenant": tenant.name,
            "elastic": config.policy is not Policy.STATIC,
            "argv": [*launcher.arguments_of(config, tenant), *launcher.flags(additional)],
            "given": launcher.given(tenant),
            "defaults": tenant.defaults,
        }
        for tenant in map(with_declared, config.tenants)
    ]
    until = _until(TIMEOUT_S + MORE_S * len(questions))
    if isinstance(probe, Path):
        with suppress(OSError, ForkEnded):
            return {q["tenant"]: ask_at(probe, ROLE, q, log, waiting=until) for q in questions}
        probe = PROBE
    return _of_a_child(config, questions, log, probe, until)


def _of_a_child(
    config: Config,
    questions: list[dict[str, Any]],
    log: Path,
    probe: tuple[str, ...],
    until: Waiting,
) -> Answers:
    answers: Answers = {}
    with (
        RunDir(None) as rundir,
        asked_child(probe, log, launcher.environment(config, rundir)) as child,
        suppress(Broken),
    ):
        for question in questions:
            answers[question["tenant"]] = child.ask(ROLE, question, until)
        child.over(until)
    return answers


def _until(limit_s: float) -> Waiting:
    """Callback that raises `ConfigError` once `limit_s` seconds have passed from now on."""
    begun = monotonic()

    def look(_: float) -> None:
        if monotonic() > begun + limit_s:
            raise ConfigError(f"vLLM did not answer about the models in {limit_s:g} s")

    return look


def _why(log: Path) -> str:
    words = with_causes(last_error(log) or "it wrote no error")
    missing = "No module named 'vllm'" in words
    return f"{words}{': install it with pip install .[vllm]' if missing else ''}"
