"""Configuration file of one device: it is read, checked and normalised here.

Modules that split a file with several `devices`, or change keys of a file, work on its raw content.
All others take the `Config` that is made here. Sizes are bytes, times seconds, shares per cent of
the device memory. Each section of the file has a module.
"""

from mirage.config.device import DeviceSection
from mirage.config.http import LARGEST_BODY, HttpSection, TlsSection
from mirage.config.limits import LimitsSection
from mirage.config.loading import HARDWARE_FILES, current, load, made, resolved
from mirage.config.reading import (
    FLOAT,
    LARGEST_FILE,
    ODD_VALUES,
    ConfigError,
    Loader,
    parsed,
    parsed_value,
    read_text,
    read_yaml,
    validated,
)
from mirage.config.remap import NO_EXPERTS, Kept, Remap
from mirage.config.replay import Traffic
from mirage.config.roster import RosterSection
from mirage.config.sharing import PATIENCE_S, Policy, SharingSection
from mirage.config.strict import Strict
from mirage.config.tenant import LONGEST_NAME, NAME, TenantSection
from mirage.config.tiers import HostTier, Peer, PeerTier, SsdTier, TiersSection
from mirage.config.values import LARGEST_BYTES, UNITS, Count, FilePath, parse_bytes, parse_span
from mirage.config.weights import WeightsSection
from mirage.config.whole import HANG_S, Config

__all__ = [
    "FLOAT",
    "HANG_S",
    "HARDWARE_FILES",
    "LARGEST_BODY",
    "LARGEST_BYTES",
    "LARGEST_FILE",
    "LONGEST_NAME",
    "NAME",
    "NO_EXPERTS",
    "ODD_VALUES",
    "PATIENCE_S",
    "UNITS",
    "Config",
    "ConfigError",
    "Count",
    "DeviceSection",
    "FilePath",
    "HostTier",
    "HttpSection",
    "Kept",
    "LimitsSection",
    "Loader",
    "Peer",
    "PeerTier",
    "Policy",
    "Remap",
    "RosterSection",
    "SharingSection",
    "SsdTier",
    "Strict",
    "TenantSection",
    "TiersSection",
    "TlsSection",
    "Traffic",
    "WeightsSection",
    "current",
    "load",
    "made",
    "parse_bytes",
    "parse_span",
    "parsed",
    "parsed_value",
    "read_text",
    "read_yaml",
    "resolved",
    "validated",
]
