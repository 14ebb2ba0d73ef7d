"""Step times of tenants by `device.profile`, with which the controller begins."""

from __future__ import annotations

import logging

from mirage import profiles
from mirage.config import Config, ConfigError, TenantSection
from mirage.control.profiled import Profiled
from mirage.profiles import Hardware, Model
from mirage.serve.served_shape import served_shape
from mirage.serve.shapes import UnknownShape
from mirage.simulate.roofline import PS, Roofline, Work

logger = logging.getLogger("mirage.serve.profiled")
PROMPT = 2048
"""Tokens of the prompt by which the price of one is reckoned, at most."""


def profiled(config: Config) -> dict[str, Profiled]:
    """Times by tenant; of nobody without a profile, and of none whose shape vLLM alone knows.

    Raises `ConfigError` for a profile that cannot be read. What is wrong with a tenant's model is
    for whoever starts it to say.
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
    """Times of a step with one request of one token, and of each token of a `prompt`."""
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
