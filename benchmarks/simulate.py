"""`mirage simulate` with policies for simulations only (`benchmarks/variants.py`).

.venv/bin/python -m benchmarks.simulate EXPERIMENT [--policy lru,swap] [--seeds 0-4]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.variants import KNOWN
from mirage.processes.exits import exits
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.tools.simulate.command import parse_seeds, simulate


def main() -> None:
    asked = arguments()
    with exits(), terminate_like_interrupt():
        seeds = parse_seeds(asked.seeds)
        simulate(asked.experiment, seeds, asked.policy, asked.output, asked.processes, KNOWN)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT")
    parser.add_argument("--policy", metavar="A,B", help=f"of {', '.join(KNOWN)}")
    parser.add_argument("--seeds", default="0-4", help="as 0-4, 3 or 0,2,7")
    parser.add_argument("--output", type=Path, default=Path("out/simulate"), metavar="DIR")
    parser.add_argument("--processes", type=int, help="runs at a time; one per core if left out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
