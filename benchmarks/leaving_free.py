"""Processor time of the growth to come that newcomers leave free, in each step of a real scheduler.

    .venv/bin/python benchmarks/leaving_free.py [--steps N] [--sequences 16 64 256]

A real engine of vLLM's decodes, and each step has another allotment of the same memory. The
allotments alternate: nothing is lent; layers are lent in turns that drain; layers are lent in turns
that do not drain. Left free are blocks for the next steps in the first case, all that running
requests ask for in the second, and in the third half of the growth to come as well. The program
prints for each number of sequences the median processor time of the decision (`leave_free`) and of
a whole `schedule`, in microseconds, and the difference of the third case to the second, in
microseconds and as a part of `schedule`. An allotment is read in each step of all three cases.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

from tiny import make_llm, make_model, prompts, scheduler_of

from mirage.geometry import footprint
from mirage.protocol import Allotment, LentInTurns

LENT: tuple[LentInTurns, ...] = get_args(LentInTurns)
SETTLING = 30
"""Steps that do not count: some requests may not decode yet."""
PROMPT = 16


class Timed:
    """A wrapped call, and the processor time of each call so far, in microseconds."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.taken: list[float] = []

    def __call__(self, *given: Any, **named: Any) -> Any:
        begun = time.thread_time_ns()
        try:
            return self._call(*given, **named)
        finally:
            self.taken.append((time.thread_time_ns() - begun) / 1000)


def measure(llm: Any, sequences: int, steps: int) -> dict[LentInTurns, tuple[float, float]]:
    """Median microseconds of `leave_free` and of `schedule`, by the kind of lending in the
    allotment.
    """
    from vllm import SamplingParams

    scheduler = scheduler_of(llm)
    params = SamplingParams(
        max_tokens=SETTLING + steps, temperature=0, ignore_eos=True, detokenize=False
    )
    for number, prompt in enumerate(prompts(sequences, PROMPT, seed=sequences, shared=0)):
        asked = {"prompt_token_ids": prompt[:PROMPT]}
        llm.llm_engine.add_request(f"{sequences}-{number}", asked, params)
    leave_free, schedule = Timed(scheduler.kv.leave_free), Timed(scheduler.schedule)
    scheduler.kv.leave_free, scheduler.schedule = leave_free, schedule
    found: dict[LentInTurns, list[tuple[float, float]]] = defaultdict(list)
    for step in range(steps):
        lent = LENT[step % len(LENT)]
        scheduler.mailbox.post(_allotment(scheduler, lent))
        llm.llm_engine.step()
        if step >= SETTLING:
            found[lent].append((leave_free.taken[-1], schedule.taken[-1]))
    del scheduler.kv.leave_free, scheduler.schedule
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    return {
        lent: (statistics.median(a for a, _ in taken), statistics.median(b for _, b in taken))
        for lent, taken in found.items()
    }


_revisions = count(1)


def _allotment(scheduler: Any, lent: LentInTurns) -> Allotment:
    """Allotment of the memory that the engine has already."""
    extents = scheduler.shape.max_extents
    nbytes = footprint(scheduler.shape, 0, extents)
    return Allotment(next(_revisions), 0, 0, extents, nbytes, lent=lent)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=400, help="for each number of sequences")
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64, 256])
    asked = parser.parse_args()
    most = max(asked.sequences)
    with tempfile.TemporaryDirectory() as folder:
        llm = make_llm(
            make_model("llama", Path(folder)),
            mirage={"kept": "lent", "base_blocks": 40 * most},
            blocks=40 * most,
            max_num_seqs=most,
            max_num_batched_tokens=max(256, most * PROMPT),
            enable_prefix_caching=False,
        )
        titles = " | ".join(f"{lent}: leave_free, schedule" for lent in LENT)
        print(f"| sequences | {titles} | growth to come | of schedule |\n|---:|{'---:|' * 5}")
        for sequences in asked.sequences:
            taken = measure(llm, sequences, asked.steps)
            cells = " | ".join(f"{a:.1f}, {b:.0f}" for a, b in (taken[lent] for lent in LENT))
            more = taken["in turns"][0] - taken["in turns that drain"][0]
            part = more / taken["in turns that drain"][1]
            print(f"| {sequences} | {cells} | {more:.1f} | {part:.2%} |", flush=True)


if __name__ == "__main__":
    main()
