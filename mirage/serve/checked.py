"""One device as `mirage check` examines it: results, and lines about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mirage.config import Config
from mirage.serve.adapter_words import adapter_lines
from mirage.serve.ask import Probe
from mirage.serve.clients.certificate import check_tls
from mirage.serve.hierarchy import hierarchy
from mirage.serve.hubs import outlined
from mirage.serve.keeper import bounds
from mirage.serve.masters import master_lines
from mirage.serve.outlook import Speeds, outlook
from mirage.serve.preflight import Preflight, preflight, speeds
from mirage.serve.roster.told import roster_lines
from mirage.serve.table import fit_table


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
    """Check one device, without fetching weights of hub models, about which `say` gets lines.

    Raises `ConfigError`.
    """
    check_tls(declared.http)
    with outlined(declared, say) as seen:
        return CheckedDevice(preflight(seen, probe), speeds(declared.device))


def told(device: CheckedDevice) -> Iterator[str]:
    """Lines for the terminal about one device."""
    link, served, fits = device.link, device.found.config, device.found.fits
    yield fit_table(served, fits)
    yield from master_lines(served, fits, bounds(served).idle)
    yield from hierarchy(served, fits)
    yield from roster_lines(served, fits, link)
    yield from adapter_lines(served, fits)
    yield from outlook(served, fits, link)
