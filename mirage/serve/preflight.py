"""All that is looked at before any engine starts: the device, the model folders, vLLM's word."""

from __future__ import annotations

import psutil

from mirage.config import Config, ConfigError, Device
from mirage.serve import ask
from mirage.serve.checkpoint import check_checkpoint
from mirage.serve.fit import Fit, fit, mib
from mirage.serve.launcher import check_engine_args
from mirage.serve.outlook import Speeds
from mirage.simulate import profiles
from vmm.driver import DeviceUnavailable


def fit_config(config: Config) -> dict[str, Fit]:
    """Ask vLLM about every tenant's model and fit it, by the tenant's name.

    Raises `ConfigError` for the first tenant that does not fit, or that vLLM refuses.
    """
    check_engine_args(config)
    has = _present_bytes(config.device)
    if config.device.memory > has:
        where = "GPU" if config.device.kind == "cuda" else "machine"
        raise ConfigError(
            f"device.memory is {mib(config.device.memory)}, this {where} has {mib(has)}: lower it"
        )
    for tenant in config.tenants:
        try:
            check_checkpoint(tenant.model)
        except ConfigError as error:
            raise ConfigError(f"tenant {tenant.name!r}: {error}") from None
    return fit(config, ask.ask(config))


def speeds(device: Device) -> Speeds:
    """What is known of the machine before anything runs: of a GPU what its profile says."""
    if device.kind == "host":
        return Speeds(device.link_bytes_per_s)
    from vmm.cuda_device import device_facts

    profile = profiles.of_device(device_facts(device.index).name)
    return Speeds(profile.link_gb_s.value * 1e9, profile.bytes_per_s) if profile else Speeds()


def _present_bytes(device: Device) -> int:
    """Memory of the machine, or of the GPU. Raises `ConfigError` if there is none."""
    if device.kind == "host":
        return psutil.virtual_memory().total
    try:
        from vmm.cuda_device import device_facts

        return device_facts(device.index).total_bytes
    except ImportError:
        raise ConfigError("device.kind cuda needs cuda-python: pip install '.[vllm]'") from None
    except DeviceUnavailable as error:
        raise ConfigError(f"device.kind cuda: {error}") from None
