"""Step times of tenants by `device.profile`, which the controller uses at first."""

from __future__ import annotations

import logging

from mirage import profiles
from mirage.config import Config, ConfigError, TenantSection
from mirage.control.profiled import Profiled
from mirage.profiles import Hardware, Model
from mirage.serve.models.served_shape import served_shape
from mirage.serve.models.shapes import UnknownShape
from mirage.simulate.roofline import PS, Roofline, Work

logger = logging.getLogger("mirage.serve.models.step_times")
PROMPT = 2048
"""Most tokens of the prompt from which the time of a prompt's token is computed."""


def profiled(config: Config) -> dict[str, Profiled]:
    """Step times by tenant, from `device.profile`; empty if no profile is named.

    Tenants whose shapes only vLLM knows, or whose models have errors, are left out: errors are
    reported when they start. Raises `ConfigError` for a profile that cannot be read.
    """
    if config.device.profile is None:
        return {}
    hardware = profiles.hardware(config.device.profile)
    found = {}
    for tenant in config.tenants:
        try:
            model = served_shape(config, tenant)
        except (ConfigError, UnknownShape) as error:
            logger.info("device.profile tells nothing of tenant %r: %s", tenant.name, error)
            continue
        found[tenant.name] = of_model(model, hardware, _longest_prompt(tenant))
        logger.info(
            "tenant %r: T_c is taken to be %.3g ms by device.profile until a step is measured",
            tenant.name,
            found[tenant.name].step_s / model.layers * 1e3,
        )
    return found


def of_model(model: Model, hardware: Hardware, prompt: int) -> Profiled:
    """Seconds that a step takes which decodes one token of one request, and seconds that each token
    of a prompt with `prompt` tokens takes."""
    roofline = Roofline(model, hardware)
    alone, whole = (
        roofline.compute_ps(Work(0, 0, tokens, tokens * tokens)) for tokens in (1, prompt)
    )
    return Profiled(
        step_s=roofline.compute_ps(Work(1, 1)) / PS,
        token_s=(whole - alone) / PS / (prompt - 1),
    )


def _longest_prompt(tenant: TenantSection) -> int:
    return max(2, min(PROMPT, tenant.max_model_len))
