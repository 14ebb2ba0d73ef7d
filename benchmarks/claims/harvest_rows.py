"""Rows about Harvest (H1 to H6) and two articles on offloading KV blocks (A1 to A4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.claims.judging import NO_BAND, Closed, Results, Row, Verdict
from benchmarks.harvest import figures as harvest
from mirage import profiles

BLOCK = 1.31e6
"""Bytes of a KV block in the article on three tiers (A3, A4)."""
SEQUENCE = 256
"""Blocks of a sequence in that article: 4,096 tokens in blocks of 16."""


@dataclass(frozen=True)
class Range(Row):
    """Row that compares a document's range with ours: "reproduced" if they touch, "direction" if
    both are gains.
    """

    paper_range: tuple[float, float] = (0.0, 0.0)
    measure: Callable[[], Sequence[float]] = tuple
    unit: str = "x"
    nothing: float = 1.0
    """Value that means no gain."""
    inconsistent: bool = False
    """True if the document's own figures contradict the claim."""

    def evaluate(self, results: Results) -> dict[str, Any]:
        found = self.measure()
        low, high = min(found), max(found)
        digits = 2 if self.unit == "x" else 0
        text = f"{low:.{digits}f} to {high:.{digits}f} {self.unit}"
        verdict = "inconsistent" if self.inconsistent else self._verdict(low, high)
        return {"measured": text, **NO_BAND, "verdict": verdict}

    def _verdict(self, low: float, high: float) -> Verdict:
        if low <= self.paper_range[1] and high >= self.paper_range[0]:
            return "reproduced"
        return "direction" if low > self.nothing else "not reproduced"


def _over_host(
    id: str,
    claim: str,
    paper: str,
    why: str,
    paper_range: tuple[float, float],
    share: float,
    inconsistent: bool = False,
) -> Range:
    """Row on the gain in tokens per second if the part `share` of the experts is in a peer's memory
    instead of host memory.
    """
    return Range(
        id,
        claim,
        paper,
        why,
        paper_range=paper_range,
        measure=lambda: harvest.expert_gains(share),
        unit="% more",
        nothing=0.0,
        inconsistent=inconsistent,
    )


def _mistral_entry() -> float:
    return harvest.entry_bytes(3, 100, 300 / 52.8)


def _kimi_entry() -> float:
    return harvest.entry_bytes(5.42, 100, 300 / 52.8)


def _hit() -> float:
    return harvest.hit_over_miss(profiles.model("llama-3-8b"), 4096)


def _llama_70b() -> float:
    """Size of the parameters of Llama-2-70B in 16 bits, in GB (10^9 bytes)."""
    return profiles.model("llama-2-70b").parameter_bytes / 1e9


def _in_step() -> float:
    return harvest.blocks_in_step(15e-3, BLOCK, 24e9)


def _fits(below_gb: float) -> int:
    return round(harvest.sequences(34732, below_gb * 1e9, BLOCK, SEQUENCE) - 0.5)


def _below(fit: int) -> float:
    """TB (10^12 bytes) of KV blocks that do not fit on the device when `fit` sequences are kept."""
    return (fit * SEQUENCE - 34732) * BLOCK / 1e12


def _slowdown() -> float:
    """Per cent by which the blocks of 20 % of 64 sequences lengthen a step of 15 ms that hides all
    it can.
    """
    missing = 0.2 * 64 * SEQUENCE
    return 100 * max(0.0, missing / _in_step() - 1)


CLAIMS: tuple[Row, ...] = (
    Range(
        "H1",
        "Harvest, copies from a peer against host memory",
        "7.5 to 9.5 x",
        "From 1 MiB to an expert of Mixtral (352 MB), peer 300 GB/s, host memory 51 GB/s one way "
        "and 43.7 while both are used. 9.5 needs a host link of 32 GB/s (H6).",
        paper_range=(7.5, 9.5),
        measure=harvest.copies,
    ),
    Range(
        "H2",
        "Harvest, reload of Kimi-K2's KV, 100 to 8,000 entries",
        "5.42 to 5.68 x",
        "An entry is a token's latent keys and values, 70,272 bytes. The document's fit links of "
        "300 and 52.8 GB/s; ours carries 51 one way, begins after 10 us instead of 1, and 43.7 "
        "while both ways are used.",
        paper_range=(5.42, 5.68),
        measure=harvest.reloads,
    ),
    Closed(
        "H3",
        "Harvest, reload of Mistral-Large-3's KV, 100 to 8,000 entries",
        "3 to 5.65 x",
        "A ratio of 3 at 100 entries implies an entry so many times smaller than Kimi's ratio of "
        "5.42 implies, on the links and latencies that fit H2; no two models of that size differ "
        "so. With another latency for one of the models both ratios fit, but then they were not "
        "measured on one machine.",
        measure=lambda: f"an entry {_kimi_entry() / _mistral_entry():.0f} times smaller than H2's",
        bears=lambda: _kimi_entry() / _mistral_entry() < 4,
        otherwise="inconsistent",
    ),
    _over_host(
        "H4",
        "Harvest, tokens a second with half the experts on a peer instead of host memory",
        "+48 to +110 %",
        "Mixtral 8x7B and Qwen3-30B-A3B, 1 to 4,536 tokens a step (14 micro-batches of 324), "
        "routing by a Zipf law of exponent 0.7. Ours is bound by the link almost everywhere, "
        "where the gain is that of the links. The document's steps have more beside the loads.",
        (48, 110),
        0.5,
    ),
    _over_host(
        "H5",
        "Harvest, all experts on a peer instead of host memory",
        "Qwen2-MoE 975 against 810 tokens/s (+20 %), Mixtral 740 against 600 (+23 %)",
        "It contradicts H4: what a quicker link gains cannot shrink to less than half of it when "
        "twice as many bytes cross the link. In ours it never shrinks, for either model and any "
        "batch. Qwen3's shape stands for Qwen2-MoE's.",
        (20, 23),
        1.0,
        inconsistent=harvest.gain_grows(),
    ),
    Closed(
        "H6",
        "Harvest, one machine's link to host memory",
        "9.5 x and 5.65 x slower than the peer's 300 GB/s",
        "H1's upper end and H3's are ratios to the same peer on the same machine.",
        measure=lambda: f"{300 / 9.5:.0f} GB/s and {300 / 5.65:.0f} GB/s",
        bears=lambda: round(300 / 9.5) == round(300 / 5.65),
        otherwise="inconsistent",
    ),
    Closed(
        "A1",
        "Two tiers: 320 blocks instead of 64; a hit in host memory 180 ms where a miss takes 285",
        "5 x the blocks, 0.63 of the time",
        "256 blocks in host memory beside 64. It names no model for its times; ours is a prefix "
        "of 4,096 tokens of Llama-3-8B on an H100, brought over 51 GB/s or computed. Its swap-out "
        "skips blocks that the GPU's hash holds, and loses them when those are evicted.",
        measure=lambda: f"{(64 + 256) / 64:g} x, {_hit():.2f} of the time",
        bears=lambda: (64 + 256) / 64 == 5 and abs(_hit() - 180 / 285) < 0.1,
        otherwise="direction",
    ),
    Closed(
        "A2",
        "Two tiers: 70B parameters in FP16",
        "~35 GB",
        "Two bytes each. 35 GB are half a byte each.",
        measure=lambda: f"{_llama_70b():.0f} GB",
        bears=lambda: round(_llama_70b()) == 35,
        otherwise="inconsistent",
    ),
    Closed(
        "A3",
        "Three tiers: sequences that fit",
        "135 on the device, 899 with DRAM, 3,950 and 13,867 with SSD",
        "34,732 blocks of 1.31 MB on the device, 256 a sequence, 256 GB of DRAM. The others need "
        "so many TB below the device, DRAM included, which the article does not name as one disk.",
        measure=lambda: f"{_fits(0)}, {_fits(256)}; {_below(3950):.2f} and {_below(13867):.2f} TB",
        bears=lambda: (_fits(0), _fits(256)) == (135, 899),
    ),
    Closed(
        "A4",
        "Three tiers: what a step of 15 ms hides at 24 GB/s; 20 % of blocks from host memory",
        "274 blocks; +10.8 % time",
        "64 sequences have 16,384 blocks, and 20 % of them come in 179 ms. +10.8 % are what is "
        "left of 304 blocks, 20 % of six sequences. So its table of slowdowns and its budget are "
        "of different batches. The flags that it names do not exist in vLLM.",
        measure=lambda: f"{int(_in_step())} blocks; +{_slowdown():.0f} %",
        bears=lambda: int(_in_step()) == 274 and _slowdown() < 20,
        otherwise="inconsistent",
    ),
)
