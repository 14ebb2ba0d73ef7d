"""A whole profile: it is measured, fitted, written as files, and summarised."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console

from mirage.config import HARDWARE_FILES, Config, ConfigError
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.profiles import Model
from mirage.serve.models.served_shape import served_shape
from mirage.serve.models.shapes import UnknownShape
from mirage.tools.profile import children, engines, hardware, html
from mirage.tools.profile.hardware import ProfileProvenance
from mirage.tools.profile.measuring import Measurements, Measuring, collected, describe
from mirage.tools.profile.parts import Part, Parts
from mirage.tools.profile.plan import Effort
from mirage.tools.profile.result import RunFacts, result
from mirage.tools.profile.understanding import Measured, doubts, understood
from mirage.tools.report.files import make_room, write_all
from mirage.tools.report.origin import versions
from mirage.tools.report.progress import progress
from vmm.driver import VmmError

MEASURING = "measuring"


@dataclass(frozen=True)
class Output:
    """Paths of the result: the hardware file, and the others beside it with the same name."""

    file: Path

    @property
    def points(self) -> Path:
        return self.file.with_suffix(".json")

    @property
    def page(self) -> Path:
        return self.file.with_suffix(".html")

    @property
    def parts(self) -> Path:
        return self.file.with_suffix(".parts")


def checked(file: Path) -> Output:
    """Output paths of a run. Raises `ConfigError` for a file whose suffix is none of
    `HARDWARE_FILES`, or that cannot be written.
    """
    if file.suffix not in HARDWARE_FILES:
        raise ConfigError(f"--output {file}: name a file that ends in .yaml")
    output = Output(file)
    make_room(file, [output.file, output.points, output.page])
    return output


def profile(path: Path, config: Config, output: Output, effort: Effort, *, fresh: bool) -> None:
    """Measure, fit, write and summarise. Parts that an earlier run has stored for the same inputs
    are used again, unless `fresh`. Raises `ConfigError` for a configuration that cannot be
    measured, `EngineFailed` if a measurement fails, and `KeyboardInterrupt` at SIGINT, SIGTERM or
    SIGHUP.
    """
    models = _models(config)
    console = Console(stderr=True)
    measuring = Measuring(path, config, effort)
    parts = _parts(measuring, output)
    if fresh:
        parts.forget()
    with terminate_like_interrupt(), _one_cache(config, parts), measuring:
        found = _measured(measuring, parts, console)
    loads = {tenant.name: engines.loads(tenant) for tenant in config.tenants}
    cores = os.cpu_count() or 1
    measured = understood(
        [found.engines], [found.transfers], [found.message], [found.served], models, loads, cores
    )
    run = _run(measuring, found, measured, cores)
    _write(output, run, measured, found, models)
    for doubt in run.doubts:
        console.out(f"mirage: warning: {doubt}", highlight=False)
    typer.echo(summary(measured, output))


def summary(measured: Measured, output: Output) -> str:
    """Text with the most important figures, and the paths of the files."""
    fitted = measured.fitted
    load = f", a layer in {measured.load.median * 1e3:.3g} ms" if measured.load else ""
    return (
        f"link {measured.link_bytes_per_s / 1e9:.3g} GB/s{load}; a step "
        f"{fitted.overhead_s * 1e3:.3g} ms and {fitted.sequence_s * 1e6:.3g} µs a request, fitted "
        f"within {100 * fitted.error:.0f} %\n"
        f"{output.file}: for --hardware of mirage explain, and hardware of an experiment\n"
        f"{output.page}: what was measured, in pictures"
    )


def _models(config: Config) -> dict[str, Model]:
    """Shapes of all tenants' models, which the fit needs. Raises `ConfigError` for a model whose
    shape only vLLM knows.
    """
    try:
        return {tenant.name: served_shape(config, tenant) for tenant in config.tenants}
    except UnknownShape as error:
        raise ConfigError(
            f"a step of it cannot be counted, {error}: profile with a configuration of models "
            "that mirage explain knows"
        ) from None


def _parts(measuring: Measuring, output: Output) -> Parts:
    try:
        return Parts(output.parts, measuring.key())
    except VmmError as error:
        raise ConfigError(f"device.kind cuda: {error}") from None
    except ImportError:
        raise ConfigError("device.kind cuda needs cuda-python: pip install '.[vllm]'") from None
    except OSError as error:
        raise ConfigError(f"{output.parts}: cannot be written ({error.strerror})") from None


def _one_cache(config: Config, parts: Parts) -> AbstractContextManager[None]:
    """Context with a cache of vLLM for all children. Engines on a GPU keep their usual cache, which
    has their kernels.
    """
    if config.device.kind == "cuda":
        return nullcontext()
    return children.one_cache(parts.folder.absolute() / "vllm")


def _measured(measuring: Measuring, parts: Parts, console: Console) -> Measurements:
    found: dict[str, Part] = {}
    names = measuring.names
    for number, name in enumerate(names, 1):
        title = f"[{number}/{len(names)}] {name}"
        kept = parts.get(name)
        found[name] = _part(measuring, name, parts, title, console) if kept is None else kept
        how = f"{found[name].seconds:.0f} s" if kept is None else "measured before, not again"
        console.out(f"{title}: {how}", highlight=False)
    return collected(measuring, found)


def _part(measuring: Measuring, name: str, parts: Parts, title: str, console: Console) -> Part:
    with progress(title, console) as shown:
        shown.show(MEASURING, at_once=True)
        return measuring.measure(name, parts, lambda _: shown.show(MEASURING))


def _run(measuring: Measuring, found: Measurements, measured: Measured, cores: int) -> RunFacts:
    config = measuring.config
    machine = describe(config)
    others = {name: part.others for name, part in found.parts.items()}
    one = "" if config.device.kind == "cuda" else "one core of "
    return RunFacts(
        title=f"{one}{machine}",
        provenance=ProfileProvenance(
            program="mirage profile",
            machine=machine,
            date=max(part.date for part in found.parts.values()),
            config=str(measuring.path),
            memory_bytes=config.device.memory,
            page_bytes=found.transfers["page_bytes"],
        ),
        versions=versions(),
        effort=measuring.effort.name,
        cores=cores,
        others=others,
        seconds={name: part.seconds for name, part in found.parts.items()},
        doubts=doubts(others, found.engines, measured.fitted),
    )


def _write(
    output: Output,
    run: RunFacts,
    measured: Measured,
    found: Measurements,
    models: Mapping[str, Model],
) -> None:
    figures = hardware.figures(measured, run.provenance, measured.serving.engine)
    known = result(run, measured, figures, found.engines, found.transfers, models)
    made = f"Made by mirage profile at {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; see the page beside."
    write_all(
        {
            output.file: hardware.document(run.title, figures, made),
            output.points: json.dumps(known, indent=1, allow_nan=False) + "\n",
            output.page: html.render(known),
        }
    )
