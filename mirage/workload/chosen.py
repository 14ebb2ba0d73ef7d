"""Value of ``--trace``: a file, the bundled sample, the name of a public trace, or one of these for
each tenant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from pathlib import Path

from mirage.config import Traffic
from mirage.paths import expanded
from mirage.workload import public, trace
from mirage.workload.dealing import deal
from mirage.workload.trace import Reading, TraceError, TraceRequest
from traces import SAMPLE

SAMPLE_NAME = "sample"
Window = tuple[float, float] | None


@dataclass(frozen=True)
class Chosen:
    """One trace whose requests are dealt to tenants, or the tenants' own traces."""

    shared: Path | None
    own: Mapping[str, Path]

    @property
    def rewinds(self) -> bool:
        """True if the trace can be read more than once, which a pipe cannot."""
        paths = [self.shared] if self.shared else self.own.values()
        return all(path.is_file() for path in paths)

    def has_arrivals(self, how: Reading) -> bool:
        """True if the trace, or each of the tenants' own traces, has arrivals. False, with nothing
        read, if any of them is no regular file, such as a pipe.

        Raises `TraceError` if only some of the tenants' own traces have arrivals, and for a trace
        that cannot be read.
        """
        if not self.rewinds:
            return False
        paths = [self.shared] if self.shared else list(self.own.values())
        told = {path: trace.has_arrivals(path, how) for path in paths}
        if len(set(told.values())) > 1:
            with_, without = (next(p for p in told if told[p] is says) for says in (True, False))
            raise TraceError(
                f"{with_} has arrivals of its own and {without} has none: a rate cannot mean "
                "both, replay them apart"
            )
        return all(told.values())

    def requests(
        self,
        tenants: list[str],
        traffic: Traffic,
        seed: int,
        how: Reading,
        window: Window,
        limit: int | None,
        skipped: Counter[str],
    ) -> Iterator[tuple[str, TraceRequest]]:
        """Each request with its tenant, ordered by time. Raises `TraceError` for a trace that
        cannot be read.

        `window` applies to each trace, `limit` to all of them together. Rows that are left out are
        counted in `skipped`, by reason.
        """
        if self.shared is not None:
            requests = trace.stream(self.shared, window, limit, how, skipped)
            return deal(requests, tenants, traffic, seed)
        how = Reading(how.format, how.rate, how.seed, bounded=limit is not None)
        streams = [
            _named(name, trace.stream(path, window, None, how, skipped))
            for name, path in self.own.items()
        ]
        return islice(merge(*streams, key=lambda pair: pair[1].arrival_s), limit)


def chosen(text: str, tenants: list[str]) -> Chosen:
    """Traces of ``FILE`` or ``NAME=FILE,NAME=FILE``. Raises `TraceError` with one line for another
    form, an unknown tenant, a tenant with two traces, and a public trace that was not fetched.
    """
    if "=" not in text or Path(text).exists():
        return Chosen(located(text), {})
    own: dict[str, Path] = {}
    for part in text.split(","):
        name, equals, file = (word.strip() for word in part.partition("="))
        if not equals or not file:
            raise TraceError(f"--trace {text!r}: {part.strip()!r} is no TENANT=FILE")
        if name not in tenants:
            raise TraceError(
                f"--trace {text!r}: no tenant is named {name!r}: choose from {', '.join(tenants)}"
            )
        if name in own:
            raise TraceError(f"--trace {text!r}: tenant {name!r} has two traces: leave one out")
        own[name] = located(file)
    return Chosen(None, own)


def of_config(named: str | Mapping[str, str], near: Path) -> Chosen:
    """Traces that a configuration names; relative paths are relative to `near`. Raises `TraceError`
    for a public trace that was not fetched.
    """
    if isinstance(named, str):
        return Chosen(located(named, near), {})
    return Chosen(None, {name: located(file, near) for name, file in named.items()})


def shown(named: str | Mapping[str, str]) -> str:
    """Text of the traces, as ``--trace`` takes it: a file, or ``name=file`` joined by commas."""
    if isinstance(named, str):
        return named
    return ",".join(f"{name}={file}" for name, file in named.items())


def located(text: str, near: Path | None = None) -> Path:
    """Path of a trace: the sample, a fetched public trace, or a file, relative to `near`.

    A file goes before a public trace of the same name. Raises `TraceError` for a public trace that
    was not fetched, and `InputRefused` for an unset variable or an unknown home in the path.
    """
    path = SAMPLE if text == SAMPLE_NAME else (near or Path()) / expanded(text)
    return public.cached(text) if text in public.TRACES and not path.exists() else path


def _named(name: str, requests: Iterator[TraceRequest]) -> Iterator[tuple[str, TraceRequest]]:
    return ((name, request) for request in requests)
