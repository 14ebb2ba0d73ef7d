"""Does every tenant fit into its share, and with how many KV blocks does it start?

Answered from the configuration and the models' `Weights`, before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

import psutil

from mirage.config import Config, ConfigError, Device, Policy, Tenant
from mirage.serve.weights import Weights, read_weights
from vmm.driver import DeviceUnavailable


@dataclass(frozen=True)
class Fit:
    """One tenant's memory at start. Bytes are page-rounded; blocks include the null block.

    `base_blocks` fill what the share leaves beside the parameters; `max_blocks` is the
    universe that vLLM's block pool is built for: the most that could ever be granted.
    `min_blocks` hold one request of `max_model_len` tokens.
    """

    grant_bytes: int
    layers: int
    layer_bytes: int
    fixed_bytes: int
    block_bytes: int
    extent_blocks: int
    base_blocks: int
    max_blocks: int
    min_blocks: int

    @property
    def parameter_bytes(self) -> int:
        return self.fixed_bytes + self.layers * self.layer_bytes

    @property
    def extent_bytes(self) -> int:
        return self.extent_blocks * self.block_bytes

    @property
    def spare_bytes(self) -> int:
        """Bytes of the share that neither parameters nor whole KV extents use."""
        return self.grant_bytes - self.parameter_bytes - self.base_blocks * self.block_bytes


def fit_config(config: Config) -> dict[str, Fit]:
    """Read every tenant's model and fit it. Raises `ConfigError` for the first that does not."""
    has = _present_bytes(config.device)
    if config.device.memory > has:
        where = "GPU" if config.device.kind == "cuda" else "machine"
        raise ConfigError(
            f"device.memory is {mib(config.device.memory)}, this {where} has {mib(has)}: lower it"
        )
    weights = {}
    for tenant in config.tenants:
        try:
            weights[tenant.name] = read_weights(tenant.model, config.dtype)
        except ConfigError as error:
            raise ConfigError(f"tenant {tenant.name!r}: {error}") from None
    return fit(config, weights)


def fit(config: Config, weights: Mapping[str, Weights]) -> dict[str, Fit]:
    """Fit every tenant by its name. Raises `ConfigError` for the first that does not fit."""
    unmovable = sum(_unmovable_bytes(config, weights[tenant.name]) for tenant in config.tenants)
    movable = config.device.memory - unmovable
    return {t.name: _fit_tenant(config, t, weights[t.name], movable) for t in config.tenants}


def _fit_tenant(config: Config, tenant: Tenant, weights: Weights, movable: int) -> Fit:
    page = config.device.page
    block_bytes = weights.kv_token_bytes * config.block_tokens
    extent_bytes = lcm(page, block_bytes)
    extent_blocks = extent_bytes // block_bytes
    grant = int(config.device.memory * tenant.share / 100) // page * page
    parameters = _parameter_bytes(config, weights)
    # The first block is vLLM's null block: it is never handed to a request.
    min_blocks = -(-tenant.max_model_len // config.block_tokens) + 1
    min_extents = -(-min_blocks // extent_blocks)
    if grant < parameters + min_extents * extent_bytes:
        raise ConfigError(_does_not_fit(tenant, grant, parameters, min_extents * extent_bytes))
    base = (grant - parameters) // extent_bytes
    most = base if config.policy is Policy.STATIC else max(base, movable // extent_bytes)
    return Fit(
        grant_bytes=grant,
        layers=weights.layers,
        layer_bytes=_up(weights.layer_bytes, page),
        fixed_bytes=_up(weights.fixed_bytes, page),
        block_bytes=block_bytes,
        extent_blocks=extent_blocks,
        base_blocks=base * extent_blocks,
        max_blocks=most * extent_blocks,
        min_blocks=min_blocks,
    )


def _parameter_bytes(config: Config, weights: Weights) -> int:
    page = config.device.page
    return _up(weights.fixed_bytes, page) + weights.layers * _up(weights.layer_bytes, page)


def _unmovable_bytes(config: Config, weights: Weights) -> int:
    """Parameters that hold their memory whatever happens."""
    layers = weights.layers * config.remap.max_percent / 100
    alpha = int(layers) if config.policy is Policy.MIRAGE else 0
    return _parameter_bytes(config, weights) - alpha * _up(weights.layer_bytes, config.device.page)


def _does_not_fit(tenant: Tenant, grant: int, parameters: int, kv: int) -> str:
    return (
        f"tenant {tenant.name!r} does not fit: it needs {mib(parameters + kv)} (parameters "
        f"{mib(parameters)}, KV cache for max_model_len {tenant.max_model_len} {mib(kv)}), its "
        f"share of {tenant.share:g} % is {mib(grant)}: raise the share or device.memory, "
        f"or lower max_model_len"
    )


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


def mib(nbytes: int) -> str:
    """``"12.5 MiB"``."""
    return f"{nbytes / 2**20:.1f} MiB"


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
