"""Shape of a tenant's model as it is served: that of its folder, unless an argument changes it."""

from __future__ import annotations

from mirage.arguments.check import ArgumentRefused, normalised
from mirage.config import Config, ConfigError, TenantSection
from mirage.profiles import Model
from mirage.serve.launch import launcher
from mirage.serve.models.shapes import UnknownShape, read_shape

AS_IT_IS = (None, "auto", "generate", "none")
CHANGING = (
    *("convert", "hf_overrides", "kv_cache_dtype", "quantization", "runner"),
    "speculative_config",
)
"""Arguments with which a layer, a token's KV or a step differs from what the folder describes."""


def served_shape(config: Config, tenant: TenantSection) -> Model:
    """Shape of the tenant's model. Raises `ConfigError` for a refused argument or a damaged folder,
    and `UnknownShape` if only vLLM knows the shape.
    """
    try:
        launcher.check_engine_args(config, tenant)
        arguments = normalised(tenant.engine_args)
        for key in CHANGING:
            if (value := arguments.get(key)) not in AS_IT_IS:
                raise UnknownShape(f"engine_args.{key} is {value!r}")
        return read_shape(tenant.model, config.dtype)
    except (ArgumentRefused, ConfigError) as error:
        raise ConfigError(f"tenant {tenant.name!r}: {error}") from None
