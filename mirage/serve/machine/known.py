"""Answers of vLLM about models; each is asked for once, and again when its tenant's keys change."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from mirage.config import Config, TenantSection
from mirage.facts import ModelFacts
from mirage.serve.apply.difference import AT_ONCE
from mirage.serve.launch.vllm_facts import Probe, ask


class KnownModel(NamedTuple):
    """Answer of vLLM about a tenant's model."""

    section: TenantSection
    facts: ModelFacts | None
    """Facts about the model; None if vLLM refused it, or its folder is not there."""
    why: str = ""
    """Reason why there are no facts; empty if there are."""

    @property
    def is_folder(self) -> bool:
        """True for a model that is neither of a hub nor in the store of weights."""
        return self.section.hub is None and self.section.stored is None


KnownModels = Mapping[str, KnownModel]
NONE_KNOWN: KnownModels = MappingProxyType({})


def asked(config: Config, probe: Probe, known: KnownModels) -> dict[str, KnownModel]:
    """Answers about all models of `config`. vLLM is asked about those that are not in `known`, or
    whose tenant's keys have changed. Raises `ConfigError` if it cannot be asked.
    """
    same = {
        t.name: known[t.name]._replace(section=t) for t in config.tenants if _is_known(t, known)
    }
    anew = [tenant for tenant in config.tenants if tenant.name not in same]
    if not anew:
        return same
    told, refused = ask(config.model_copy(update={"tenants": anew}), probe)
    return same | {
        tenant.name: KnownModel(tenant, told.get(tenant.name), refused.get(tenant.name, ""))
        for tenant in anew
    }


def _is_known(tenant: TenantSection, known: KnownModels) -> bool:
    return tenant.name in known and _asked_keys(known[tenant.name].section) == _asked_keys(tenant)


def _asked_keys(tenant: TenantSection) -> dict[str, object]:
    """Keys of a tenant that vLLM's answer depends on."""
    keys = TenantSection.model_fields.keys() - AT_ONCE | {"adapters"}
    return {key: getattr(tenant, key) for key in keys}
