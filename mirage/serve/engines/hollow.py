"""Starts of engines with less memory than their share: layers stream from the first step on.
Pure.
"""

from __future__ import annotations

from msgspec.structs import replace

from mirage.config import Config, TenantSection
from mirage.control.rules import Rules
from mirage.control.targets import entitled, least
from mirage.protocol import Allotment
from mirage.serve.fit.fit import Fit
from mirage.serve.roster.declared import shape_of


def hollow_start(config: Config, tenant: TenantSection, fit: Fit) -> Allotment | None:
    """Allotment of a hollow start: the least memory with which the engine serves. None if the
    tenant has no hollow start.

    It has none if that memory would be no less than the share, or if no layer can stream, or if no
    copies of its weights stay in host memory, or if all layers have to be in device memory during a
    start: on a GPU vLLM builds a model there, and steps that are compiled or captured are proven
    with all layers.
    """
    device = config.device
    whole = device.kind == "cuda" or device.graphs or device.compile
    if whole or not config.keeps_weights(tenant) or not fit.movable_layers:
        return None
    found = least(entitled(tenant), shape_of(config, fit), Rules.served(config))
    # A page more: an engine may hold a few bytes that vLLM does not tell of.
    begins = replace(found, grant_bytes=found.grant_bytes + fit.page.bytes)
    return begins if found.layers_remapped and begins.grant_bytes < fit.grant_bytes else None
