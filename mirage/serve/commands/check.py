"""One device as `mirage check` examines it: results, and lines about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mirage.config import Config
from mirage.serve.clients.certificate import check_tls
from mirage.serve.commands.check_adapters import adapter_lines
from mirage.serve.device.weights_keeper import bounds
from mirage.serve.fit.fit import Fit
from mirage.serve.fit.masters import master_lines
from mirage.serve.fit.outlook import Speeds, outlook
from mirage.serve.fit.table import fit_table
from mirage.serve.fit.tier_room import hierarchy
from mirage.serve.launch.preflight import Preflight, preflight, speeds
from mirage.serve.launch.vllm_facts import Probe
from mirage.serve.models.hubs import outlined
from mirage.serve.roster.told import roster_lines

SCHEMA_VERSION = 1


class CheckedDevice(NamedTuple):
    """Results of the check of one device."""

    found: Preflight
    link: Speeds

    @property
    def refused(self) -> dict[str, str]:
        """Tenants that cannot be served, with the reasons."""
        return self.found.refused

    @property
    def names(self) -> list[str]:
        """Names that requests may use: of tenants, aliases and adapters."""
        served, adapters = self.found.config, self.found.adapters.values()
        names = [*served.names, *(name for named in adapters for name in named)]
        return names + [name for tenant in served.tenants for name in tenant.adapters]


def checked(declared: Config, probe: Probe, say: Callable[[str], None]) -> CheckedDevice:
    """Check one device: certificate, arguments, models and sizes. No weights are fetched; `say`
    gets a line for each hub model.

    Raises `ConfigError` if no tenant can be served, and for errors that concern all tenants; for a
    model of a hub or store also the errors of `outlined`.
    """
    check_tls(declared.http)
    with outlined(declared, say) as seen:
        return CheckedDevice(preflight(seen, probe), speeds(declared.device))


def told(device: CheckedDevice) -> Iterator[str]:
    """Lines for the terminal about one device."""
    yield fit_table(device.found.config, device.found.fits)
    yield from sentences(device)


def sentences(device: CheckedDevice) -> Iterator[str]:
    """Lines below the table: about host memory, tiers, the roster, adapters and the gain."""
    link, served, fits = device.link, device.found.config, device.found.fits
    yield from master_lines(served, fits, bounds(served).idle)
    yield from hierarchy(served, fits)
    yield from roster_lines(served, fits, link)
    yield from adapter_lines(served, fits)
    yield from outlook(served, fits, link)


def as_object(device: CheckedDevice) -> dict[str, Any]:
    """Results as plain values: what each tenant's share holds, and who is refused why.

    The sentences below the table are in `lines`.
    """
    served, fits = device.found.config, device.found.fits
    return {
        "name": served.device.name,
        "kind": served.device.kind,
        "device_bytes": served.device.memory,
        "policy": served.policy.value,
        "tenants": [_tenant(served, name, fit) for name, fit in fits.items()],
        "refused": device.found.refused,
        "lines": list(sentences(device)),
    }


def _tenant(served: Config, name: str, fit: Fit) -> dict[str, Any]:
    return {
        "name": name,
        "share_percent": served.tenant(name).percent,
        "share_bytes": fit.grant_bytes,
        "parameter_bytes": fit.parameter_bytes,
        "layers": fit.layers,
        "layer_bytes": fit.layer_bytes,
        "movable_layers": fit.movable_layers,
        "block_bytes": fit.block_bytes,
        "blocks": max(0, fit.base_blocks - 1),
        "most_blocks": max(0, fit.max_blocks - 1),
        "spare_bytes": fit.spare_bytes,
        "architecture": fit.architecture,
    }
