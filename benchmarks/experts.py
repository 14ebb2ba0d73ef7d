"""Gain of giving cold experts over giving layers: the same requests, three policies, one model.

python benchmarks/experts.py [--rounds N] [--requests N] [--skew S] [--link GB_S] [--peer GB_S]

The model is a mixture of experts with random weights. Its routers prefer some experts over others
by `skew` (expert e is preferred by -skew * log(e + 1); 0: all alike). The device holds the model
and few KV blocks; the requests, all sent at the same time, want many more. Three engines in this
process alternate, each under the real controller: `pooled`, `mirage` (layers) and `mirage` with
`remap.experts`. With `--peer` there is a fourth, whose cold experts have copies on a peer behind a
link of that speed. The program prints medians over rounds, and ratios of neighbouring turns to
`pooled`.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

from tiny import VOCABULARY, make_llm, scheduler_of

from mirage.config import Policy
from mirage.control.controller import Controller
from mirage.control.rules import Rules
from mirage.engine.tiers.expert_replicas import keep_on_peers
from mirage.tiers.core import Core
from mirage.tiers.ledger import Due
from mirage.tiers.peer_backing import PeerPlan
from mirage.tiers.server import PoolServer
from scheduler.tenants import Tenant

LAYERS, EXPERTS, HIDDEN, INNER = 8, 16, 256, 256
UNIVERSE, BASE = 192, 36
"""KV blocks: at most, and those that the device holds beside the model."""
PROMPT, ANSWER = 64, 64
"""Tokens of each request's prompt, and of its answer."""
STRONG = 8.0
"""Strength of the one channel by which routers see a preference, beside noise of about 1."""
VARIANTS = {
    "pooled": (Policy.POOLED, False),
    "mirage": (Policy.MIRAGE, False),
    "mirage with experts": (Policy.MIRAGE, True),
}
ON_PEERS = "with experts on peers"


def make_skewed(folder: Path, skew: float) -> Path:
    """A random float32 Mixtral whose routers prefer low numbers."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    config = hf.MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=INNER,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        max_position_embeddings=1024,
        initializer_range=0.05,
        tie_word_embeddings=False,
    )
    model = hf.AutoModelForCausalLM.from_config(config).to(torch.float32)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = STRONG
        for layer in model.model.layers:
            gate = next(p for n, p in layer.named_parameters() if n.endswith("gate.weight"))
            # The norm before a router brings the strong channel to about 16, and all others
            # together to 1.6: made stronger, they are noise of about 1.
            gate *= 12
            gate[:, 0] = torch.tensor([-skew * log(e + 1) / 16 for e in range(EXPERTS)])
    model.save_pretrained(folder)
    return folder


@dataclass
class Turn:
    """Figures of one engine for one round of requests. `experts` and `layers` (those given away)
    and `blocks` (of KV, granted) are the most at any time.
    """

    seconds: float
    ttfts: list[float]
    preemptions: int
    loads: int
    near: int
    """Number of these loads that came from a peer."""
    hits: int
    experts: int
    layers: int
    blocks: int


class Served:
    """An engine in this process with the real controller, which is asked before each step."""

    def __init__(
        self,
        model: Path,
        policy: Policy,
        experts: bool,
        link: float | None,
        socket: Path | None = None,
    ) -> None:
        rules = Rules(experts=experts)
        settings = {
            "policy": policy.value,
            "base_blocks": BASE,
            "experts": experts,
            "kept": rules.kept(policy),
            "copy_bytes_per_s": link,
        }
        more = {"dtype": "float32", "max_num_seqs": 64, "enable_prefix_caching": False}
        self.llm = make_llm(model, blocks=UNIVERSE, mirage=settings, **more)
        self.scheduler = scheduler_of(self.llm)
        if socket is not None:
            # Experts alone: vLLM knows one connector for KV blocks in a process, of one engine.
            memory = self.scheduler.worker.memory
            joined = memory.settings.model_copy(update={"tier_socket": str(socket)})
            keep_on_peers(memory.giver, joined, b"weights")
        report = self.scheduler.report()
        tenant = Tenant("t", 100, 0, max_percent=None, floor_layers=1)
        self.controller = Controller([tenant], report.held_bytes, policy, rules)
        self.controller.joined("t", self.scheduler.shape, report.held_bytes, time.monotonic())

    def control(self) -> Any:
        """Send one report to the controller and obey its answer; returns the report."""
        report, now = self.scheduler.report(), time.monotonic()
        self.controller.reported("t", report, now)
        for command in self.controller.decide(now):
            self.scheduler.mailbox.post(command.message)
        return report

    def turn(self, batch: list[list[int]]) -> Turn:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=ANSWER, temperature=0, ignore_eos=True, detokenize=False)
        engine, before = self.llm.llm_engine, self.scheduler.report()
        start, ttfts = time.perf_counter(), {}
        most = Turn(0, [], 0, 0, 0, 0, 0, 0, 0)
        for i, prompt in enumerate(batch):
            engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            report = self.control()
            most.experts = max(most.experts, report.experts)
            most.layers = max(most.layers, report.layers_remapped)
            most.blocks = max(most.blocks, report.kv_blocks)
            for out in engine.step():
                ttfts.setdefault(out.request_id, time.perf_counter() - start)
        most.seconds, most.ttfts = time.perf_counter() - start, sorted(ttfts.values())
        after = self.control()
        most.preemptions = after.preemptions - before.preemptions
        most.loads = after.expert_loads - before.expert_loads
        most.near = after.expert_peer_loads - before.expert_peer_loads
        most.hits = after.expert_hits - before.expert_hits
        return most


def row(name: str, turns: list[Turn], beside: list[Turn]) -> str:
    """Line of the table: medians of figures, and medians of ratios to the neighbouring runs
    `beside`.
    """

    def middle(value: Any) -> float:
        return statistics.median(value(turn) for turn in turns)

    def ratio(value: Any) -> float:
        pairs = zip(turns, beside, strict=True)
        return statistics.median(value(mine) / max(value(other), 1e-9) for mine, other in pairs)

    def p50(turn: Turn) -> float:
        return statistics.median(turn.ttfts)

    def longest(turn: Turn) -> float:
        return turn.ttfts[-1]

    return (
        f"{name:22} {middle(lambda t: t.preemptions):8.0f}"
        f" {middle(lambda t: t.seconds):8.2f} ({1 / ratio(lambda t: t.seconds):.2f}x)"
        f" {middle(p50) * 1e3:8.0f} ({ratio(p50):.2f}x)"
        f" {middle(longest) * 1e3:8.0f} ({ratio(longest):.2f}x)"
        f" {middle(lambda t: t.blocks):7.0f} {middle(lambda t: t.layers):6.0f}"
        f" {middle(lambda t: t.experts):7.0f} {middle(lambda t: t.loads):7.0f}"
        f" {middle(lambda t: t.near):6.0f} {middle(lambda t: t.hits):6.0f}"
    )


def observed(name: str, report: Any) -> None:
    """Print what an engine measured about its experts."""
    routed = [f"{r:.1f}" for r in report.expert_routed]
    print(f"\n{name}: experts a step routes to, of each layer's g coldest: {' '.join(routed)}")
    print(
        f"a load {report.expert_load_s * 1e3:.2f} ms, T_c {report.layer_compute_s * 1e3:.2f} ms, "
        f"T_T {report.layer_load_s * 1e3:.2f} ms"
    )


def lending(folder: Path, bytes_per_s: float) -> Path:
    """Start a pool whose only peer has room for all experts; return the path of its socket."""
    path = folder / "tiers.sock"
    room = LAYERS * EXPERTS * 3 * HIDDEN * INNER * 4
    plan = PeerPlan({"peer": 2 * room})
    PoolServer(path, Core(64 << 20, peers=plan), {"t": Due()}, bytes_per_s).start()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--skew", type=float, default=2.0)
    parser.add_argument("--link", type=float, default=None, help="GB (1e9 bytes) a second")
    parser.add_argument("--peer", type=float, default=None, help="of a peer's link, GB a second")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    link = options.link and options.link * 1e9
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        model = make_skewed(Path(folder), options.skew)
        engines = {n: Served(model, *how, link) for n, how in VARIANTS.items()}
        if options.peer:
            socket = lending(Path(folder), options.peer * 1e9)
            engines[ON_PEERS] = Served(model, Policy.MIRAGE, True, link, socket)
        turns: dict[str, list[Turn]] = {name: [] for name in engines}
        for round_ in range(options.rounds + 1):
            batch = [
                [rng.randrange(3, VOCABULARY) for _ in range(PROMPT)]
                for _ in range(options.requests)
            ]
            for name, engine in engines.items():
                done = engine.turn(batch)
                if round_:  # the first one is for routing to be observed, and times
                    turns[name].append(done)
    for name in [name for name in engines if "experts" in name]:
        observed(name, engines[name].scheduler.report())
    print(
        "\n                       preempted  seconds (rate)   TTFT P50 ms         longest"
        "          blocks layers experts   loads   near   hits"
    )
    for name, done in turns.items():
        print(row(name, done, turns["pooled"]))


if __name__ == "__main__":
    main()
