"""A holder of peers' memory over the stand-in. Arguments: the shared file, its sizes, and those
of `mirage.tiers.lending.holder`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.vmm.libcuda import StandIn


def program(shared: Path | str, memory_bytes: int, granularity: int) -> list[str]:
    """Command line of a holder of peers' memory over the stand-in, for `Lenders` of
    `mirage.tiers.lending.lenders`.
    """
    words = [sys.executable, "-m", "tests.vmm.libcuda.lending", str(shared)]
    return [*words, str(memory_bytes), str(granularity)]


def main() -> None:
    standin = StandIn.load()
    standin.reset(int(sys.argv[2]), int(sys.argv[3]))
    standin.flags(devices=2)
    standin.share(sys.argv[1])
    from mirage.tiers.lending import holder

    holder.main(sys.argv[4:])


if __name__ == "__main__":
    main()
