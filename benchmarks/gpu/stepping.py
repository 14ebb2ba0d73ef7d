"""Child process that runs the rows it gets: ``python -m benchmarks.gpu.stepping FD [--dry]``.

A line of its standard input names a row's function and its time limit in seconds. Rows, and the end
of each function, go into the pipe FD, each as a line of JSON. Output of libraries goes elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

from benchmarks.gpu.rows import Row, Skipped, said, skipped


def rows(place: str, bench: Any) -> Iterator[Row]:
    """Rows of the function at `place`; a row with the reason if a package is missing or the
    function fails.
    """
    module, _, name = place.rpartition(".")
    short = f"{module.rpartition('.')[2]}.{name}"
    try:
        made = getattr(import_module(module), name)(bench)
        yield from [made] if isinstance(made, Row) else made
    except Skipped as why:
        yield skipped(short, str(why))
    except Exception as error:  # the other rows shall have their turn
        if isinstance(error, ModuleNotFoundError) and not _ours(error.name or ""):
            yield skipped(short, f"needs {error.name}, which is not installed")
            return
        traceback.print_exc()
        yield Row(short, "", f"failed: {said(error)}", holds=False)


def _ours(module: str) -> bool:
    return module.partition(".")[0] in {"benchmarks", "mirage", "vmm"}


def main(fd: str, *options: str) -> None:
    """Run steps until the input ends."""

    def tell(**message: Any) -> None:
        os.write(int(fd), (json.dumps(message) + "\n").encode())

    os.set_inheritable(int(fd), False)
    os.dup2(2, 1)
    try:
        bench, about = _machine(dry="--dry" in options)
    except Exception as error:  # VmmError is not known before this import succeeds
        tell(none=str(error))
        return
    tell(about=about)
    for line in sys.stdin:
        place, seconds = json.loads(line)
        for row in rows(place, replace(bench, end=time.monotonic() + seconds)):
            tell(row=row.as_dict())
        tell(done=place)


def _machine(*, dry: bool) -> tuple[Any, dict[str, Any]]:
    """The bench, and the facts of its device that are written beside its rows."""
    from benchmarks.gpu import bench
    from vmm.cuda_device import device_facts, driver_version

    made = bench.dry() if dry else bench.real()
    facts = device_facts(0)
    return made, {
        "gpu": facts.name,
        "memory_bytes": facts.total_bytes,
        "capability": list(facts.capability),
        "cuda": "{}.{}".format(*driver_version()),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
