"""Cost of the kernels with which layers can move: step times over those of vLLM as it comes.

python benchmarks/kernels.py [--layers N] [--hidden N] [--rounds N]

Three engines in this process alternate, with nothing remapped: vLLM as it comes, whose layers are
packed for oneDNN (on AMX small ones for sgl); MIRAGE's, whose layers are packed for sgl where the
processor multiplies bfloat16; and MIRAGE's with plain layers, as on other processors. The program
prints the median time of each, in milliseconds, of a step that decodes, and of a prompt of 512
tokens with its one token; and the median ratio to vLLM's neighbouring turn. Times are this
process's processor time, since one thread computes: other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

SEQUENCES = (1, 4, 16, 64)
PROMPT, STEPS, BLOCKS = 512, 8, 256
OTHERS = ("ours", "ours, plain")


@contextmanager
def plain_layers() -> Iterator[None]:
    """Context in which an engine that is built packs no layer."""
    from mirage.engine import packed_linear

    packs = packed_linear.packs
    packed_linear.packs = lambda *weight: False
    try:
        yield
    finally:
        packed_linear.packs = packs


def engines(layers: int, hidden: int, folder: Path) -> dict[str, Any]:
    """The three engines by name. Their output heads are packed as by vLLM."""
    from tiny import make_llm, make_model

    model = make_model("llama", folder, layers=layers, hidden=hidden)
    size: dict[str, Any] = {
        "packed": True,
        "max_num_seqs": max(SEQUENCES),
        "max_num_batched_tokens": PROMPT,
        "max_model_len": 2 * PROMPT,
        "enable_prefix_caching": False,
        "blocks": BLOCKS,
    }
    made = {"vLLM": make_llm(model, **size)}
    made["ours"] = make_llm(model, mirage={"base_blocks": BLOCKS}, **size)
    with plain_layers():
        made["ours, plain"] = make_llm(model, mirage={"base_blocks": BLOCKS}, **size)
    return made


def decoding(llm: Any, sequences: int) -> float:
    """Median processor seconds of a step in which `sequences` requests decode."""
    add(llm, sequences, 8, STEPS + 3)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    while len(scheduler.running) < sequences or scheduler.waiting:
        llm.llm_engine.step()
    taken = []
    for _ in range(STEPS):
        began = time.process_time()
        llm.llm_engine.step()
        taken.append(time.process_time() - began)
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    return statistics.median(taken)


def prompting(llm: Any, tokens: int) -> float:
    """Processor seconds of a request with a prompt of `tokens` tokens and one token of answer."""
    add(llm, 1, tokens, 1)
    began = time.process_time()
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    return time.process_time() - began


def add(llm: Any, sequences: int, tokens: int, most: int) -> None:
    """Add requests with prompts of `tokens`, for `most` tokens each."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=most, temperature=0, ignore_eos=True, detokenize=False)
    for number in range(sequences):
        prompt = [3 + (number + place) % 400 for place in range(tokens)]
        llm.llm_engine.add_request(f"{number}", {"prompt_token_ids": prompt}, params)


def row(name: str, made: dict[str, Any], turn: Any, rounds: int) -> str:
    """Row of the table for one kind of step: the median of each engine, and the median ratios to
    vLLM.
    """
    told: dict[str, list[float]] = {each: [] for each in made}
    for number in range(-1, rounds):  # the first turn loads what is used for the first time
        order = list(made)[:: 1 if number % 2 else -1]
        for each in order:
            taken = turn(made[each])
            if number >= 0:
                told[each].append(taken)
    said = [f"{statistics.median(told[each]) * 1e3:>9.2f}" for each in made]
    for each in OTHERS:
        ratios = [a / b for a, b in zip(told[each], told["vLLM"], strict=True)]
        said.append(f"{statistics.median(ratios):>9.3f}")
    return f"{name:<12}" + " ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description="Step times by the kernels of layers.")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768, help="width of the model")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each engine")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = engines(asked.layers, asked.hidden, Path(folder))
        heads = [*made, *(f"x {each[-5:]}" for each in OTHERS)]
        print(" " * 12 + " ".join(f"{head[-9:]:>9}" for head in heads))
        for count in SEQUENCES:
            turn = lambda llm, count=count: decoding(llm, count)  # noqa: E731
            print(row(f"decode {count}", made, turn, asked.rounds), flush=True)
        print(row(f"prompt {PROMPT}", made, lambda llm: prompting(llm, PROMPT), asked.rounds))


if __name__ == "__main__":
    main()
