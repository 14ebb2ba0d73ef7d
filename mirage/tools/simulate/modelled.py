"""The text of the report's section on what the simulation models and what it does not."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from mirage.tools.report.document import points

SAME_CODE = (
    Markup(
        "What decides about memory and turns: the controller of <code>mirage serve</code>, with "
        "its pacing, refusals and accounts. That no more is held than there is has been checked at "
        "the end of each run."
    ),
    "What an engine asks for, how long it holds requests back for an answer, and how it takes "
    "turns.",
)
MODELLED = (
    "Scheduling as in vLLM V1: continuous batching, decode first, chunked prefill within the token "
    "budget, admission first come first served, KV in blocks, preemption of the newest request "
    "with recomputation.",
    "The time of a step: the longest of memory traffic (parameters once, the KV of every token of "
    "context), arithmetic, and the transfer of streamed layers, each at a constant share of its "
    "peak, plus a constant overhead.",
    "Engines that compute at the same time divide bandwidth and compute equally, and those that "
    "stream divide the link equally; with isolated memory each has its share of both.",
    "The time of a message between an engine and the controller, the pause of an engine that acts "
    "on an allotment, and the loading of layers that come back.",
    "Memory in the driver’s pages, whole layers (or equal parts) and page-aligned KV extents.",
)
NOT_MODELLED = (
    "How kernels’ efficiency depends on shapes, and CUDA graphs; copies over the link do not slow "
    "the compute beside them.",
    "HTTP, tokenisation and routing.",
)
KV_BLOCKS = {
    "dense": "Fragmentation: KV blocks in use are taken to lie dense, so an extent is free as soon "
    "as the blocks in use fit into fewer.",
    "scattered": "Where blocks lie: those in use are taken to lie anywhere, so an extent is free "
    "as often as chance leaves all of its blocks unused.",
}
SEVERAL = (
    "Several devices: a router that keeps sessions and prefixes where they are, if engines keep "
    "them, and sends the rest to the replica with the fewest requests under way; "
    "devices that are lost and come back, requests that are sent again before their first token."
)
NOT_MODELLED_EITHER = (
    "Activations beyond the constant reserve, prefix caching, speculative decoding, {}.",
    "Texts: a request’s lengths are drawn beforehand, and the engines do not know them.",
)


def modelled(kv_blocks: str, several: bool = False) -> Iterator[Markup]:
    """Three lists under their titles. `kv_blocks` is the value of this key of the experiment;
    `several` is True for several devices.
    """
    left_out = (
        "models that move between devices"
        if several
        else "several GPUs, engines that start or fail"
    )
    either = [line.format(left_out) for line in NOT_MODELLED_EITHER]
    yield Markup("<h3>The same code as in service</h3>")
    yield points(SAME_CODE)
    yield Markup("<h3>Modelled</h3>")
    yield points([*MODELLED, *([SEVERAL] if several else [])])
    yield Markup("<h3>Not modelled</h3>")
    yield points([*NOT_MODELLED, KV_BLOCKS[kv_blocks], *either])
