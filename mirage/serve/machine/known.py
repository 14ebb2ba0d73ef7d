"""Answers of vLLM about models; each is asked for once, and again when its tenant's keys change."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from mirage.config import Config, TenantSection
from mirage.facts import ModelFacts
from mirage.serve.ask import Probe, ask


class KnownModel(NamedTuple):
    """Answer of vLLM about a tenant's model."""

    section: TenantSection
    facts: ModelFacts | None
    """Facts about the model; None if vLLM refused it."""


KnownModels = Mapping[str, KnownModel]
NONE_KNOWN: KnownModels = MappingProxyType({})


def asked(config: Config, probe: Probe, known: KnownModels) -> dict[str, KnownModel]:
    """Answers about all models of `config`; those in `known` are used again. Raises
    `ConfigError`.
    """
    same = {t.name: known[t.name] for t in config.tenants if _is_known(t, known)}
    anew = [tenant for tenant in config.tenants if tenant.name not in same]
    if not anew:
        return same
    told, _ = ask(config.model_copy(update={"tenants": anew}), probe)
    return same | {tenant.name: KnownModel(tenant, told.get(tenant.name)) for tenant in anew}


def _is_known(tenant: TenantSection, known: KnownModels) -> bool:
    return tenant.name in known and known[tenant.name].section == tenant
