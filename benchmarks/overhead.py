"""Overhead of an elastic engine while nothing is remapped: its step time over plain vLLM's.

python benchmarks/overhead.py [--rounds N]

Two engines live in this process: plain vLLM, and MIRAGE's with no layer remapped and a KV cache
that does not grow. Both have the same linear kernels. They alternate, ten decode steps each, so
that a drift of the machine affects both. The program prints the median step of each, in
milliseconds, and the median ratio of neighbouring turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

from tiny import make_llm, make_model, prompts

SEQUENCES = (16, 64)
TURN = 10
BLOCKS = 1024


def fill(llm: Any, sequences: int, tokens: int) -> None:
    """Start `sequences` requests, run until all of them decode, and then `TURN` steps more."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
    for i, prompt in enumerate(prompts(sequences, 16, seed=sequences, shared=0)):
        llm.llm_engine.add_request(f"{sequences}-{i}", {"prompt_token_ids": prompt[:24]}, params)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    while len(scheduler.running) < sequences or scheduler.waiting:
        llm.llm_engine.step()
    for _ in range(TURN):
        llm.llm_engine.step()


def turn(llm: Any) -> float:
    """Run `TURN` steps; returns their median seconds."""
    times = []
    for _ in range(TURN):
        start = time.perf_counter()
        llm.llm_engine.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def drain(llm: Any) -> None:
    """Run until no request is left."""
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()


def compare(plain: Any, ours: Any, sequences: int, rounds: int) -> None:
    """Measure both engines with so many sequences, and print a row of the table."""
    for llm in (plain, ours):
        fill(llm, sequences, tokens=(rounds + 2) * TURN)
    pairs = []
    for i in range(rounds):
        first, second = (plain, ours) if i % 2 == 0 else (ours, plain)
        a, b = turn(first), turn(second)
        pairs.append((a, b) if i % 2 == 0 else (b, a))
    for llm in (plain, ours):
        drain(llm)
    base = statistics.median(a for a, _ in pairs)
    mine = statistics.median(b for _, b in pairs)
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"{sequences:>9} {base * 1e3:>10.2f} {mine * 1e3:>10.2f} {ratio:>8.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Step time of an idle elastic engine.")
    parser.add_argument("--rounds", type=int, default=25, help="turns of each engine")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        model = make_model("llama", Path(folder), layers=12, hidden=512)
        size = {"max_num_seqs": 64, "blocks": BLOCKS, "max_model_len": 512}
        plain = make_llm(model, **size)
        ours = make_llm(model, mirage={"base_blocks": BLOCKS}, **size)
        print(f"{'sequences':>9} {'plain ms':>10} {'ours ms':>10} {'ratio':>8}")
        for sequences in SEQUENCES:
            compare(plain, ours, sequences, rounds)


if __name__ == "__main__":
    main()
