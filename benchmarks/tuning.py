"""Tuned configuration of `mirage tune` on Azure's files, compared with the default and fixed ones.

    .venv/bin/python benchmarks/tuning.py [--azure DIR] [--machines gh200,h100] [--trials 32]
        [--window 200] [--slow]

Three models (OPT-13b, Llama-2-13b, Llama-3-8b) share a simulated GH200, and an H100, spatially,
with each of the two files of 2023 at a load just above the one that the default serves. The program
prints the objective, goodput under derived limits, on held-back windows: over all seeds, and the
range over them. With `--slow` it does the same on each machine with half the link, at the same load
and limits, and prints how the answer changes: layers that hide, layers that are lent, and the gain
of the best percentage over none.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import yaml

import configs
from mirage.tools.tune.answer import Recommendation, TuneWish, answer, mean_lent
from mirage.tools.tune.progress import shown
from mirage.tools.tune.question import Question, TuneOptions, ask
from mirage.tools.tune.summary import said
from mirage.units import GIB

AZURE = Path(__file__).parents[2] / "shared" / "traces"
FILES = ("conv", "code")
MEMORY = {"gh200": "82GiB", "h100": "72GiB"}
LLAMA = {"model_type": "llama", "tie_word_embeddings": False}
MODELS: dict[str, dict[str, Any]] = {
    "opt-13b": {
        "model_type": "opt",
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "hidden_size": 5120,
        "ffn_dim": 20480,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
    },
    "llama-2-13b": LLAMA
    | {
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "llama-3-8b": LLAMA
    | {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
}
SHARES = {"opt-13b": 37, "llama-2-13b": 37, "llama-3-8b": 26}


def main() -> None:
    asked = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for machine in asked.machines.split(","):
            for file in FILES:
                trace = asked.azure / f"AzureLLMInferenceTrace_{file}.csv"
                if not trace.exists():
                    print(f"skipped: {trace} is not there")
                    continue
                usual = tuned(folder, machine, machine, trace, asked, TuneWish(trials=asked.trials))
                show(f"{machine}, {file}", *usual)
                if asked.slow:
                    slow = half_link(folder, machine)
                    goal, load = usual[1].goal, usual[1].slower
                    same = TuneWish(trials=asked.trials, slo=goal.slo, slower=load)
                    slower = tuned(folder, machine, str(slow), trace, asked, same)
                    show(f"{machine} with half the link, {file}", *slower)
                    moved(usual, slower)


def tuned(
    folder: Path, machine: str, profile: str, trace: Path, asked: argparse.Namespace, wish: TuneWish
) -> tuple[Question, Recommendation]:
    """Tune for one machine and one trace; returns the question and its answer."""
    config = write(folder, MEMORY[machine])
    output = folder / f"{machine} {Path(profile).stem} {trace.stem}"
    output.mkdir()
    options = TuneOptions(
        str(trace), profile, asked.seed, find_load=True, largest_window=asked.window
    )
    question = ask(config, options)
    with shown() as progress:
        return question, answer(question, wish, output, progress)


def show(title: str, question: Question, found: Recommendation) -> None:
    """Print a row of figures for each set of settings, then the default and fixed ones that the
    tuned ones do not beat, the tuned values, and the sentences of `mirage tune`."""
    goal, searched = found.goal, question.cut.searched
    count, size = len(searched), len(searched[0].requests)
    print(f"\n{title}: {count} windows of {size}, gaps times {found.slower:g}, limits {goal.slo}")
    print("| | searched | held back | least to most | against tuned |\n|---|---:|---:|---:|---:|")
    best = found.judged["tuned"].whole[goal.objective]
    for name, each in found.judged.items():
        value = each.whole[goal.objective]
        seeds = [seed[goal.objective] for seed in each.seeds]
        ratio = f"{best / value:.3f}" if value else "-"
        print(
            f"| {name} | {found.searched[name]:.4f} | {value:.4f} | {min(seeds):.4f} to "
            f"{max(seeds):.4f} | {ratio} |"
        )
    worse = [
        name
        for name, each in found.judged.items()
        if (name == "default" or name.startswith("fixed "))
        and not goal.better(best, each.whole[goal.objective])
    ]
    print(f"tuned is not better than: {', '.join(worse) or 'none of them is as good'}")
    print(f"choice: {dict(found.choice)}")
    for sentence in said(question, found):
        print(sentence, flush=True)


def moved(usual: tuple[Question, Recommendation], slower: tuple[Question, Recommendation]) -> None:
    """Print the figures that a slower link must not raise, with the usual link and with one of half
    its speed.
    """
    pairs = [figures(*each) for each in (usual, slower)]
    for name in pairs[0]:
        before, after = pairs[0][name], pairs[1][name]
        way = "as it must" if after <= before * (1 + 1e-9) else "THE WRONG WAY"
        print(f"{name}: {before:.3f} to {after:.3f} with half the link, {way}", flush=True)


def figures(question: Question, found: Recommendation) -> dict[str, float]:
    """Figures of one answer: layers that hide behind 32 requests, GiB lent by active and by idle
    models, and the gain of the best fixed percentage over none.
    """
    goal = found.goal
    worth = {name: each.whole[goal.objective] for name, each in found.judged.items()}
    gains = [goal.gain(v, worth["fixed 0 %"]) for n, v in worth.items() if n.startswith("fixed ")]
    idle, active = mean_lent(found.judged, "default")
    return {
        "layers that hide behind 32 requests": sum(
            one.hidden[2].layers_remapped for one in question.explained
        ),
        "GiB lent by active models, default": active / GIB,
        "GiB lent by idle models, default": idle / GIB,
        "gain of the best percentage over 0 %": max(gains),
    }


def half_link(folder: Path, machine: str) -> Path:
    """Write the machine's profile with half of its link's speed; returns the path."""
    raw = yaml.safe_load((configs.HERE / "hardware" / f"{machine}.yaml").read_text())
    for key in ("link_gb_s", "link_mixed_gb_s"):
        raw[key] = {"value": raw[key]["value"] / 2, "source": "half of the profile's"}
    path = folder / f"{machine}-half.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def write(folder: Path, memory: str) -> Path:
    """Write the configuration and, for each of its models, a folder with `config.json` alone.
    Returns the configuration's path; `memory` is its `device.memory`, such as "72GiB"."""
    for name, content in MODELS.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(content))
    tenants = [
        {"name": name, "model": name, "share": share, "max_model_len": 2048}
        | {"max_num_batched_tokens": 2048}
        for name, share in SHARES.items()
    ]
    path = folder / "tuning.yaml"
    device = {"kind": "cuda", "memory": memory, "page": "2MiB"}
    path.write_text(yaml.safe_dump({"device": device, "block_tokens": 16, "tenants": tenants}))
    return path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--azure", type=Path, default=AZURE, metavar="DIR", help="Azure's files")
    parser.add_argument("--machines", default="gh200,h100", metavar="A,B")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--window", type=int, default=200, help="requests, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", action="store_true", help="also with half the link")
    return parser.parse_args()


if __name__ == "__main__":
    main()
