"""KV cache layout that an engine asks vLLM for."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK_OUTERMOST = ("BLHNC", "BLNHC")
"""Layouts with all layers of a block together: the cache grows in one contiguous range, and extents
are small."""
LAYER_OUTERMOST = ("LBHNC", "LBNHC")
"""Layouts with a run of blocks for each layer: an extent is a piece of every run, and larger."""


def elastic_layouts(
    declared: Sequence[str], kinds: Sequence[Sequence[str]] = (BLOCK_OUTERMOST, LAYER_OUTERMOST)
) -> list[str]:
    """Return the layouts that can grow, of those that the attention backends declare, best first.
    They are all of one kind: the first of `kinds` of which the backends declare a layout.

    Raise `RuntimeError` if there is none.
    """
    for kind in kinds:
        if fitting := [layout for layout in declared if layout in kind]:
            return fitting
    wanted = ", ".join(layout for kind in kinds for layout in kind)
    raise RuntimeError(
        f"the attention backend lays KV blocks out as {', '.join(declared)}, and none of "
        f"{wanted}: choose another by engine_args.attention_backend, FLASH_ATTN or TRITON_ATTN "
        "for one"
    )


def layouts_on_gpu(declared: Sequence[str], *, elastic: bool) -> list[str]:
    """Return the layouts for a GPU, the same under every policy, since kernels add in another order
    with another layout and texts would differ.

    A KV cache that does not grow (`elastic` is False) may have any layout. Raises `RuntimeError` as
    `elastic_layouts` does.
    """
    try:
        return elastic_layouts(declared)
    except RuntimeError:
        if elastic:
            raise
        return list(declared)


def layouts_on_cpu(declared: Sequence[str], *, mla: bool) -> list[str]:
    """Return the layouts for a CPU, whose attention kernels read blocks through strides.

    The backends declare fewer layouts than they can read. Those of latent attention (`mla`) view
    the cache of a layer as one array of tokens, so its blocks must be contiguous; then
    `RuntimeError` is raised if the backends declare no such layout.
    """
    return elastic_layouts(declared, (LAYER_OUTERMOST,)) if mla else [BLOCK_OUTERMOST[0]]
