"""Figures of Harvest and of two articles, computed from link speeds and the roofline."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.harvest.mixture import Mixture
from mirage import profiles
from mirage.profiles import Model
from mirage.simulate.hierarchy import Speed
from mirage.simulate.roofline import PS, Roofline, Work
from mirage.units import GIB

H100 = profiles.hardware("h100")
KIMI_TOKEN = 61 * (512 + 64) * 2
"""Bytes of a token's latent keys and values: layers, kv_lora_rank + qk_rope_head_dim, 16 bits
(Hugging Face moonshotai/Kimi-K2-Instruct, config.json)."""
ENTRIES = (100, 1000, 8000)
BATCHES = (1, 8, 32, 256, 4536)
"""Tokens a step; the last is Harvest's 14 micro-batches of 324."""
MIXTURES = ("mixtral-8x7b", "qwen3-30b-a3b")


def peer() -> Speed:
    """Speed of the link to the memory of another H100."""
    return _speed("peer")


def host(one_way: bool = True) -> Speed:
    """Speed of the link to host memory over PCIe, which is higher if nothing goes the other way."""
    mixed = _speed("host")
    rate = H100.link_gb_s.value * 1e9 if one_way else mixed.bytes_per_s
    return Speed(mixed.capacity, rate, mixed.latency_ps)


def reload_ratio(nbytes: int, one_way: bool = True) -> float:
    """Ratio of one copy's time from host memory to its time from a peer."""
    return host(one_way).lane().copy(0, nbytes) / peer().lane().copy(0, nbytes)


def copies() -> list[float]:
    """Ratios of a copy's time from host memory to its time from a peer, for 1 MiB, 16 MiB and an
    expert of Mixtral. Each size has two: with the host link used in one direction alone, and in
    both.
    """
    mixtral = profiles.model("mixtral-8x7b")
    sizes = (2**20, 2**24, Mixture(mixtral, H100, 1).expert_bytes)
    return [reload_ratio(size, one_way) for size in sizes for one_way in (True, False)]


def reloads() -> list[float]:
    """Ratios of a copy's time from host memory to its time from a peer, for 100, 1,000 and 8,000
    tokens of Kimi-K2's KV cache. Each size has two: with the host link used in one direction
    alone, and in both.
    """
    return [
        reload_ratio(entries * KIMI_TOKEN, one_way)
        for entries in ENTRIES
        for one_way in (True, False)
    ]


def expert_gains(share: float) -> list[float]:
    """Gain in tokens per second, in per cent, of experts on a peer over experts in host memory, for
    each mixture and batch. The part `share` of each layer's experts is away.
    """
    return [
        100 * (mixture.step_s(away, host()) / mixture.step_s(away, peer()) - 1)
        for mixture in _mixtures()
        for away in [round(share * mixture.model.experts)]
    ]


def gain_grows() -> bool:
    """True if for no mixture and batch the gain becomes clearly less with more experts away."""
    shares = (0.125, 0.25, 0.5, 0.75, 1.0)
    columns = zip(*(expert_gains(share) for share in shares), strict=True)
    return all(
        later >= earlier - 0.01 * (100 + earlier)
        for gains in columns
        for earlier, later in pairwise(gains)
    )


def entry_bytes(ratio: float, entries: int, most: float, latency_us: float = 1.0) -> float:
    """Bytes of one entry for which copies of `entries` entries over two links differ by the factor
    `ratio`. One link has 300 GB/s and the other a `most`-th of that; both have the same latency.
    """
    moving = latency_us * 1e-6 * (ratio - 1) / (most - ratio)
    return moving * 300e9 / entries


def hit_over_miss(model: Model, tokens: int) -> float:
    """Time to load a prefix from host memory over the time to compute it."""
    bring = host().lane().copy(0, tokens * model.kv_token_bytes)
    work = Work(0, 0, tokens, tokens * (tokens + 1))
    return bring / Roofline(model, H100).compute_ps(work)


def blocks_in_step(step_s: float, block_bytes: float, rate: float) -> float:
    """Number of blocks that a link brings while a step computes."""
    return step_s * rate / block_bytes


def sequences(device_blocks: int, below_bytes: float, block_bytes: float, each: int) -> float:
    """Number of sequences of `each` blocks that fit into the device and the memory below it."""
    return (device_blocks + below_bytes / block_bytes) / each


def _speed(medium: str) -> Speed:
    tiers = H100.tiers
    assert tiers is not None
    found = getattr(tiers, medium)
    latency = round(found.latency_us.value * 1e-6 * PS)
    return Speed(int(found.capacity_gib.value * GIB), found.bandwidth_gb_s.value * 1e9, latency)


def _mixtures() -> list[Mixture]:
    models = [profiles.model(name) for name in MIXTURES]
    return [Mixture(model, H100, batch) for model in models for batch in BATCHES]
