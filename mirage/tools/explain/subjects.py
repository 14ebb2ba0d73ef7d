"""Tenants of a configuration that can be explained, and the reasons why others cannot."""

from __future__ import annotations

from typing import NamedTuple

from mirage import profiles
from mirage.config import Config, ConfigError, Policy
from mirage.control.targets import entitled
from mirage.profiles import Hardware, Model
from mirage.serve.fit.fit import Fit, fit
from mirage.serve.models.served_shape import served_shape
from mirage.serve.models.shapes import UnknownShape, facts
from mirage.tools.explain.arithmetic import Subject
from mirage.tools.explain.machine import as_configured
from mirage.units import ceil_div


class Subjects(NamedTuple):
    """Tenants that can be explained, and those that cannot."""

    subjects: list[Subject]
    """One for each tenant that can be explained."""
    fits: dict[str, Fit]
    """Memory of these tenants at the start, by name."""
    refused: dict[str, str]
    """Reason why a tenant cannot be explained, by its name."""


def subjects(config: Config, hardware: Hardware, context: int) -> Subjects:
    """Tenants of `config`, whose policy is replaced by `mirage`, each with requests of `context`
    tokens, or of the tenant's `max_model_len` if that is less.

    Raises `ConfigError` for a folder that is missing or damaged, and if no tenant can be explained.
    """
    config = config.model_copy(update={"policy": Policy.MIRAGE})
    models: dict[str, Model] = {}
    refused: dict[str, str] = {}
    for tenant in config.tenants:
        try:
            models[tenant.name] = served_shape(config, tenant)
        except UnknownShape as error:
            refused[tenant.name] = f"its sizes are only vLLM's to tell, see mirage check: {error}"
    known = {
        name: facts(model, config.tenant(name).max_model_len, config.block_tokens)
        for name, model in models.items()
    }
    fits, too_large = fit(config, known)
    refused |= too_large
    if not fits:
        lines = (f"tenant {name!r}: {why}" for name, why in refused.items())
        raise ConfigError("; ".join(lines))
    found = [_subject(config, n, models[n], fits[n], hardware, context) for n in fits]
    return Subjects(found, fits, refused)


def _subject(
    config: Config, name: str, model: Model, fit: Fit, hardware: Hardware, context: int
) -> Subject:
    tenant = config.tenant(name)
    context = min(context, tenant.max_model_len)
    shape = profiles.shape(
        model,
        as_configured(hardware, fit.page.bytes),
        config.block_tokens,
        tenant.max_model_len,
        config.device.memory,
    )
    held = (fit.max_blocks - 1) // ceil_div(context, config.block_tokens)
    return Subject(
        tenant=entitled(tenant),
        model=model,
        shape=shape,
        context=context,
        most_requests=min(tenant.max_num_seqs, held),
        share_blocks=fit.base_blocks - 1,
    )
