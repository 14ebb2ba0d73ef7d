"""vLLM's facts on every tenant's model, asked in a child process before any engine starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from mirage.config import Config, ConfigError, Policy
from mirage.facts import ModelFacts
from mirage.serve import launcher
from mirage.serve.limits import with_causes
from mirage.serve.process import last_error
from mirage.serve.rundir import RunDir

PROBE = ("-m", "mirage.engine.probe")
TIMEOUT_S = 120.0
"""Seconds granted to import vLLM, before those for each tenant."""
MORE_S = 120.0
"""Seconds granted for each tenant, as in the probe; the largest models take a few."""


def ask(
    config: Config, probe: tuple[str, ...] = PROBE
) -> tuple[dict[str, ModelFacts], dict[str, str]]:
    """The facts of every tenant that vLLM takes, and why it refuses one; both by name.

    Takes some ten seconds, most to import vLLM. Raises `ConfigError` if it cannot be asked.
    """
    with TemporaryDirectory(prefix="mirage-check-") as folder:
        log = Path(folder) / "log"
        answers = _answers(config, log, probe)
        if any(tenant.name not in answers for tenant in config.tenants):
            raise ConfigError(f"vLLM cannot be asked about the models: {_why(log)}")
    refused = {name: a["refused"] for name, a in answers.items() if "refused" in a}
    facts = {n: msgspec.convert(a["facts"], ModelFacts) for n, a in answers.items() if "facts" in a}
    return facts, refused


def _answers(config: Config, log: Path, probe: tuple[str, ...]) -> dict[str, Mapping[str, Any]]:
    additional = {"additional_config": {"mirage": launcher.device_settings(config)}}
    questions = [
        {
            "tenant": tenant.name,
            "elastic": config.policy is not Policy.STATIC,
            "argv": [*launcher.arguments_of(config, tenant), *launcher.flags(additional)],
        }
        for tenant in config.tenants
    ]
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    limit_s = TIMEOUT_S + MORE_S * len(questions)
    with RunDir(None) as rundir, log.open("wb") as errors:
        asked = subprocess.Popen(
            [sys.executable, *probe],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=launcher.environment(config, rundir),
            process_group=0,
        )
        with _ended_with_us(asked):
            try:
                answered, _ = asked.communicate(lines.encode(), limit_s)
            except subprocess.TimeoutExpired:
                why = f"vLLM did not answer about the models in {limit_s:g} s"
                raise ConfigError(why) from None
    said = [json.loads(line) for line in answered.splitlines()]
    return {answer["tenant"]: answer for answer in said}


@contextmanager
def _ended_with_us(leader: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever is raised inside, a signal's exception too, ends the group of `leader`.

    It alone is not enough: the probe asks about each model in a child of its own.
    """
    try:
        yield
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()
        raise


def _why(log: Path) -> str:
    words = with_causes(last_error(log) or "it wrote no error")
    missing = "No module named 'vllm'" in words
    return f"{words}{': install it with pip install .[vllm]' if missing else ''}"
