"""All parts of a profile, each measured by a child process. Parts with unchanged inputs are not
measured again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import yaml

from mirage.config import Config, Policy, SharingSection, current, read_yaml
from mirage.serve.fit.fit import Fit
from mirage.serve.launch import launcher
from mirage.serve.launch.preflight import fit_config
from mirage.serve.rundir.folders import RunDir
from mirage.tools.profile import children, engines, quiet
from mirage.tools.profile.imported import IN_THIS_PROCESS, Imported, imported
from mirage.tools.profile.parts import Part, Parts
from mirage.tools.profile.plan import Effort
from mirage.tools.report.origin import machine, versions

Waiting = Callable[[float], None]
AT_ONCE = "configuration.yaml"
"""Name of the configuration with spatial sharing, under which the serving overhead is measured."""
LISTED = ("config.json", "model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True)
class Measurements:
    """Answers of the child processes; engines by tenant."""

    engines: dict[str, Any]
    transfers: dict[str, Any]
    message: dict[str, Any]
    served: dict[str, Any]
    parts: dict[str, Part]
    """All parts by name, each with its measurements and its circumstances."""


class Measuring(ExitStack):
    """Measurement of one configuration's parts, in order.

    Call `measure` inside its `with` block; the end of the block stops processes that parts share.
    """

    def __init__(self, path: Path, config: Config, effort: Effort) -> None:
        super().__init__()
        self.path = path
        self._imported: Imported | None = None
        self._fits: dict[str, Fit] | None = None
        self._turns = config.sharing.mode == "temporal"
        # Nobody gives turns to an engine that is stepped by hand.
        at_once = {"policy": Policy.MIRAGE, "sharing": SharingSection(mode="spatial")}
        self.config = config.model_copy(update=at_once)
        self.effort = effort

    @property
    def names(self) -> list[str]:
        """Names of all parts, in the order of measurement."""
        return [
            "transfers",
            *(f"engine {t.name}" for t in self.config.tenants),
            "message",
            "served",
        ]

    def key(self) -> dict[str, Any]:
        """Inputs of all parts together; if any input has changed, every part is measured again."""
        content = self.config.model_dump_json(exclude={"replay": True, "device": {"profile"}})
        return {
            "configuration": hashlib.sha256(content.encode()).hexdigest(),
            "models": {t.name: _stamps(t.model) for t in self.config.tenants},
            "versions": versions(),
            "machine": describe(self.config),
            "effort": asdict(self.effort),
        }

    def measure(self, name: str, parts: Parts, waiting: Waiting) -> Part:
        """Measure one part and store it in `parts`. Raises `ConfigError` if a model does not fit,
        `EngineFailed` if a child gives no answer, `OSError` if the part cannot be stored.
        """
        fits = self._fitted(parts) if name.split()[0] in ("transfers", "engine") else {}
        began = monotonic()
        with quiet.others_watched() as counts:
            answered = self._ask(name, fits, parts, waiting)
        today = datetime.now(UTC).date().isoformat()
        part = Part(answered, quiet.mean(counts), monotonic() - began, today)
        parts.put(name, part)
        return part

    def _ask(self, name: str, fits: Mapping[str, Fit], parts: Parts, waiting: Waiting) -> Any:
        config, effort, plain = self.config, self.effort, children.environment()
        log = parts.log(name)
        if name == "transfers":
            question = engines.transfer_question(config, fits, effort)
            return children.ask("mirage.tools.profile.transfers", question, log, plain, waiting)
        if name == "message":
            asked = {"config": str(self.path), "asks": effort.asks}
            return children.ask("mirage.tools.profile.message", asked, log, plain, waiting)
        if name == "served":
            file, server = self._at_once(log.parent), log.with_name("serve.log")
            address = self._vllm(parts).address
            question = engines.served_question(config, file, server, address, effort)
            return children.ask("mirage.tools.profile.served", question, log, plain, waiting)
        tenant = config.tenant(name.removeprefix("engine "))
        question = engines.engine_question(config, tenant, fits[tenant.name], effort)
        if config.device.kind == "host":
            return self._vllm(parts).steps(question, log, waiting)
        return self._steps_of_a_new_process(question, log, waiting)

    def _steps_of_a_new_process(self, question: Any, log: Path, waiting: Waiting) -> Any:
        """Measure steps in a new process, for a GPU: imports may initialise CUDA, which cannot be
        used in a fork afterwards.
        """
        with RunDir(None) as rundir:
            environment = launcher.environment(self.config, rundir) | IN_THIS_PROCESS
            return children.ask("mirage.engine.steptimes", question, log, environment, waiting)

    def _vllm(self, parts: Parts) -> Imported:
        """The process that has imported vLLM, started by the first part that needs it."""
        if self._imported is None:
            self._imported = self.enter_context(imported(self.config, parts.log("vllm")))
        return self._imported

    def _fitted(self, parts: Parts) -> dict[str, Fit]:
        if self._fits is None:
            self._fits = fit_config(self.config, self._vllm(parts).address)
        return self._fits

    def _at_once(self, folder: Path) -> Path:
        """Path of the configuration with spatial sharing: the file itself, or a copy beside the
        parts. Turns would distort steps.
        """
        if not self._turns:
            return self.path.absolute()
        raw = current(read_yaml(self.path), self.path) | {"sharing": {"mode": "spatial"}}
        models = {tenant.name: str(tenant.model) for tenant in self.config.tenants}
        raw["tenants"] = [tenant | {"model": models[tenant["name"]]} for tenant in raw["tenants"]]
        file = folder.absolute() / AT_ONCE
        file.write_text(yaml.safe_dump(raw))
        return file


def collected(measuring: Measuring, parts: Mapping[str, Part]) -> Measurements:
    """The stored parts, converted to `Measurements`."""
    names = [tenant.name for tenant in measuring.config.tenants]
    return Measurements(
        engines={name: parts[f"engine {name}"].measured for name in names},
        transfers=parts["transfers"].measured,
        message=parts["message"].measured,
        served=parts["served"].measured,
        parts=dict(parts),
    )


def all_parts(measuring: Measuring, parts: Parts) -> Measurements:
    """All parts: stored ones, and newly measured ones if missing. Shows no progress."""
    found = {
        name: parts.get(name) or measuring.measure(name, parts, lambda seconds: None)
        for name in measuring.names
    }
    return collected(measuring, found)


def describe(config: Config) -> str:
    """Description of the machine, with its GPU if the device is one. Raises `VmmError` if there is
    no such GPU.
    """
    if config.device.kind == "host":
        return machine()
    from vmm.cuda_device import device_facts

    return f"{device_facts(config.device.index).name}, {machine()}"


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Size, and modification time in nanoseconds, of each file in a model's folder that `LISTED`
    names.
    """
    found = [(name, (folder / name)) for name in LISTED]
    return {n: [f.stat().st_size, f.stat().st_mtime_ns] for n, f in found if f.is_file()}
