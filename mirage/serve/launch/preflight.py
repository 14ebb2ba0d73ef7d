"""Checks before any engine starts: of the device and the model folders, and by vLLM itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from mirage import profiles
from mirage.arguments.check import ArgumentRefused, check_environment
from mirage.config import Config, ConfigError, DeviceSection
from mirage.folder.model import check_model
from mirage.serve.adapting import adapters
from mirage.serve.fit.fit import Fit, fit, with_shares
from mirage.serve.fit.outlook import Speeds
from mirage.serve.launch import launcher, vllm_facts
from mirage.serve.launch.host_limits import check_limits, host_parts
from mirage.serve.rundir import resources
from mirage.tiers.ssd.files import existing, taken_bytes
from mirage.units import size, sizes
from vmm.driver import DeviceUnavailable, VmmError
from vmm.host_memory import HostMemory, host_memory


class Preflight(NamedTuple):
    """Results of the checks by tenant: each tenant is in `fits`, which has its memory at the start,
    or in `refused`."""

    fits: dict[str, Fit]
    refused: dict[str, str]
    """Reason why each of these tenants cannot be served, in one line."""
    adapters: dict[str, dict[str, str]]
    """Folders of the LoRA adapters that each tenant's engine loads at its start, by the adapters'
    names.
    """
    config: Config
    """Configuration to serve, with numbers for shares that were ``auto``."""


def preflight(config: Config, probe: vllm_facts.Probe = vllm_facts.PROBE) -> Preflight:
    """Check the device and every tenant, ask vLLM about the models through the process `probe`, and
    fit them into shares.

    A tenant that cannot be served is in `Preflight.refused`. Raises `ConfigError` for an error that
    concerns all tenants, or if no tenant can be served.
    """
    if config.device.profile is not None:
        profiles.hardware(config.device.profile)
    resources.check_files()
    resources.check_folders()
    _check_environment()
    _check_host_tier(config)
    check_limits(config)
    _check_ssd_tier(config)
    _check_weights_store(config)
    named, refused = _without_vllm(config)
    _check_device(config, refused)
    return _with_vllm(config, probe, named, refused)


def look_at(config: Config, probe: vllm_facts.Probe) -> Preflight:
    """Check the tenants alone, not the device, because a server runs on it already.

    A tenant that cannot be served is in `Preflight.refused`. Raises `ConfigError` for an error that
    concerns all tenants, or if no tenant can be served.
    """
    return _with_vllm(config, probe, *_without_vllm(config))


def _without_vllm(config: Config) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Adapters that each tenant's engine loads at its start, and the reason for each tenant that is
    refused without asking vLLM.
    """
    named, refused = adapters.check(config)
    return named, refused_here(config) | refused


def _with_vllm(
    config: Config,
    probe: vllm_facts.Probe,
    named: dict[str, dict[str, str]],
    refused: dict[str, str],
) -> Preflight:
    left = _without(config, refused)
    facts, by_vllm = vllm_facts.ask(left, probe) if left.tenants else ({}, {})
    config, left = with_shares(config, facts), with_shares(left, facts)
    fits, too_large = fit(left, facts)
    found = refused | by_vllm | too_large
    in_order = {t.name: found[t.name] for t in config.tenants if t.name in found}
    if in_order and not fits:
        raise refusal(in_order)
    return Preflight(fits, in_order, named, config)


def fit_config(config: Config, probe: vllm_facts.Probe = vllm_facts.PROBE) -> dict[str, Fit]:
    """Memory of every tenant at its start (`Fit`), by name; vLLM is asked about the models through
    the process `probe`. Raises `ConfigError` if any tenant is refused."""
    found = preflight(config, probe)
    if found.refused:
        raise refusal(found.refused)
    return found.fits


def refusal(refused: Mapping[str, str]) -> ConfigError:
    """Error with one line that names every refused tenant and the reason."""
    return ConfigError("; ".join(f"tenant {name!r}: {why}" for name, why in refused.items()))


def refused_here(config: Config) -> dict[str, str]:
    """Tenants that are refused without asking vLLM: the reason, by name."""
    refused = {}
    for tenant in config.tenants:
        try:
            launcher.check_engine_args(config, tenant)
            check_model(tenant.model)
        except (ArgumentRefused, ConfigError) as error:
            refused[tenant.name] = str(error)
    return refused


def _without(config: Config, refused: dict[str, str]) -> Config:
    kept = [tenant for tenant in config.tenants if tenant.name not in refused]
    return config.model_copy(update={"tenants": kept})


def _check_environment() -> None:
    """Check the environment variables that engines inherit. Raises `ConfigError` for one that
    cannot be served."""
    try:
        check_environment(os.environ)
    except ArgumentRefused as error:
        raise ConfigError(str(error)) from None


def _check_device(config: Config, refused: Mapping[str, str]) -> None:
    """Check the device and its peers, as the last check before vLLM is asked, since this machine
    may lack the device. Raises `ConfigError` if the device is absent, or has less memory than is
    configured."""
    try:
        _check_memory(config.device)
    except _NoDeviceError as error:
        found = refusal(refused) if refused else "nothing wrong was found"
        raise ConfigError(
            f"{error}; checked without it: the file, its folders, engine_args and the environment "
            f"({found}); not checked: what vLLM says of the models, and whether they fit"
        ) from None
    _check_peers(config)


class _NoDeviceError(ConfigError):
    """This machine has no GPU that can be asked."""


def _check_memory(device: DeviceSection) -> None:
    has = _present(device)
    if device.memory > has.bytes:
        wanted, there = sizes(device.memory, has.bytes)
        raise ConfigError(f"device.memory is {wanted}, {has.whose} {there}: lower it")


def _check_host_tier(config: Config) -> None:
    """Check that host memory suffices for the pool, the device and peers; raise `ConfigError` if it
    does not."""
    if config.host_tier is None:
        return
    has, taken = host_memory(), host_parts(config)
    if sum(taken) > has.bytes:
        words = f" beside device.memory {size(taken.device)}" if taken.device else ""
        words += f" and tiers.peer {size(taken.peers)}" if taken.peers else ""
        words = f"tiers.host.bytes is {size(taken.pool)}{words}"
        raise ConfigError(f"{words}, {has.whose} {size(has.bytes)}: lower it")


def _check_ssd_tier(config: Config) -> None:
    """Check that the folder of the SSD tier can be made and written, and that its disk has room for
    the tier; raise `ConfigError` if not. All that the check writes is removed.
    """
    if config.host_tier is None or (ssd := config.tiers.ssd) is None:
        return
    named = f"tiers.ssd.directory {ssd.directory}"
    if (why := resources.unwritable(ssd.directory)) is not None:
        raise ConfigError(f"{named}: it cannot be written ({why}): name another one")
    disk = shutil.disk_usage(existing(ssd.directory))
    if 0 < disk.total < ssd.bytes:  # some file systems do not say
        raise ConfigError(
            f"tiers.ssd.bytes is {size(ssd.bytes)}, the disk of {ssd.directory} has "
            f"{size(disk.total)}: lower it"
        )
    if disk.total and disk.free + taken_bytes(ssd.directory) < ssd.bytes:
        raise ConfigError(
            f"tiers.ssd.bytes is {size(ssd.bytes)}, the disk of {ssd.directory} has "
            f"{size(disk.free)} left: make room there, or lower it"
        )


def _check_weights_store(config: Config) -> None:
    """Check that the store of weights can be written, if the configuration names one. Raises
    `ConfigError` if it cannot."""
    store = config.weights.store
    if store is not None and (why := resources.unwritable(store)) is not None:
        raise ConfigError(f"weights.store {store}: it cannot be written ({why}): name another one")


def _check_peers(config: Config) -> None:
    """Check the GPUs that lend memory to the device; raise `ConfigError` if the device cannot reach
    one, or one cannot lend as much as is configured."""
    if config.host_tier is None or config.tiers.peer is None or not config.tiers.peer.gpus:
        return
    from vmm.cuda_device import device_facts
    from vmm.cuda_slab import check_reachable

    for name, gpu in config.tiers.peer.gpus.items():
        where, wanted = f"tiers.peer.devices.{name}", config.tiers.peer.lent[name]
        try:
            facts = device_facts(gpu)
            check_reachable(config.device.index, gpu)
        except VmmError as error:
            raise ConfigError(f"{where}.device: {error}") from None
        if not facts.shareable:
            raise ConfigError(
                f"{where}: GPU {gpu} ({facts.name}) cannot share memory by file descriptors: "
                "leave it out"
            )
        if not facts.granularity <= wanted <= facts.total_bytes:
            raise ConfigError(
                f"{where}.bytes is {size(wanted)}, GPU {gpu} lends {size(facts.granularity)} to "
                f"{size(facts.total_bytes)}: write that"
            )


def speeds(device: DeviceSection) -> Speeds:
    """Speeds of the machine's link and memory in bytes per second, before anything runs.

    They are those of `device.profile`, but for an imitated link, whose speed counts before that of
    the profile. Without a profile they are the imitated link of a host, or the known data of the
    GPU. An unknown speed is None.

    Raises `ConfigError` if `device.profile` cannot be read.
    """
    imitated = device.link_bytes_per_s
    if device.profile is not None:
        own = profiles.hardware(device.profile)
        memory = own.bytes_per_s if own.sees_memory else None
        return Speeds(imitated or own.link_gb_s.value * 1e9, memory)
    if device.kind == "host":
        return Speeds(imitated)
    from vmm.cuda_device import device_facts

    found = profiles.of_device(device_facts(device.index).name)
    return Speeds(found.link_gb_s.value * 1e9, found.bytes_per_s) if found else Speeds()


def _present(device: DeviceSection) -> HostMemory:
    """Memory of this host, or of the GPU. Raises `_NoDeviceError` if there is no such device."""
    if device.kind == "host":
        return host_memory()
    try:
        from vmm.cuda_device import device_facts

        return HostMemory(device_facts(device.index).total_bytes, "this GPU has")
    except ImportError:
        words = "device.kind cuda needs cuda-python: pip install '.[vllm]'"
        raise _NoDeviceError(words) from None
    except DeviceUnavailable as error:
        raise _NoDeviceError(f"device.kind cuda: {error}") from None
