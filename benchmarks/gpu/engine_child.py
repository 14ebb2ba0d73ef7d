"""One engine in a process of its own (`engine_run`), with the environment as `mirage serve` sets
it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.rows import Skipped
from benchmarks.gpu.tied import tied

if TYPE_CHECKING:
    from mirage.config import Config
    from mirage.serve.rundir.folders import RunDir

ROOT = Path(__file__).parents[2]


class Ended(Exception):
    """An engine ended; the message has its last stage and its last line."""


@dataclass(frozen=True)
class Engine:
    """Description of an engine's start: the command line of its server, the configuration in its
    environment, and the time limit of `ran`.
    """

    command: list[str]
    config: Config
    limit_s: float
    stock: bool = False
    """True if nothing in its environment is MIRAGE's choice."""
    more: dict[str, str] = field(default_factory=dict)
    """Environment variables that are added or replaced."""

    def environment(self, rundir: RunDir) -> dict[str, str]:
        """Environment variables of the engine: those of `mirage serve`, or for plain vLLM without
        the ones that vLLM's defaults lack.
        """
        from mirage.serve.launch import launcher

        variables = launcher.environment(self.config, rundir)
        if self.stock:
            variables = {k: v for k, v in variables.items() if k not in launcher.BREAKABLE}
        return variables | self.more | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def served(config: Config, limit_s: float) -> Engine:
    """Command and configuration to start an engine of the first model of `config` as `mirage serve`
    does; nothing is started. Raises `ConfigError` if any model of `config` is refused.
    """
    from mirage.serve.launch import launcher
    from mirage.serve.launch.preflight import fit_config

    tenant = config.tenants[0]
    fit = fit_config(config)[tenant.name]
    return Engine(launcher.command(config, tenant, fit, Path(), None), config, limit_s)


def ran(engine: Engine, spec: dict[str, Any]) -> dict[str, Any]:
    """Facts that `engine_run` found in a new process. Raises `Ended` if it ends without them, or is
    not done in the engine's time limit.
    """
    from mirage.serve.rundir.folders import RunDir

    with RunDir(None) as rundir, tempfile.TemporaryDirectory() as folder:
        asked, out, log = (Path(folder) / name for name in ("spec.json", "out.json", "log"))
        asked.write_text(json.dumps(spec | {"command": engine.command}))
        stage = _child(asked, out, log, engine.environment(rundir), engine.limit_s)
        if not out.exists():
            raise Ended(f"the engine ended, {stage}: {_last_error(log)}")
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def _child(spec: Path, out: Path, log: Path, environment: dict[str, str], limit_s: float) -> str:
    """Run the engine's process to its end; return how it ended and its last stage."""
    words = tied([sys.executable, "-m", "benchmarks.gpu.engine_run", str(spec), str(out)])
    late = ""
    with log.open("wb") as errors:
        child = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            told, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            told, _ = child.communicate()
            late = f"not done after {limit_s:.0f} s, "
    stages = [line[6:] for line in told.splitlines() if line.startswith("STAGE ")]
    if child.returncode and not late:
        print(log.read_text(errors="replace")[-6000:], file=sys.stderr)
    return f"{late}exit code {child.returncode}, while {stages[-1] if stages else 'importing'}"


def _last_error(log: Path) -> str:
    from mirage.serve.logs.engine_log import last_error

    return last_error(log) or "it wrote no error"


def need_vllm() -> None:
    if find_spec("vllm") is None:
        raise Skipped("vLLM is not installed")
