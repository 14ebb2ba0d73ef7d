"""Lines about the room in the tiers below the device for each tenant's KV cache. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mirage.config import Config, Peer
from mirage.serve.fit.fit import Fit
from mirage.tiers.ledger import Due, PriorityClass, TierLedger
from mirage.tiers.space import stride_of
from mirage.tiers.ssd.record import cell_bytes
from mirage.units import size


def hierarchy(config: Config, fits: Mapping[str, Fit]) -> list[str]:
    """Lines for users: one for each tier, one for each tenant's part of the host pool, and one for
    each tenant's experts that peers may hold.

    Empty without `tiers.host`; a single line if the policy does not use it.
    """
    if config.tiers.host is None:
        return []
    if config.host_tier is None:
        return [f"host pool: not used, policy {config.policy.value} keeps engines as they are"]
    host = config.host_tier
    book = TierLedger(host.bytes)
    for name in fits:
        tenant = config.tenant(name)
        book.set(name, due=Due(tenant.priority, tenant.percent), standing=PriorityClass.ACTIVE)
    lines = [f"host pool {size(host.bytes)} for KV blocks that leave the device, {host.policy}"]
    lines += [
        _tenant(name, fit, config.tenant(name).max_model_len, host.bytes, book.share(name))
        for name, fit in fits.items()
    ]
    if (peer := config.tiers.peer) is not None:
        lend = ", ".join(_peer(name, one) for name, one in peer.devices.items())
        wanted = "copied to host memory" if peer.backed else "dropped"
        fitting = _fitting(
            fits, lambda block: sum(p.bytes // stride_of(block) for p in peer.devices.values())
        )
        lines.append(f"peers above it: {lend}; what they want back is {wanted}; {fitting}")
        lines += _experts(config, fits, book) if peer.experts else []
    if (ssd := config.tiers.ssd) is not None:
        kept = "kept" if ssd.keep else "gone with the server"
        fitting = _fitting(fits, lambda block: ssd.bytes // cell_bytes(block))
        lines.append(f"ssd {size(ssd.bytes)} in {ssd.directory} below it, {kept}; {fitting}")
    return lines


def _experts(config: Config, fits: Mapping[str, Fit], book: TierLedger) -> list[str]:
    """A line for each model with experts that may be given away: the number of them that find room
    in its share of peers' memory.
    """
    assert config.tiers.peer is not None
    book.resize(config.tiers.peer.bytes)
    lines = []
    for name, fit in fits.items():
        if (facts := fit.experts) is not None:
            room = book.share(name) // stride_of(sum(facts.slices))
            of_all = facts.layers * facts.count
            lines.append(
                f"{name}: copies of up to {min(room, of_all)} of {of_all} experts on peers"
            )
    return lines


def _peer(name: str, peer: Peer) -> str:
    where = "" if peer.device is None else f" of GPU {peer.device}"
    return f"{name} {size(peer.bytes)}{where}"


def _fitting(fits: Mapping[str, Fit], room: Callable[[int], int]) -> str:
    """Words such as ``"up to 300 KV blocks of a, 40 of b"``.

    `room` returns the number of blocks of a given size in bytes that fit.
    """
    blocks = {name: room(fit.block_bytes) for name, fit in fits.items() if fit.block_bytes}
    if empty := [name for name, number in blocks.items() if not number]:
        return f"too small for a KV block of {', '.join(empty)}: raise its bytes"
    each = (f"{number} of {name}" for name, number in blocks.items())
    return "up to " + ", ".join(each).replace(" of", " KV blocks of", 1) if blocks else "unused"


def _tenant(name: str, fit: Fit, longest: int, nbytes: int, share: int) -> str:
    """Line such as ``"a: up to 300 KV blocks (9600 tokens), 100 of them its share"``.

    `nbytes` are the bytes of the host pool, `share` those of it that are the tenant's share, and
    `longest` the tokens of the tenant's longest request.
    """
    if not fit.block_bytes or not fit.kv.request_blocks:
        return f"{name}: no KV cache, nothing in the pool"
    stride = stride_of(fit.block_bytes)
    if not (blocks := nbytes // stride):
        return f"{name}: too small for a KV block of {size(stride)}: raise tiers.host.bytes"
    held = _tokens(fit, blocks) or f"{blocks // fit.kv.request_blocks} requests of {longest} tokens"
    return f"{name}: up to {blocks} KV blocks ({held}), {share // stride} of them its share"


def _tokens(fit: Fit, blocks: int) -> str:
    """Number of tokens in these blocks, in words; empty if the model has several groups of layers
    with blocks of their own, or if a request's blocks do not grow with its tokens.
    """
    if len(fit.kv.groups) > 1 or not fit.kv.groups[0].grows:
        return ""
    return f"{blocks * fit.kv.groups[0].block_tokens} tokens"
