"""Child process: a mixture generates while experts, layers and KV memory move at random.

python expert_run.py MODELS OUT MODE FAMILY   MODE: one of `MODES`

`unfetched` leaves out the mapping and loading of experts that a step routes to. `nowait` leaves out
the wait for loads, over a slow link. In `peers` two peers have copies of experts, revoke their
memory and lend it again. In `unrecalled` the engine goes on reading copies that it has given up.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from identity import BASE, UNIVERSE, Changes
from tiny import POISONING, UNAWAITED, VOCABULARY, make_llm, prompts, run, scheduler_of

from mirage.tiers.core import Core
from mirage.tiers.ledger import Due
from mirage.tiers.peer_backing import PeerPlan
from mirage.tiers.server import PoolServer

LAYERS, EXPERTS, HIDDEN, INNER = 4, 8, 128, 64
LINK = 20e6
EXPERT = 3 * HIDDEN * INNER * 4
PEER_EXPERTS = 12
"""Number of experts that one peer has room for; up to 28 are cold."""
OURS: dict[str, Any] = {"base_blocks": BASE, "experts": True}
MODES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "experts": OURS,
    "slow": OURS | {"copy_bytes_per_s": LINK},
    "nowait": OURS | {"copy_bytes_per_s": LINK},
    "unfetched": OURS,
    "peers": OURS,
    "unrecalled": OURS,
}
PEERED = ("peers", "unrecalled")


def make_mixture(family: str, folder: Path) -> Path:
    """Folder of a random float32 mixture whose experts fill whole pages of 4 KiB; made once."""
    import torch
    import transformers as hf

    path = folder / family
    if (path / "model.safetensors").exists():
        return path
    torch.manual_seed(0)
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "max_position_embeddings": 2048,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.1,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
    config = {
        "mixtral": lambda: hf.MixtralConfig(
            **common, num_local_experts=EXPERTS, intermediate_size=INNER
        ),
        "qwen3moe": lambda: hf.Qwen3MoeConfig(
            **common,
            num_experts=EXPERTS,
            moe_intermediate_size=INNER,
            intermediate_size=INNER,
            head_dim=32,
        ),
        "qwen2moe": lambda: hf.Qwen2MoeConfig(
            **common,
            num_experts=EXPERTS,
            moe_intermediate_size=INNER,
            shared_expert_intermediate_size=INNER,
            intermediate_size=INNER,
        ),
    }[family]()
    hf.AutoModelForCausalLM.from_config(config).to(torch.float32).save_pretrained(path)
    return path


class ExpertChanges(Changes):
    """Random changes of memory. On average three of five allotments take experts away; the
    others take layers, and often none.
    """

    def __init__(self, scheduler: Any, seed: int) -> None:
        super().__init__(scheduler, seed)
        self.experts: list[int] = []

    def __call__(self, step: int) -> None:
        super().__call__(step)
        self.experts.append(self.scheduler.worker.memory.experts)
        assert self.scheduler.worker.memory.streamer.layout.count == EXPERTS
        self._cold_ones_fault()

    def given(self) -> tuple[int, int, int]:
        layers_remapped, stream_slots, _ = super().given()
        experts = self.rng.choice((0, 1, 3, 5, EXPERTS - 1)) if self.rng.random() < 0.75 else 0
        return (0, 0, experts) if experts else (layers_remapped, stream_slots, 0)

    def _cold_ones_fault(self) -> None:
        """Check by /proc/self/maps that the pages of cold experts are not accessible."""
        streamer = self.scheduler.worker.memory.streamer
        if not streamer.experts:
            return
        books = streamer.residency
        layer = streamer.layers[self.rng.randrange(LAYERS)]
        framed = {e.number for e in books.framed if e.layer == layer.index}
        for number in books.cold[layer.index] - framed:
            for offset, nbytes in streamer.layout.spans(number):
                assert access(layer.range.address + offset) == "---p", "mapped though given away"
                assert not layer.range.backed_in(offset, nbytes)


class Lending(ExpertChanges):
    """Changes like those of `ExpertChanges`, while peers lend more or less memory."""

    def __init__(self, scheduler: Any, seed: int, pool: PoolServer) -> None:
        super().__init__(scheduler, seed)
        self.pool = pool

    def __call__(self, step: int) -> None:
        super().__call__(step)
        if self.rng.random() < 0.2:
            device, experts = self.rng.choice(("near", "far")), self.rng.choice((0, PEER_EXPERTS))
            self.pool.resize_peer(device, experts * EXPERT).result()
        self._give_time()

    def _give_time(self) -> None:
        """Wait until copies on peers can be made, because steps of so small a model are quicker
        than that.
        """
        replicas = self.scheduler.worker.memory.giver.replicas
        until = time.monotonic() + 0.2
        while replicas._wishes and not replicas._addresses and time.monotonic() < until:
            time.sleep(0.005)


def lending(folder: Path) -> PoolServer:
    """Host pool with two peers, whose memory reads as zeros once it was given back."""
    plan = PeerPlan({"near": PEER_EXPERTS * EXPERT, "far": PEER_EXPERTS * EXPERT})
    server = PoolServer(folder / "tiers.sock", Core(1 << 20, peers=plan), {"t": Due()}, 1e9)
    server.start()
    return server


def _read_what_is_gone(scheduler: Any) -> None:
    """Fault on purpose: copies on peers are given up but read all the same."""
    replicas = scheduler.worker.memory.giver.replicas
    addresses = replicas._addresses

    class Kept(dict[Any, int]):
        def pop(self, key: Any, default: Any = None) -> Any:
            return self.get(key, default)

    replicas._addresses = Kept(addresses)


def access(address: int) -> str:
    """Access rights of this process to an address, as in /proc/self/maps ("---p" is no access)."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, how = line.split()[:2]
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return how
    return "nothing is there"


def _wait_before_memory_moves(streamer: Any) -> None:
    """Part of the fault `nowait`: memory moves wait for copies, so that only steps do not.
    Otherwise a move would fail first.
    """
    unmap = streamer._unmap

    def unmapped(expert: Any) -> Any:
        streamer.copies.synchronize()
        return unmap(expert)

    streamer._unmap = unmapped


def main(models: str, out: str, mode: str, family: str) -> None:
    more = MODES[mode]
    worker = UNAWAITED if mode == "nowait" else POISONING
    ours = {"mirage": more, "worker_cls": worker} if more is not None else {}
    path = make_mixture(family, Path(models))
    pool = None
    if mode in PEERED:
        pool = lending(Path(models))
        ours["mirage"] = {**OURS, "tier_socket": str(Path(models) / "tiers.sock")}
    llm = make_llm(path, blocks=UNIVERSE, dtype="float32", max_num_batched_tokens=1024, **ours)
    scheduler = scheduler_of(llm)
    changes = None if more is None else ExpertChanges(scheduler, len(family))
    if pool is not None:
        changes = Lending(scheduler, len(family), pool)
    if mode == "unrecalled":
        _read_what_is_gone(scheduler)
    if mode == "unfetched":
        scheduler.worker.memory.streamer._fetch = lambda index, numbers: None
    if mode == "nowait":
        _wait_before_memory_moves(scheduler.worker.memory.streamer)
    seeds = (1,) if more and "copy_bytes_per_s" in more else (1, 2, 1)
    rounds = [run(llm, prompts(6, 40, seed), 40, changes or (lambda step: None)) for seed in seeds]
    facts: dict[str, Any] = {"rounds": rounds}
    if changes is not None:
        report = scheduler.report()
        facts |= {
            "experts": sorted(set(changes.experts)),
            "remapped_counts": sorted(changes.remapped_counts),
            "expert_bytes": scheduler.shape.expert_bytes,
            "movable": scheduler.shape.movable_experts,
            "hits": report.expert_hits,
            "loads": report.expert_loads,
            "swaps": scheduler.worker.memory.streamer.residency.swaps,
            "load_s": report.expert_load_s,
            "routed": report.expert_routed,
            "from_peers": report.expert_peer_loads,
        }
    if pool is not None:
        state = pool.state().peers
        assert state is not None
        facts["revocations"] = state.revocations
    Path(out).write_text(json.dumps(facts))
    llm.llm_engine.engine_core.shutdown()
    if pool is not None:
        pool.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
