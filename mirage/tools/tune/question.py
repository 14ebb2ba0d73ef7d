"""A question to the tuner: its configuration, machine and trace, checked before anything runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mirage
from mirage.config import Config, ConfigError, current, load, read_yaml
from mirage.control.rules import Rules
from mirage.serve.models.hubs import from_cache
from mirage.simulate.roofline import Roofline
from mirage.tools.explain.arithmetic import Explained, explained, layer_compute_s
from mirage.tools.explain.machine import Machine, machine
from mirage.tools.explain.subjects import Subjects, subjects
from mirage.tools.fixed_shares import with_fixed_shares
from mirage.tools.tune.simulated import Bench
from mirage.tools.tune.space import SearchSpace, space
from mirage.tools.tune.windows import LARGEST_WINDOW, Cut, cut
from mirage.workload import trace
from mirage.workload.chosen import SAMPLE_NAME, located
from mirage.workload.trace import EndlessTrace, Reading, TraceError, TraceRequest

MOST_ROWS = 2_000_000
"""Most rows of a trace that are read and held in memory."""
ENDLESS_ROWS = 8 * LARGEST_WINDOW
"""Rows that are read of an endless trace: as many as all windows can hold."""
CONTEXT = 1024
"""Tokens of a request for which the paper's arithmetic is computed."""
BATCHES = (1, 8, 32, 128)
STEPS = (1.5, 2.0, 3.0, 5.0, 8.0)
"""Values of `tbt_ms` to search, as multiples of the decode step of one request."""


@dataclass(frozen=True)
class TuneOptions:
    """Options of the command line. None takes the default."""

    trace: str | None = None
    """Trace as `located` takes it: a file, the bundled sample, or a public trace; None: the
    configuration's own.
    """
    profile: str | None = None
    seed: int = 0
    find_load: bool = False
    """True to use a load just above the one that the configuration can serve."""
    largest_window: int = LARGEST_WINDOW
    trace_format: str | None = None
    """Format of the trace; None: recognised by its beginning."""


@dataclass(frozen=True)
class Question:
    """A configuration, its machine, its trace and the knobs to search."""

    path: Path
    config: Config
    options: TuneOptions
    trace: str
    """Name of the trace that is used."""
    machine: Machine
    subjects: Subjects
    explained: tuple[Explained, ...]
    space: SearchSpace
    cut: Cut
    requests: int
    """Number of requests in the trace."""

    @property
    def trace_name(self) -> str:
        """Name of the trace for readers."""
        given = self.trace
        return "the bundled sample" if given == SAMPLE_NAME else given

    @property
    def load_is_given(self) -> bool:
        """True if the rate of requests is given: by `replay.time_scale` in the file, or by another
        trace than the sample. False with `find_load`, and with `replay.load` in the file unless an
        option names the trace.
        """
        replay = self.config.replay
        if self.options.find_load or (self.options.trace is None and replay.load is not None):
            return False
        return "time_scale" in replay.model_fields_set or self.trace != SAMPLE_NAME

    def rate(self, slower: float) -> float:
        """Requests a second in the searched windows with gaps `slower` times as long."""
        windows = self.cut.searched
        gaps = sum(len(window.requests) - 1 for window in windows)
        span_s = sum(window.requests[-1].arrival_s for window in windows)
        return gaps / (span_s * self.config.replay.time_scale * slower) if span_s else 0.0

    def bench(self, time_scale: float) -> Bench:
        """Bench with the machine, the models and the windows."""
        windows = (*self.cut.searched, *self.cut.held_back)
        return Bench(
            hardware=self.machine.hardware,
            page_bytes=next(iter(self.subjects.fits.values())).page.bytes,
            models={s.tenant.name: s.model for s in self.subjects.subjects},
            windows={window.number: window for window in windows},
            time_scale=time_scale,
            length_scale=self.config.replay.length_scale,
        )

    def digest(self, **more: Any) -> str:
        """Hash of the question and of `more`; the same only for the same question."""
        bench = self.bench(1.0)
        windows = [(w.number, w.requests) for w in (*self.cut.searched, *self.cut.held_back)]
        whole = {
            "version": mirage.__version__,
            "config": self.config.model_dump(mode="json"),
            "models": {name: model.model_dump() for name, model in bench.models.items()},
            "hardware": bench.hardware.model_dump(),
            "windows": hashlib.sha256(repr(windows).encode()).hexdigest(),
            "knobs": repr(self.space.knobs),
            "seed": self.options.seed,
        }
        return hashlib.sha256(json.dumps(whole | more, sort_keys=True).encode()).hexdigest()


def ask(path: Path, options: TuneOptions) -> Question:
    """Read and check the question. Raises `ConfigError` or `TraceError` with one line for a
    configuration or a trace that cannot be tuned.
    """
    config = from_cache(with_fixed_shares(load(path), "tune"))
    on = machine(options.profile, config.device)
    known = subjects(config, on.hardware, CONTEXT)
    for name, why in known.refused.items():
        raise ConfigError(f"tenant {name!r} cannot be simulated: {why}")
    named, rows = _requests(config, options, path.parent)
    told = tuple(explained(s, on.hardware, Rules.served(config), BATCHES) for s in known.subjects)
    knobs = space(config, known.fits, _steps_ms(known, on))
    return Question(
        path=path,
        config=config,
        options=options,
        trace=named,
        machine=on,
        subjects=known,
        explained=told,
        space=knobs,
        cut=cut(rows, options.largest_window),
        requests=len(rows),
    )


def raw(path: Path) -> dict[Any, Any]:
    """Content of the file, in the keys of the newest version. Raises `ConfigError` for a file that
    cannot be read or has an unknown version."""
    return current(read_yaml(path), path)


def _requests(config: Config, options: TuneOptions, near: Path) -> tuple[str, list[TraceRequest]]:
    """The trace's name and its requests; `near` is the folder for a relative path in the
    configuration.

    Raises `ConfigError` if the configuration has one trace for each tenant, and `TraceError` as
    `_rows` does.
    """
    if options.trace is not None:
        return options.trace, _rows(located(options.trace), options.trace_format)
    named = config.replay.trace
    if not isinstance(named, str):
        raise ConfigError("replay.trace names one trace per tenant: tune takes one, give --trace")
    return named, _rows(located(named, near), options.trace_format)


def _rows(path: Path, form: str | None) -> list[TraceRequest]:
    """Rows of a trace without texts and hashes, which are not used here. Raises `TraceError` for a
    trace that cannot be read, or whose rows all arrive at one time."""
    try:
        rows = _first(path, MOST_ROWS, Reading(form))
    except EndlessTrace:
        rows = _first(path, ENDLESS_ROWS, Reading(form, bounded=True))
    if rows[0].arrival_s == rows[-1].arrival_s:
        raise TraceError(f"{path}: all rows have one time: name a trace with arrivals")
    return rows


def _first(path: Path, most: int, how: Reading) -> list[TraceRequest]:
    return [
        TraceRequest(row.arrival_s, row.context_tokens, row.output_tokens)
        for row, _ in zip(trace.read(path, how), range(most), strict=False)
    ]


def _steps_ms(known: Subjects, on: Machine) -> list[float]:
    """Values of `tbt_ms` to search: multiples of the slowest model's decode step, in
    milliseconds.
    """
    one = max(
        layer_compute_s(Roofline(s.model, on.hardware), 1, s.context) * s.model.layers * 1e3
        for s in known.subjects
    )
    return [float(f"{one * factor:.2g}") for factor in STEPS]
