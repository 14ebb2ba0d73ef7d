"""The configuration file: it is read, checked and normalised in this module alone.

No other module reads its YAML, raw dicts or the environment for it. Sizes are bytes, times seconds,
shares per cent of the device memory.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    field_serializer,
    model_validator,
)

from mirage.config_versions import KEY as VERSION
from mirage.config_versions import UnknownVersionError, upgraded
from mirage.errors import InputRefused
from mirage.hub_name import HubName, hub_name
from mirage.paths import expanded
from mirage.problems import first_problem, shown
from mirage.secrets import redacted
from mirage.units import KIB, MIB

MOST = 2**31 - 1
"""Largest `Count` or `Whole`: vLLM and the system keep most whole numbers in 32 bits."""
Count = Annotated[int, Field(gt=0, le=MOST, strict=True)]
"""A whole number from 1 to `MOST`; ``true`` and ``3.0`` are refused."""
Whole = Annotated[int, Field(ge=0, le=MOST, strict=True)]
"""A whole number from 0 to `MOST`; ``true`` and ``3.0`` are refused."""
Schema = TypeVar("Schema", bound=BaseModel)
PAGE = {"host": 65536, "cuda": None}
"""Default bytes of a page by kind of device; None: as large as the models allow."""
LEAST_PAGE = {"host": 4096, "cuda": 2 * MIB}
"""Smallest page in bytes by kind of device: that of operating systems, and one that all GPUs of
today map.
"""
CHUNK = {"host": 16 * MIB, "cuda": 128 * MIB}
"""Default bytes of a layer that are copied at a time, by kind of device. On a host, whose link is
imitated, copies of KV blocks wait for one such chunk. On a GPU each chunk takes 8 to 15 us of the
stepping thread (H200).
"""
LEAST_CHUNK = MIB
ON_GPU = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
"""Defaults of a tenant on a GPU: those that vLLM's server has on a large one."""
HARDWARE_FILES = (".yaml", ".yml")
"""Suffixes that distinguish a hardware file from the name of a bundled profile."""
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
HANG_S = 30.0
LEASE_S = 600.0
LEAST_HANG_S = 5.0
"""Smallest `hang_s`: the time of ten signs of life."""
LARGEST_BODY = 64 * MIB
"""Most bytes of a request's body, as received and when decompressed."""
LARGEST_BYTES = 2**60
LARGEST_FILE = 2**20
"""Most characters of a YAML file."""
MOST_VALUES = 100_000
"""Most keys and values of a YAML file. Those behind an alias count again wherever it is used."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class ConfigError(InputRefused):
    """A configuration that cannot be served; the message is one line for the user."""


class Loader(yaml.SafeLoader):
    """YAML's safe loader. It also refuses a key that is written twice, a file whose aliases stand
    for more than `MOST_VALUES` keys and values, and text that no path, command line or request
    body can hold.
    """

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        text = super().construct_scalar(node)
        if UNUSABLE.search(text):
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown(text)} has a null byte or half a character", node.start_mark
            )
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [name for name, times in names.items() if times > 1]:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {min(twice)!r} is written twice", node.start_mark
            )
        return dict(super().construct_mapping(node, deep))

    def construct_document(self, node: yaml.Node) -> Any:
        if (values := _values(node, {})) > MOST_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, f"its aliases stand for {values:.3g} values: use fewer"
            )
        return super().construct_document(node)


def _values(node: yaml.Node, known: dict[int, float]) -> float:
    """Number of keys and values under a node, with aliases expanded; inf if a node contains
    itself.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = float("inf")
        children = node.value if isinstance(node, yaml.SequenceNode) else sum(node.value, ())
        known[id(node)] = 1 + sum(_values(child, known) for child in children)
    return known[id(node)]


UNUSABLE = re.compile("[\0\ud800-\udfff]")
FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
"""Numbers with an exponent that YAML 1.2 reads as numbers and YAML 1.1 as text."""
Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


class Policy(StrEnum):
    """Policy: the memory that may be taken from others."""

    STATIC = "static"
    POOLED = "pooled"
    MIRAGE = "mirage"


def parse_bytes(value: Any) -> int:
    """Bytes of ``"512MiB"``, ``"2G"`` or a whole number of bytes. Raises `ValueError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", str(value), re.IGNORECASE)
    if not match:
        raise ValueError(
            f"{shown(value)} is not a size: write bytes or a number with KiB, MiB or GiB"
        )
    return int(Decimal(match[1]) * UNITS[match[2].upper()])


def parse_page(value: Any) -> int | None:
    """Bytes as `parse_bytes` reads them; None for ``"auto"`` or no value."""
    return None if value in (None, "auto") else parse_bytes(value)


def _named(path: Any) -> Any:
    """Refuse an empty path, which would mean the folder of the file. Raises `ValueError`."""
    if path == "":
        raise ValueError("it is empty: name a path")
    return path


FilePath = Annotated[Path, Field(strict=False), BeforeValidator(expanded), BeforeValidator(_named)]
"""A path in which ``~`` and ``$NAME`` are replaced as a shell does."""


def parse_share(value: Any) -> Any:
    """The share as written; None for ``"auto"``. Raises `ValueError` if no value is written."""
    if value is None:
        raise ValueError("nothing is no share: write per cent, or auto")
    return None if value == "auto" else value


SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h)\s*")
SPAN_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_span(value: Any) -> Any:
    """Seconds of ``"90s"``, ``"5m"`` or ``"2h"``; None for ``"never"``; a number as it is."""
    if value == "never":
        return None
    if not isinstance(value, str):
        return value
    if (match := SPAN.fullmatch(value)) is None:
        raise ValueError(f"{shown(value)} is no time: write seconds, as 5m or 2h, or never")
    return float(match[1]) * SPAN_UNITS[match[2]]


Weight = Annotated[float, Field(ge=0)]
Span = Annotated[Annotated[float, Field(ge=0, le=1e9)] | None, BeforeValidator(parse_span)]
"""Seconds, written as a number or as `parse_span` reads them; None is never."""
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0, le=LARGEST_BYTES)]


def plain(value: Any) -> Any:
    """A value as JSON has it. Raises `ValueError` for others, as dates, and for keys but text."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is no number that JSON has: write another")
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"{shown(odd[0])} is no text: put keys in quotes")
        for each in value.values():
            plain(each)
    elif isinstance(value, list):
        for each in value:
            plain(each)
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"{shown(value)} is no value of JSON: put text in quotes")
    return value


Plain = Annotated[Any, BeforeValidator(plain)]
"""Value that goes into a body or a command line as JSON."""


class Strict(BaseModel):
    """Base of all sections of a configuration. An unknown key is refused, and a section without
    content is as if it were left out.

    Values are not converted: ``true`` is no number, ``"5"`` and ``3.0`` are no whole numbers.
    Fields of a type that YAML does not have, such as paths, are declared with `strict=False`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_sections_are_not_there(cls, data: Any) -> Any:
        """Drop the keys of empty sections: YAML reads ``tiers:`` alone as null."""
        if not isinstance(data, dict) or None not in data.values():
            return data
        return {key: value for key, value in data.items() if value is not None or cls._needs(key)}

    @classmethod
    def _needs(cls, key: Any) -> bool:
        """True if null is a mistake for the key, so that it is kept and validation reports it."""
        field = cls.model_fields.get(key)
        return field is None or field.is_required() or not _is_section(field.annotation)


def _is_section(annotation: Any) -> bool:
    """True if the annotation is a mapping: a schema or a dict."""
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, (BaseModel, dict))


class DeviceSection(Strict):
    """The memory that all tenants share: a part of the host's, or of one GPU's."""

    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,31})?$")
    """Name of the device where a server has several. A device with a name may have no tenant."""
    kind: Literal["host", "cuda"] = "host"
    index: Whole = 0
    """Index of the GPU, as ``nvidia-smi`` counts."""
    graphs: bool = Field(default_factory=lambda data: data["kind"] == "cuda")
    """On a GPU: replay CUDA graphs. While layers stream, they are replayed in pieces."""
    compile: bool = Field(default_factory=lambda data: data["kind"] == "cuda")
    """Let vLLM compile the computation between two attentions, as it does by default."""
    memory: Bytes
    """Bytes that all tenants share. On a GPU, leave memory free beside them for the other needs of
    each engine: see configuring.md.
    """
    page: Annotated[int | None, BeforeValidator(parse_page)] = Field(
        default_factory=lambda data: PAGE[data["kind"]], le=LARGEST_BYTES
    )
    """Bytes of a physical page, the unit of mapping: a power of two, on a GPU at least 2 MiB. None
    is ``auto`` (on a GPU only): as large as the models allow.
    """
    copy_chunk: Bytes = Field(default_factory=lambda data: CHUNK[data["kind"]])
    """Bytes of a layer that are copied at a time. On a device that does one copy at a time, copies
    of a step's inputs and of KV blocks wait until the chunk is through.
    """
    link_gb_s: float | None = Field(default=None, gt=0, le=1e6)
    """Host only: imitate a link of so many GB (1e9 bytes) a second; None copies at full speed."""

    profile: Annotated[str | None, BeforeValidator(expanded)] = Field(default=None, min_length=1)
    """Name in configs/hardware, or a hardware file as `mirage profile` writes. It is for
    predictions before an engine runs; engines measure their own layers and steps.
    """

    @property
    def link_bytes_per_s(self) -> float | None:
        """Speed of the imitated link in bytes a second; None if no link is imitated."""
        return None if self.link_gb_s is None else self.link_gb_s * 1e9

    @model_validator(mode="after")
    def _has_its_own_link(self) -> DeviceSection:
        if self.kind == "cuda" and self.link_gb_s is not None:
            raise ValueError(
                "link_gb_s is for kind host: a GPU has a link of its own, leave it out"
            )
        return self

    @model_validator(mode="after")
    def _graphs_are_of_a_gpu(self) -> DeviceSection:
        if self.kind == "host" and self.graphs:
            raise ValueError("graphs is for kind cuda: a host has none, leave it out")
        return self

    @model_validator(mode="after")
    def _chunk_is_no_crumb(self) -> DeviceSection:
        if self.copy_chunk < LEAST_CHUNK:
            raise ValueError(f"copy_chunk is {self.copy_chunk} bytes: use {LEAST_CHUNK} or more")
        return self

    @model_validator(mode="after")
    def _page_is_power_of_two(self) -> DeviceSection:
        least = LEAST_PAGE[self.kind]
        if self.page is None and self.kind == "host":
            raise ValueError("page auto is for kind cuda: give the bytes of a page")
        if self.page is not None and (self.page < least or self.page & (self.page - 1)):
            raise ValueError(f"page is {self.page} bytes: use a power of two from {least} bytes")
        return self


class LimitsSection(Strict):
    """Limits of one key or one tenant; None is no limit."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Tokens of prompts and of answers together."""
    in_flight: Count | None = None
    """Requests that run or wait at the same time."""


class TenantLimitsSection(LimitsSection):
    """Limits of a tenant: for all clients together, and for one request."""

    max_tokens: Count | None = None
    """Most tokens of one answer."""
    n: Count | None = None
    """Most answers to one request."""
    logprobs: Whole | None = None
    """Most tokens whose probability is returned for each position."""


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
    """Seconds without a request after which the tenant sleeps; None: it sleeps only when other
    tenants need its place.
    """
    stop_after: Span = None
    """Seconds asleep after which the tenant's engine is stopped; None is never."""
    pinned: bool = False
    """True if the tenant never yields its place to others."""
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
        """The model's name at a hub; None if the model is a folder."""
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
        """True if the share is ``auto`` or a key of the roster is written: the tenant may sleep and
        wake.
        """
        return self.share is None or not ROSTER_KEYS.isdisjoint(self.model_fields_set)

    @field_serializer("engine_args", when_used="json")
    def _without_secrets(self, engine_args: dict[str, Any]) -> Any:
        """Arguments without secrets, since JSON of a configuration goes into reports."""
        return redacted(engine_args)


OF_REQUESTS = {"model", "messages", "prompt", "input", "stream"}
ROSTER_KEYS = {"start", "keep_alive", "stop_after", "pinned", "max_waiting", "max_wait_s"}


class RosterSection(Strict):
    """Rules by which tenants sleep, wake, start and stop if not all fit the device
    (docs/roster.md). Times in seconds.
    """

    victims: Literal["mru", "lru"] = "mru"
    """Order in which idle tenants of equal priority sleep: most or least recently used first."""
    worth: float = Field(default=1.0, ge=0, le=1e6)
    """A tenant yields only after it was awake for so many times the duration of its sleep and
    wake.
    """
    busy_s: float = Field(default=5.0, ge=0, le=1e6)
    """A tenant with running requests yields only after it was ready for so many seconds."""
    busy_worth: float = Field(default=6.0, ge=0, le=1e6)
    """A tenant with running requests yields only after it was awake for so many times the duration
    of its drain, sleep and wake.
    """
    rest_worth: float = Field(default=1.0, ge=0, le=1e6)
    """Before a tenant with running requests yields, tenants stop that have slept without a request
    for so many times the duration of their stop and start.
    """
    spare_part: float = Field(default=0.1, ge=0, le=1)
    """Part of the device that a tenant which comes leaves free for KV memory while another tenant
    has more than one running request.
    """
    patience_s: float = Field(default=1.0, ge=0, le=1e6)
    """Seconds that a request must have waited before a tenant with running requests yields to
    it.
    """
    drain_s: float = Field(default=2.0, ge=0, le=1e6)
    """Longest drain in seconds. Requests that still run after it wait until their model is awake
    again.
    """
    obey_s: float = Field(default=60.0, gt=0, le=1e6)
    """Seconds within which an engine must sleep after the order to; then it is stopped."""
    asleep_part: float = Field(default=0.5, ge=0, le=1)
    """Most memory that sleeping tenants may hold together, as a part of the device. Beyond it,
    those idle for longest stop.
    """


PATIENCE_S = 1.0


class SharingSection(Strict):
    """Spatial: all engines step at once. Temporal: one at a time, in turns."""

    mode: Literal["spatial", "temporal"] = "spatial"
    turn_s: float = Field(default=1.0, gt=0, le=1e6)
    drain: bool | Literal["auto"] = "auto"
    """Temporal sharing: a turn lasts until its running requests have finished. ``auto``: only if
    the next model would otherwise stream more layers than its decode hides, and for one more
    `turn_s` at most.
    """

    @property
    def drains(self) -> bool:
        """True if every turn lasts until the requests that began in it have finished."""
        return self.mode == "temporal" and self.drain is True

    @property
    def patience_s(self) -> float:
        """Longest time in seconds that a running request waits for memory before it is preempted.

        In turns it is a quarter of the turn at most: a turn that passes with waiting alone leaves
        the next no better off.
        """
        return PATIENCE_S if self.mode == "spatial" else min(PATIENCE_S, self.turn_s / 4)


Kept = Literal["nothing", "soon", "lent", "asked"]
"""KV memory that new requests leave free for running ones. `nothing`: none. `soon`: the blocks of
half of `lookahead_steps`. `asked`: all that they ask for. `lent`: more than `soon` while layers of
their model are away, or layers of any model in turns (`Wants.left_free`), otherwise as `soon`.
"""


class Remap(Strict):
    """Rules by which the controller moves memory (see docs/architecture.md, Deciding)."""

    serve: Literal["growth", "admission"] = "admission"
    """`growth`: layers make room for the growth of running requests alone; `admission`: also for
    waiting requests.
    """
    lend_percent: float = Field(default=75, ge=0, le=100)
    """With `serve: growth`: upper limit for waiting requests, in per cent of all KV memory that
    tenants can lend each other. The rest is for the growth of running requests.
    """
    tbt_ms: PositiveFloat | None = None
    """Target time between tokens in milliseconds: while a model's decode step computes for longer,
    its waiting requests get no memory beyond its share.
    """
    favour: Literal["latency", "throughput"] = "latency"
    """Memory that new requests leave free while layers of their model (in turns: of any model) are
    away.

    `latency`: at once the growth of running requests in twice `lookahead_steps`, in turns all that
    they ask for, in both cases at least half of their expected growth; in turns that drain instead,
    while all of them grow, a quarter of the memory of layers. Few requests are preempted.
    `throughput`: their growth in half of `lookahead_steps`.
    """
    max_percent: float = Field(default=95, ge=0, le=100)
    """Most of a model's layers that may be given away, in per cent (the remapping percentage)."""
    experts: bool = False
    """True if an active mixture-of-experts model may give away experts that it rarely routes to."""
    rest_s: float = Field(default=30, ge=0, le=1e6)
    """Spatial sharing: idle seconds after which, at the latest, a model lends more layers than it
    can stream without slowing the decode of a single request.
    """
    headroom_extents: Whole = 2
    """Free extents that an engine requests ahead of need (the low-water mark)."""
    lookahead_steps: Whole = 16
    """Decode steps of the running requests whose KV blocks an engine requests in advance, beside
    `headroom_extents`.
    """
    slack_extents: Whole = 4
    """Free extents above which an engine hands memory back (the high-water mark)."""
    hysteresis_s: float = Field(default=0.5, ge=0, le=1e6)
    """Seconds for which an engine must hold surplus memory before it hands it back."""


class Traffic(Strict):
    """Distribution of a trace's requests over tenants (seeded; see docs/replaying.md).

    Trace time is cut into phases of `phase_s`; in each, one tenant, drawn in seeded order, is hot
    and gets `hot_share` of the requests; the others share the rest by their weights.
    """

    phase_s: float = Field(default=20.0, ge=1e-3)
    hot_share: float = Field(default=0.8, ge=0, le=1)
    weights: dict[str, Weight] = Field(default_factory=dict)


class Replay(Strict):
    """Defaults of ``mirage replay``; its options override them."""

    trace: str | dict[str, str] = "sample"
    """Value of ``--trace``, or one for each tenant; files are relative to the configuration file's
    folder.
    """
    window: Annotated[tuple[float, float] | None, Field(strict=False)] = None
    time_scale: PositiveFloat = 1.0
    load: PositiveFloat | None = Field(default=None, le=100)
    """Part of the machine's measured capacity to which the gaps between requests are scaled; None:
    they are not.
    """
    think_s: float | None = Field(default=None, ge=0, le=1e6)
    """Least seconds from an answer to the next turn of its session; None: turns do not wait for
    answers.
    """
    length_scale: PositiveFloat = 1.0
    seed: int = 0
    traffic: Traffic = Traffic()
    request_timeout_s: PositiveFloat = 300.0

    @model_validator(mode="after")
    def _window_has_a_length(self) -> Replay:
        if self.window is not None and not 0 <= self.window[0] < self.window[1]:
            raise ValueError(
                f"window {list(self.window)}: write [START, END] in seconds, as [0, 60]"
            )
        return self

    @model_validator(mode="after")
    def _gaps_are_scaled_once(self) -> Replay:
        if self.load is not None and "time_scale" in self.model_fields_set:
            raise ValueError("load and time_scale: both scale the gaps, write one")
        return self


class HostTier(Strict):
    """Host memory for KV blocks of all tenants, below the device (docs/tiers.md)."""

    bytes: Bytes
    policy: Literal["lru", "arc"] = "lru"
    """Order in which a tenant's own blocks are evicted."""


class Peer(Strict):
    """Peer: memory that one other device lends; written as a size alone on a host."""

    bytes: Bytes
    device: int | None = Field(default=None, ge=0)
    """Index of the GPU, counted as `device.index` is; None on a host, whose memory stands in for a
    GPU.
    """


def parse_peer(value: Any) -> Any:
    """Peer as a mapping: a size alone, ``2GiB``, becomes ``{bytes: 2GiB}``."""
    return value if isinstance(value, (dict, Peer)) else {"bytes": value}


class PeerTier(Strict):
    """Idle memory of other devices for KV blocks, above host memory (docs/tiers.md)."""

    devices: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")],
        Annotated[Peer, BeforeValidator(parse_peer)],
    ] = Field(min_length=1)
    """Peers by name, each with the most bytes that it lends."""
    link_gb_s: float | None = Field(default=None, gt=0, le=1e6)
    """Host only: imitate a link of so many GB (1e9 bytes) a second; None copies at full speed."""
    backed: bool = True
    """True if content that a peer wants back is copied to host memory first; if False, it is
    dropped.
    """
    experts: bool = True
    """True if peers also keep copies of experts that were given away (`remap.experts`)."""

    @property
    def bytes_per_s(self) -> float | None:
        """Speed of the imitated link in bytes a second; None if no link is imitated."""
        return None if self.link_gb_s is None else self.link_gb_s * 1e9

    @property
    def bytes(self) -> int:
        """Bytes of all peers."""
        return sum(self.lent.values())

    @property
    def lent(self) -> dict[str, int]:
        """Bytes that each peer lends at most, by its name."""
        return {name: peer.bytes for name, peer in self.devices.items()}

    @property
    def gpus(self) -> dict[str, int]:
        """Index of each peer that is a GPU, by its name."""
        found = {name: peer.device for name, peer in self.devices.items()}
        return {name: device for name, device in found.items() if device is not None}


class SsdTier(Strict):
    """A folder on a disk for KV blocks that the host pool has no room for (docs/tiers.md)."""

    directory: FilePath
    """Folder of the blocks. In the file it is relative to the file's folder; `load` makes it
    absolute.
    """
    bytes: Bytes
    keep: bool = False
    """True if blocks outlive a restart of the server."""
    save_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """With `keep`: most seconds that a stopping server spends on writing blocks that are in host
    memory alone.
    """


class TiersSection(Strict):
    """Tiers: memory for KV blocks that the device has no room for."""

    host: HostTier | None = None
    peer: PeerTier | None = None
    ssd: SsdTier | None = None

    @model_validator(mode="after")
    def _peers_are_above_host_memory(self) -> TiersSection:
        if self.peer is not None and self.host is None:
            raise ValueError("peer needs a host pool below it: set tiers.host.bytes as well")
        return self

    @model_validator(mode="after")
    def _a_disk_is_reached_through_host_memory(self) -> TiersSection:
        if self.ssd is not None and self.host is None:
            raise ValueError("ssd needs a host pool above it: set tiers.host.bytes as well")
        return self


def _check_peers(peer: PeerTier, device: DeviceSection) -> None:
    """Raises `ValueError` unless the peers of a GPU are other GPUs, and those of a host its
    memory.
    """
    if device.kind == "host":
        for name, gpu in peer.gpus.items():
            raise ValueError(f"tiers.peer.devices.{name}.device is {gpu}: leave it out on a host")
        return
    if peer.link_gb_s is not None:
        raise ValueError("tiers.peer.link_gb_s imitates a link: leave it out on a GPU")
    taken = {device.index: "device.index"}
    for name, one in peer.devices.items():
        if one.device is None:
            raise ValueError(
                f"tiers.peer.devices.{name} names no GPU: write {{device: 1, bytes: 2GiB}}"
            )
        if one.device in taken:
            raise ValueError(
                f"tiers.peer.devices.{name}.device is {one.device}, as {taken[one.device]} is: "
                "name another GPU"
            )
        taken[one.device] = f"tiers.peer.devices.{name}.device"


class KeeperSection(Strict):
    """Host memory for weights of tenants without an engine (docs/roster.md)."""

    idle_bytes: (
        Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=LARGEST_BYTES)] | None
    ) = None
    """Most bytes of weights that no engine uses. None: half of the memory that the machine or the
    control group has beside the device and the tiers.
    """


class WeightsSection(Strict):
    """Store of weights on this machine, and servers from which it gets weights that it lacks
    (docs/fetching.md).
    """

    store: FilePath | None = None
    """Folder of the store; None: ``mirage/weights`` in the cache of this user."""
    sources: list[Annotated[str, Field(pattern=r"^https?://[^/\s]+/?$")]] = Field(
        default_factory=list
    )
    """Addresses of servers of weights that are asked for weights that the store lacks."""
    secret: FilePath | None = None
    """File with the secret that sources require; None derives it from the secret of this machine's
    node."""
    ahead: bool = True
    """With several machines: True if each brings the weights of all models in advance, False if it
    brings those of a model when the model goes there.
    """

    @field_serializer("store", "secret")
    def _as_text(self, path: Path | None) -> str | None:
        return None if path is None else str(path)


class TlsSection(Strict):
    """PEM files with which the address speaks TLS; `load` makes their paths absolute.

    Symbolic links are kept, because a renewed certificate is often a link that changed.
    """

    certificate: FilePath
    """The certificate, followed by the intermediate ones up to its root."""
    key: FilePath

    @field_serializer("certificate", "key")
    def _as_text(self, path: Path) -> str:
        return str(path)


class HttpSection(Strict):
    """Limits of one client at the address of all models (docs/clients.md)."""

    head_s: PositiveFloat = Field(default=10.0, le=1e6)
    """Seconds in which the head of a request must be complete, from its first byte; for a
    connection's first request, from the connection's begin.
    """
    body_s: PositiveFloat = Field(default=30.0, le=1e6)
    """Seconds in which a body must be complete, beside the time that `body_rate` adds."""
    body_rate: Bytes = 64 * KIB
    """Bytes of a body, as received, that extend `body_s` by one second."""
    idle_s: PositiveFloat = Field(default=75.0, le=1e6)
    """Seconds for which an idle connection is kept for its next request."""
    body_bytes: Bytes = 256 * MIB
    """Most bytes of the bodies of all requests that are not answered yet."""
    connections: Count = 8192
    connections_per_peer: Count = 4096
    """Most connections from one address, which may be a load balancer's."""
    stream_quiet_s: Annotated[
        Annotated[float, Field(gt=0, le=1e6)] | None, BeforeValidator(parse_span)
    ] = 15.0
    """Seconds without a byte after which a stream of events gets a comment; None: no comments are
    sent.
    """

    drain_delay_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Seconds for which a stopping server still accepts requests while ``/ready`` reports the stop,
    so that a load balancer which asks now and then notices it.
    """
    drain_s: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Seconds after `drain_delay_s` in which running requests may still end by themselves."""
    cors: list[Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s*]+)$")]] = Field(
        default_factory=list
    )
    """Origins whose pages may send requests to the models; ``*`` is any."""
    tls: TlsSection | None = None
    """Files for TLS; None: plain HTTP."""

    @model_validator(mode="after")
    def _one_body_fits(self) -> HttpSection:
        if self.body_bytes < LARGEST_BODY:
            raise ValueError(
                f"body_bytes is {self.body_bytes}, and one body may have {LARGEST_BODY}: "
                f"use {LARGEST_BODY // MIB}MiB or more"
            )
        return self


class Config(Strict):
    """One configuration file: the device, its tenants, how they share it, what to replay."""

    INSTEAD: ClassVar = {"models": "use tenants, with an entry for each model"}

    device: DeviceSection
    tenants: list[TenantSection]
    sharing: SharingSection = SharingSection()
    remap: Remap = Remap()
    roster: RosterSection = RosterSection()
    tiers: TiersSection = TiersSection()
    keeper: KeeperSection = KeeperSection()
    weights: WeightsSection = WeightsSection()
    http: HttpSection = HttpSection()
    replay: Replay = Replay()
    policy: Annotated[Policy, Field(strict=False)] = Policy.MIRAGE
    hang_s: float = Field(default=HANG_S, ge=LEAST_HANG_S, le=1e6)
    """Seconds without a sign of life, or without progress, after which an engine is ended."""
    warm_starts: bool | Literal["auto"] = "auto"
    """True if engines start as forks of a process that has imported vLLM; ``auto``: on a host they
    do.
    """
    lease_s: float = Field(default=LEASE_S, ge=0, le=1e6)
    """Seconds for which engines go on after their server was killed, unless another server takes
    them over.
    """
    adapter_folders: list[FilePath] = Field(default_factory=list)
    """Folders in which all folders of tenants' `adapters` must lie."""
    block_tokens: Count = 32
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"

    @model_validator(mode="before")
    @classmethod
    def _batches_as_large_as_the_device_bears(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if "devices" in data:
            raise ValueError("devices is for check, serve and fetch alone: here write one device")
        device, tenants = data.get("device"), data.get("tenants")
        on_gpu = isinstance(device, dict) and device.get("kind") == "cuda"
        if not on_gpu or not isinstance(tenants, list):
            return data
        return data | {"tenants": [ON_GPU | t if isinstance(t, dict) else t for t in tenants]}

    @model_validator(mode="after")
    def _tenants_fit_together(self) -> Config:
        if not self.tenants and not self.device.name:
            raise ValueError("tenants: found [], write 1 entry or more")
        names = [t.name for t in self.tenants]
        if twice := {n for n in names if names.count(n) > 1}:
            raise ValueError(f"tenant name {sorted(twice)[0]!r} is used twice: names must differ")
        _owners(self.tenants)
        if unknown := set(self.replay.traffic.weights) - set(names):
            raise ValueError(f"traffic weight for {sorted(unknown)[0]!r}: no such tenant")
        self._check_traces(names)
        return self

    @model_validator(mode="after")
    def _peers_are_devices_like_it(self) -> Config:
        if (peer := self.tiers.peer) is not None:
            _check_peers(peer, self.device)
        return self

    def _check_traces(self, names: list[str]) -> None:
        traces = self.replay.trace
        if not traces:
            raise ValueError("replay.trace is empty: name a trace, or one for each tenant")
        if isinstance(traces, str):
            return
        if unknown := set(traces) - set(names):
            known = ", ".join(names)
            raise ValueError(
                f"replay.trace for {sorted(unknown)[0]!r}: no such tenant, choose from {known}"
            )
        if unnamed := [name for name, file in traces.items() if not file]:
            raise ValueError(f"replay.trace for {unnamed[0]!r} is empty: name a file")

    @property
    def names(self) -> dict[str, str]:
        """Owner in words (``tenant 'a'``) of each name and alias that requests may use, without
        adapters.
        """
        return _owners(self.tenants)

    @property
    def rostered(self) -> bool:
        """True if tenants come and go: a key of the roster is written, or the shares exceed the
        device.
        """
        if "roster" in self.model_fields_set or any(t.comes_and_goes for t in self.tenants):
            return True
        return sum(t.percent for t in self.tenants) > 100 + 1e-9

    @property
    def host_tier(self) -> HostTier | None:
        """The host pool that is served: None with policy `static`, whose engines are as vLLM has
        them.
        """
        return None if self.policy is Policy.STATIC else self.tiers.host

    def max_percent(self, tenant: TenantSection) -> float:
        """Most of a tenant's layers that may be given away."""
        own = tenant.max_percent
        return self.remap.max_percent if own is None else own

    @property
    def starts_warm(self) -> bool:
        """True if engines start as forks of a process that has imported vLLM."""
        return self.device.kind == "host" if self.warm_starts == "auto" else self.warm_starts

    def keeps_weights(self, tenant: TenantSection) -> bool:
        """True if a tenant's weights may stay in host memory after its engine has ended.

        Layers that never move have no copy in host memory.
        """
        moves = self.policy is Policy.MIRAGE and self.max_percent(tenant) > 0
        return moves and tenant.keep_weights == "host"

    def tenant(self, name: str) -> TenantSection:
        """Tenant of that name. Raises `KeyError` if there is none."""
        return next((t for t in self.tenants if t.name == name), None) or _no_tenant(name)


def _owners(tenants: list[TenantSection]) -> dict[str, str]:
    """Owner in words of each tenant's name and alias. Raises `ValueError` for a name with two
    owners.
    """
    owners = {tenant.name: f"tenant {tenant.name!r}" for tenant in tenants}
    for tenant in tenants:
        for alias in tenant.aliases:
            if alias in owners:
                raise ValueError(
                    f"alias {alias!r} of tenant {tenant.name!r} is the name of {owners[alias]}: "
                    "names must differ"
                )
            owners[alias] = f"an alias of tenant {tenant.name!r}"
    return owners


def _no_tenant(name: str) -> TenantSection:
    raise KeyError(name)


def load(path: Path) -> Config:
    """Read and check one file. Paths in it are relative to the file's folder.

    Raises `ConfigError` with one line: what is wrong, with which value, what to do.
    """
    return made(read_yaml(path), path, path.parent)


def made(raw: dict[Any, Any], path: Path, here: Path) -> Config:
    """Configuration of `raw`, read from `path`; paths in it are relative to `here`. Raises
    `ConfigError`.
    """
    keys = {key: value for key, value in current(raw, path).items() if key != VERSION}
    config = validated(Config, keys, path)
    tenants = [_placed(tenant, here) for tenant in config.tenants]
    device = config.device
    if device.profile is not None and device.profile.endswith(HARDWARE_FILES):
        profile = str(resolved(here, device.profile))
        device = device.model_copy(update={"profile": profile})
    tiers = config.tiers
    if (ssd := tiers.ssd) is not None:
        ssd = ssd.model_copy(update={"directory": resolved(here, ssd.directory)})
        tiers = tiers.model_copy(update={"ssd": ssd})
    http = config.http
    if (tls := http.tls) is not None:
        files = {"certificate": tls.certificate, "key": tls.key}
        files = {name: (here / path).absolute() for name, path in files.items()}
        http = http.model_copy(update={"tls": tls.model_copy(update=files)})
    weights = config.weights
    named = {"store": weights.store, "secret": weights.secret}
    placed = {key: (here / path).absolute() for key, path in named.items() if path is not None}
    weights = weights.model_copy(update=placed)
    folders = [resolved(here, folder) for folder in config.adapter_folders]
    update = {"tenants": tenants, "device": device, "tiers": tiers, "http": http}
    update |= {"weights": weights}
    return config.model_copy(update=update | {"adapter_folders": folders})


def current(raw: dict[Any, Any], path: Path) -> dict[Any, Any]:
    """Content of a configuration in the keys of the newest version. Raises `ConfigError`."""
    try:
        return upgraded(raw)
    except UnknownVersionError as error:
        raise ConfigError(f"{path}: {error}") from None


def _placed(tenant: TenantSection, here: Path) -> TenantSection:
    adapters = {name: resolved(here, path) for name, path in tenant.adapters.items()}
    return tenant.model_copy(update={"model": _model(here, tenant.model), "adapters": adapters})


def _model(here: Path, written: Path) -> Path:
    """Absolute path of a model's folder. A name in the store, or one at a hub where no folder has
    that name, is returned as it is.
    """
    if str(written).startswith(STORED):
        return written
    place = resolved(here, written)
    return place if hub_name(str(written)) is None or place.exists() else written


def resolved(folder: Path, path: Path | str) -> Path:
    """Absolute path of `path` relative to `folder`, with symbolic links followed. Links that lead
    nowhere are allowed.

    Raises `ConfigError` for text that can be no path.
    """
    try:
        return Path(os.path.realpath(folder / path))
    except ValueError:
        raise ConfigError(f"{shown(str(path))} is no path: correct it") from None


def read_yaml(path: Path) -> dict[Any, Any]:
    """The mapping in one YAML file. Raises `ConfigError` with one line."""
    return parsed(read_text(path), path)


def parsed(text: str, path: Path | str) -> dict[Any, Any]:
    """The mapping in `text`, YAML or JSON, of the file at `path`. Raises `ConfigError`."""
    raw = parsed_value(text, path)
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected keys with values, found {shown(raw)}")
    return raw


def parsed_value(text: str, named: Path | str) -> Any:
    """Content of `text` in YAML; errors call it `named`. Raises `ConfigError`."""
    try:
        return yaml.load(text, Loader)  # a safe one
    except RecursionError:
        raise ConfigError(f"{named}: not read (its values are nested too deeply)") from None
    except (yaml.YAMLError, *ODD_VALUES) as error:
        told = " ".join(str(error).replace('"<unicode string>", ', "").split())
        raise ConfigError(f"{named}: not YAML ({told})") from None


ODD_VALUES = (ValueError, LookupError, AttributeError, TypeError, OverflowError)
"""Errors that PyYAML raises for values that do not fit their type: ``2024-13-45``, ``!!int x``."""


def read_text(path: Path) -> str:
    """The text of a file. Raises `ConfigError` if it cannot be read, or is longer than
    `LARGEST_FILE`.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at {error.start})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"{path}: more than {LARGEST_FILE} characters: name a configuration file")
    return text


def validated(schema: type[Schema], raw: dict[Any, Any], path: Path) -> Schema:
    """`raw` checked against `schema`. Raises `ConfigError` with one line."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_problem(error, raw, schema)}") from None
