"""Entry of `tenants`: one served model, its share, and the rules by which it yields."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_serializer, model_validator

from mirage.config.limits import TenantLimitsSection
from mirage.config.strict import Strict
from mirage.config.values import MOST, Count, FilePath, Plain, Span
from mirage.hub_name import HubName, hub_name
from mirage.problems import shown
from mirage.secrets import redacted

NAME = r"^[A-Za-z0-9._/-]+$"
STORED = "weights:"
"""Prefix of `model` that names a model in the store of weights of this machine."""
ALIAS = r"^[A-Za-z0-9._/:@+-]+$"
"""Pattern of aliases. It admits names as other servers have them: ``llama3:8b``,
``openai/gpt-4o``.
"""
LONGEST_ALIAS = 200
LONGEST_NAME = 80
"""Most characters of a tenant's name. It becomes the name of a log file, which has 255 bytes at
most and spells a slash with three.
"""
OF_REQUESTS = {"model", "messages", "prompt", "input", "stream"}
ROSTER_KEYS = {"start", "keep_alive", "stop_after", "pinned", "max_waiting", "max_wait_s"}


def parse_share(value: Any) -> Any:
    """The share as written; None for ``"auto"``. Raises `ValueError` if no value is written."""
    if value is None:
        raise ValueError("nothing is no share: write per cent, or auto")
    return None if value == "auto" else value


class TenantSection(Strict):
    """One served model with its share of the device and its priority (higher yields later)."""

    INSTEAD: ClassVar = {
        "ttl": "use keep_alive, the idle time after which it sleeps, and stop_after",
        "gpu_memory_utilization": "use share, per cent of device.memory, which all tenants share",
        **dict.fromkeys(
            ("quantization", "seed", "tensor_parallel_size", "tokenizer", "trust_remote_code"),
            "it is an argument of vLLM, write it under engine_args",
        ),
    }
    name: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    model: FilePath
    """The model's folder, or its name at a hub or in the store of weights. Such a name stays a
    relative path until the model is fetched.
    """
    share: Annotated[float | None, BeforeValidator(parse_share)] = Field(gt=0, le=100)
    """Per cent of the device that the tenant is entitled to while it is awake. None is ``auto``: as
    little as its parameters and the KV cache of its longest request take.
    """
    priority: int = Field(default=0, ge=-MOST, le=MOST)
    start: Literal["eager", "on_request"] = "eager"
    """``eager``: its engine starts before any request comes, as long as there is room;
    ``on_request``: when a request comes.
    """
    keep_alive: Span = None
    """Seconds without a request after which the tenant sleeps (under a policy other than mirage,
    its engine ends); None: it does so only when other tenants need its place.
    """
    stop_after: Span = None
    """Seconds asleep after which the tenant's engine is stopped; None is never."""
    pinned: bool = False
    """True if the tenant never yields its place to others; `keep_alive` and `stop_after` apply all
    the same.
    """
    keep_weights: Literal["host", "none"] = "host"
    """``host``: movable layers, and all else that a start reads, stay in host memory when the
    engine has ended. ``none``: they are freed with the engine.
    """
    max_waiting: Count = 128
    """Most requests that wait while the tenant wakes or starts."""
    max_wait_s: float = Field(default=120.0, ge=0, le=1e6)
    """Longest time in seconds for which one request waits for the tenant to wake or start."""
    aliases: list[Annotated[str, Field(pattern=ALIAS, max_length=LONGEST_ALIAS)]] = Field(
        default_factory=list
    )
    """Other names by which requests may ask for this tenant's model."""
    adapters: dict[Annotated[str, Field(pattern=ALIAS, max_length=LONGEST_ALIAS)], FilePath] = (
        Field(default_factory=dict)
    )
    """LoRA adapters that the engine loads while it runs: their folders, by the names that requests
    use.
    """
    limits: TenantLimitsSection = TenantLimitsSection()
    defaults: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")], Plain] = Field(
        default_factory=dict
    )
    """Values for keys that a request for generated tokens leaves out."""
    max_model_len: Count = 1024
    max_num_seqs: Count = 64
    max_num_batched_tokens: Count = 1024
    floor_layers: Count = 1
    """Fewest layers that stay resident."""
    max_percent: float | None = Field(default=None, ge=0, le=100)
    """Overrides `remap.max_percent` for this tenant; with 0 the layers stay where vLLM puts
    them.
    """
    max_cost_ms: float | None = Field(default=None, ge=0, le=1e6)
    """Most milliseconds that waiting for streamed layers may add to a token, averaged over the last
    minute. Above that the tenant gives no more layers. None: no bound.
    """
    engine_args: dict[str, Plain] = Field(default_factory=dict)
    """Further arguments of vLLM's server, by their long names with underscores."""

    @model_validator(mode="after")
    def _defaults_are_within_limits(self) -> TenantSection:
        for name, most in (("max_tokens", self.limits.max_tokens), ("n", self.limits.n)):
            value = self.defaults.get(name, 1)
            if type(value) is not int or not 1 <= value <= (most or value):
                bound = f"1 to {most}" if most else "1 or more"
                raise ValueError(f"defaults.{name} is {shown(value)}: write {bound}")
        if own := OF_REQUESTS & self.defaults.keys():
            raise ValueError(f"defaults.{min(own)}: each request says it, leave it out")
        return self

    @property
    def hub(self) -> HubName | None:
        """The model's name at a hub; None if it is a folder, or in the store of weights."""
        return None if self.model.is_absolute() else hub_name(str(self.model))

    @property
    def stored(self) -> str | None:
        """The model's name or id in the store of weights; None for a folder or a model at a hub."""
        written = str(self.model)
        return written.removeprefix(STORED) if written.startswith(STORED) else None

    @property
    def percent(self) -> float:
        """`share` as a number. It must not be ``auto`` any more: that is replaced once the models'
        sizes are known.
        """
        assert self.share is not None, f"the share of {self.name!r} is auto"
        return self.share

    @property
    def comes_and_goes(self) -> bool:
        """True if the share is ``auto`` or one of the tenant's keys for the roster is written: the
        tenant may sleep and wake.
        """
        return self.share is None or not ROSTER_KEYS.isdisjoint(self.model_fields_set)

    @field_serializer("engine_args", when_used="json")
    def _without_secrets(self, engine_args: dict[str, Any]) -> Any:
        """Arguments with `***` in place of each secret, because reports contain a configuration as
        JSON.
        """
        return redacted(engine_args)
