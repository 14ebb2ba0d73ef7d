"""The file of an experiment: it is read, checked and normalised in this module alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from mirage import profiles
from mirage.config import (
    Config,
    ConfigError,
    Count,
    DeviceSection,
    FilePath,
    HostTier,
    Remap,
    SharingSection,
    Strict,
    TiersSection,
    Traffic,
    read_yaml,
    validated,
)
from mirage.config import TenantSection as Served
from mirage.control.rules import Rules
from mirage.control.targets import DoesNotFitError, base
from mirage.geometry import footprint
from mirage.profiles import Hardware, Model
from mirage.protocol import ModelShape
from mirage.simulate import variants
from mirage.simulate.coming import SimulatedRoster
from mirage.simulate.routing import RouterModel
from mirage.simulate.tier_settings import SimulatedTiers, speeds
from mirage.units import ceil_div
from mirage.workload.chosen import located
from mirage.workload.formats import registry
from mirage.workload.lengths import OF_TRACE, lengths
from scheduler.tenants import Tenant as Entitled

MOST_DRAWN = 10_000_000
LEAST_RATE = 1e-6


def _rate(value: float) -> float:
    if not LEAST_RATE <= value <= 10_000:
        raise ValueError(f"{value:g} requests a second: use {LEAST_RATE:g} to 10000")
    return value


Rate = Annotated[float, AfterValidator(_rate)]
"""Requests a second."""
TraceFormat = Annotated[str, AfterValidator(lambda name: registry.named(name).name)]


AUTO_SHARE = 0.0


class Silence(Strict):
    """Pause of a tenant: requests that would arrive from `from_s` on arrive `for_s` seconds
    later.
    """

    from_s: Annotated[float, Field(ge=0, le=1e6)]
    for_s: Annotated[float, Field(gt=0, le=1e6)]


class SimulatedTenant(Strict):
    """One model, its share of the device in per cent, and the rate of its requests."""

    name: str = Field(pattern=r"^[A-Za-z0-9._/-]+$")
    model: str
    share: float = Field(default=AUTO_SHARE, gt=0, le=100)
    """Per cent of the device. With a `roster` it may be left out, and is then the least with which
    all layers are in place; on several devices without one, see `fleet.shares.filled`."""
    rate: Rate | None = None
    """Requests a second; left out with a trace, which has the times and tenants of requests."""
    lengths: str | None = None
    """Distribution of its requests' lengths, instead of the workload's."""
    silence: Silence | None = None
    """Pause in which the tenant receives no request."""
    priority: int = 0
    floor_layers: Count = 1
    max_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    """Overrides `remap.max_percent` for this tenant."""
    max_cost_ms: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Most milliseconds that waiting for layers may add to each of the tenant's tokens on average;
    above that it gives no more layers.
    """
    max_num_seqs: Count | None = None
    """Overrides `limits.max_num_seqs` for this tenant; the next two keys override theirs
    likewise.
    """
    max_num_batched_tokens: Count | None = None
    max_model_len: Count | None = None


class Peak(Strict):
    """The first `requests` requests, over all tenants, arrive at `factor` times the rates.

    Only what happens after the arrival of the last of them is measured.
    """

    requests: Count
    factor: Annotated[float, Field(ge=0.01, le=1000)]


class Workload(Strict):
    """Requests to the engines.

    `bursty` and `poisson` arrivals are drawn at each tenant's rate; `trace` takes times and lengths
    from a trace's file; `windows` takes the gaps between rows of such a file, for each tenant from
    a row that the seed draws, and scales them to the tenant's rate.
    """

    arrivals: Literal["bursty", "poisson", "trace", "windows"] = "bursty"
    file: FilePath | None = None
    files: dict[str, FilePath] = Field(default_factory=dict)
    """Trace of each tenant, instead of one file that is dealt to all."""
    window: Annotated[tuple[float, float] | None, Field(strict=False)] = None
    """Start and end of the part of each trace that is used, in seconds by the trace's arrivals; the
    whole trace if left out.
    """
    trace_format: TraceFormat | None = None
    """Format of the file, for files whose beginning does not tell it."""
    rate: Rate | None = None
    """Requests a second of the whole file. For a file without arrival times, they are drawn by the
    seed at this rate; for a whole trace that has them, its gaps are scaled to it.
    """
    requests: Count | None = None
    """Number of requests over all tenants; for a trace all rows if left out."""
    lengths: str = "sharegpt"
    """A name in `configs/lengths.yaml`, or `trace` with windows; with a whole trace its own lengths
    are used.
    """
    traffic: Traffic = Traffic()
    """Distribution of a trace's rows over tenants."""
    time_scale: PositiveFloat = 1.0
    peak: Peak | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Workload:
        if self.files and (self.arrivals != "trace" or self.file or self.rate is not None):
            raise ValueError(
                "files works only with arrivals: trace, without file and rate: leave some out"
            )
        if self.window is not None and not 0 <= self.window[0] < self.window[1]:
            raise ValueError("window ends before it starts: write [START, END] in seconds")
        if self.window is not None and (self.arrivals != "trace" or self.rate is not None):
            raise ValueError("window works only with arrivals: trace, without rate: leave one out")
        if self.arrivals in ("trace", "windows") and self.file is None and not self.files:
            raise ValueError(f"arrivals {self.arrivals!r} need a file: name a trace")
        if self.arrivals in ("bursty", "poisson") and self.file is not None:
            raise ValueError(
                "file works only with arrivals: trace or windows: write that, or leave it out"
            )
        for key in ("trace_format", "rate"):
            if not (self.file or self.files) and getattr(self, key) is not None:
                raise ValueError(
                    f"{key} works only with a file of a trace: name one, or leave it out"
                )
        if self.arrivals == "trace" and self.peak is not None:
            raise ValueError(
                "peak works only with drawn arrivals, because a trace has its own: leave it out"
            )
        self._check_idle_keys()
        if self.arrivals != "trace":
            self._check_number()
        return self

    def check_tenants(self, names: Iterable[str]) -> None:
        """Raises `ConfigError` if a key names a tenant that is not in `names`."""
        for what, named in (("traffic weight for", self.traffic.weights), ("file for", self.files)):
            if unknown := sorted(set(named) - set(names)):
                raise ConfigError(f"{what} {unknown[0]!r}: no such tenant")

    def _check_idle_keys(self) -> None:
        """Raises `ValueError` for a key that has no effect with these arrivals."""
        of_trace = self.arrivals == "trace"
        idle = {"lengths"} if of_trace else {"traffic", "time_scale"}
        if written := sorted(idle & self.model_fields_set):
            why = "a trace has its own" if of_trace else "only a whole trace has it"
            raise ValueError(f"{written[0]} changes nothing here, because {why}: leave it out")

    def _check_number(self) -> None:
        if self.requests is None:
            raise ValueError("requests is missing: say how many there shall be")
        if self.requests > MOST_DRAWN:
            raise ValueError(
                f"requests {self.requests}: at most {MOST_DRAWN} are drawn; stream a trace instead"
            )
        if self.peak is not None and self.peak.requests >= self.requests:
            raise ValueError(
                f"peak.requests {self.peak.requests} leaves none of the {self.requests} requests "
                "to measure: lower it"
            )


class EngineLimits(Strict):
    """Limits of each engine, by vLLM's names."""

    max_num_seqs: Count = 1024
    max_num_batched_tokens: Count = 2048
    max_model_len: Count | None = None
    """Tokens of a request at most; the model's own limit if left out."""
    block_tokens: Count = 16


class SimulatedSharing(SharingSection):
    """Way in which engines share the GPU; `isolated` also separates their memory, as MIG does."""

    isolated: bool = False
    """Spatial sharing: each tenant has its share of memory, bandwidth, compute and link to
    itself.
    """

    @model_validator(mode="after")
    def _walls_need_space(self) -> SimulatedSharing:
        if self.isolated and self.mode == "temporal":
            raise ValueError("isolated works only with mode: spatial: leave it out, or change mode")
        return self


class Experiment(Strict):
    """One file: the machine, its models, their requests, and the policies to compare."""

    title: str
    hardware: str = "gh200"
    step_overhead_ms: Annotated[float, Field(ge=0)] | None = None
    message_ms: Annotated[float, Field(ge=0)] | None = None
    memory_gib: PositiveFloat | None = None
    """GiB of device memory, instead of the hardware's."""
    link_gb_s: PositiveFloat | None = None
    """GB/s of the link in each direction, instead of the hardware's, while one direction is used,
    and without `link_mixed_gb_s` also while both are.
    """
    link_mixed_gb_s: PositiveFloat | None = None
    """GB/s in each direction while both are used, instead of the hardware's."""
    tenants: list[SimulatedTenant] = Field(min_length=1)
    sharing: SimulatedSharing = SimulatedSharing()
    roster: SimulatedRoster | None = None
    """Roster: shares may add up to more than the device, and models wake and start on request."""
    workload: Workload
    limits: EngineLimits = EngineLimits()
    prefix_cache: bool = False
    """True if engines keep blocks of finished requests for prompts with the same beginning. Under
    policies that use tiers they always do.
    """
    tiers: SimulatedTiers | None = None
    """Memory below the device, for the policies that use it."""
    remap: Remap = Remap()
    routing: RouterModel | None = None
    """Preferences of routers for some experts, for policies that give experts away."""
    policies: list[str] = Field(default_factory=lambda: ["mirage"])
    report_s: Annotated[float, Field(ge=1e-6, le=1e6)] = 0.2
    """Seconds between two reports of a busy engine to the controller."""
    layer_sets: Literal["nested", "even"] = "nested"
    pipeline: Literal["even", "layers"] = "even"
    """Model of a step with streamed layers: ``even`` assumes that they are evenly spaced,
    ``layers`` takes the layers of the set.
    """
    kv_blocks: Literal["dense", "scattered"] = "dense"
    """Layout of the blocks in use, which decides how many extents can be given back."""
    layer_parts: Count = 1
    """Number of parts of a layer that move independently."""

    def tenant(self, name: str) -> SimulatedTenant:
        """The tenant of that name."""
        return next(t for t in self.tenants if t.name == name)

    def max_len(self, tenant: str, model: Model) -> int:
        """Most tokens of a request to this tenant of `model`, prompt and output together."""
        own = self.tenant(tenant).max_model_len
        return min(own or self.limits.max_model_len or model.max_len, model.max_len)


Asked = TypeVar("Asked", bound=Experiment)


class Setup:
    """A checked experiment with its profiles: all that a run needs."""

    def __init__(
        self,
        experiment: Experiment,
        near: Path | None = None,
        hardware: Hardware | None = None,
        models: Mapping[str, Model] | None = None,
        known: Mapping[str, variants.Variant] = variants.VARIANTS,
    ) -> None:
        """Check the experiment. `hardware`, and `models` by tenant, replace those that it names.
        Profiles that it names by path are relative to `near`.

        Its policies are names in `known`. Raises `ConfigError` if the experiment names an unknown
        policy, model or hardware, or cannot be simulated.
        """
        self.experiment = experiment
        self.near = near or Path()
        hardware = hardware or profiles.hardware(experiment.hardware, near)
        self.hardware = overridden(hardware, experiment)
        self.models = models or {t.name: profiles.model(t.model, near) for t in experiment.tenants}
        self.known = known
        self.variants = variants.compared(experiment.policies, known)
        self._check_tiers()
        self.speeds = speeds(experiment.tiers, self.hardware)
        """Speeds of the tiers below the device, by medium."""
        self.total_share = sum(t.share for t in experiment.tenants)
        if experiment.roster is not None:
            self.total_share = 100.0
            self._check_roster()
        self._check_tenants()
        self.shapes = {t.name: self._shape(t) for t in experiment.tenants}
        if experiment.roster is not None:
            tenants = [self._with_share(t) for t in experiment.tenants]
            self.experiment = experiment = experiment.model_copy(update={"tenants": tenants})
        for tenant in experiment.tenants:
            self._check_fit(tenant)
        self._check_experts()

    def comparing(self, policies: list[str]) -> Setup:
        """A copy of this set-up with other policies, and with the hardware and models that its file
        names. Raises `ConfigError` for a policy that is unknown or cannot be simulated here.
        """
        changed = self.experiment.model_copy(update={"policies": policies})
        return Setup(changed, self.near, known=self.known)

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the tenants share: the sum of their shares, or with a roster
        the whole device.
        """
        return int(self.hardware.memory_bytes * self.total_share / 100)

    def share(self, tenant: str) -> float:
        """Share of a tenant, in per cent of the whole device."""
        return self.tenant(tenant).share

    def max_len(self, tenant: str) -> int:
        """Most tokens of a request to this tenant, prompt and output together."""
        return self.experiment.max_len(tenant, self.models[tenant])

    def tenant(self, name: str) -> SimulatedTenant:
        """The tenant of that name."""
        return self.experiment.tenant(name)

    def config(self, variant: variants.Variant, only: str | None = None) -> Config:
        """Configuration for the deciding code; with `only`, of one tenant and its isolated
        memory.
        """
        chosen = [t for t in self.experiment.tenants if only in (None, t.name)]
        total = sum(t.share for t in chosen)
        memory = int(self.hardware.memory_bytes * total / 100)
        return Config(
            device=DeviceSection(memory=memory, page=self.hardware.page_bytes),
            tenants=[_served(t, total) for t in chosen],
            sharing=SharingSection.model_validate(
                self.experiment.sharing.model_dump(exclude={"isolated"})
            ),
            policy=variant.policy,
            block_tokens=self.experiment.limits.block_tokens,
            tiers=self._served_tiers(variant),
        )

    def served(self, name: str) -> Served:
        """A tenant of an experiment with a roster, in the form of the deciding code."""
        return _served(self.tenant(name), self.total_share)

    def _served_tiers(self, variant: variants.Variant) -> TiersSection:
        """Tiers in the deciding code's configuration: the host pool if the experiment spills to
        it.
        """
        tiers = self.experiment.tiers
        if not variant.tiers or tiers is None or not tiers.spill:
            return TiersSection()
        host = tiers.host
        if host is None or not host.bytes:
            return TiersSection()
        return TiersSection(host=HostTier(bytes=host.bytes, policy=host.policy))

    def variant(self, name: str) -> variants.Variant:
        """The policy of that name. Raises `ConfigError` for one that is not known."""
        return variants.variant(name, self.known)

    def rules(self, variant: variants.Variant) -> Rules:
        """Rules of the deciding code under this variant."""
        return variant.rules(self.experiment.remap)

    def _shape(self, tenant: SimulatedTenant) -> ModelShape:
        limits = self.experiment.limits
        isolated = self.experiment.sharing.isolated
        device = int(self.hardware.memory_bytes * tenant.share / 100)
        return profiles.shape(
            self.models[tenant.name],
            self.hardware,
            limits.block_tokens,
            self.max_len(tenant.name),
            device if isolated else self.device_bytes,
            self.experiment.layer_parts,
        )

    def _with_share(self, tenant: SimulatedTenant) -> SimulatedTenant:
        if tenant.share != AUTO_SHARE:
            return tenant
        shape = self.shapes[tenant.name]
        millionths = ceil_div(footprint(shape, 0, shape.min_extents) * 10**8, self.device_bytes)
        return tenant.model_copy(update={"share": millionths / 1e6})

    def _check_roster(self) -> None:
        asked = self.experiment
        others = asked.sharing.mode == "temporal" or asked.sharing.isolated
        if others or asked.prefix_cache or asked.tiers is not None:
            raise ConfigError(
                "roster is simulated for models that run at once and keep no prefixes: leave out "
                "sharing, prefix_cache and tiers"
            )

    def _check_tiers(self) -> None:
        uses = [variant.name for variant in self.variants if variant.tiers]
        if uses and self.experiment.tiers is None:
            raise ConfigError(f"policy {uses[0]!r} needs tiers: write tiers.host.bytes")

    def _check_experts(self) -> None:
        gives = [variant.name for variant in self.variants if variant.changes.get("experts")]
        if not gives:
            return
        if not any(shape.movable_experts for shape in self.shapes.values()):
            raise ConfigError(f"policy {gives[0]!r} gives experts, {self._why_they_stay()}")
        if self.experiment.routing is None:
            raise ConfigError(
                f"policy {gives[0]!r} needs to know how experts are used: write routing.skew, "
                "0 for all alike"
            )

    def _why_they_stay(self) -> str:
        for name, model in self.models.items():
            why = model.expert_facts.stay(self.hardware.page_bytes)
            if model.experts > 1:
                return f"and those of {name!r} stay: {why or 'layers move in parts'}"
        return "and no tenant's model has any: name a mixture, or another policy"

    def _check_tenants(self) -> None:
        names = [t.name for t in self.experiment.tenants]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ConfigError(f"tenant name {twice[0]!r} is used twice: names must differ")
        if self.total_share > 100 + 1e-9:
            raise ConfigError(
                f"shares add up to {self.total_share:g} %: lower them to 100 % or less"
            )
        for tenant in self.experiment.tenants:
            if tenant.share == AUTO_SHARE and self.experiment.roster is None:
                raise ConfigError(f"tenant {tenant.name!r} has no share: write per cent")
            self._check_lengths(tenant)
            self._check_rate(tenant)
            if tenant.floor_layers >= self.models[tenant.name].layers:
                raise ConfigError(
                    f"tenant {tenant.name!r}: floor_layers {tenant.floor_layers} of "
                    f"{self.models[tenant.name].layers} layers leaves none to give: lower it"
                )
        self.experiment.workload.check_tenants(names)

    def _check_rate(self, tenant: SimulatedTenant) -> None:
        if self.experiment.workload.arrivals != "trace":
            if tenant.rate is None:
                raise ConfigError(f"tenant {tenant.name!r} has no rate: write requests a second")
            return
        for key in ("rate", "lengths", "silence"):
            if getattr(tenant, key) is not None:
                raise ConfigError(
                    f"tenant {tenant.name!r}: {key} changes nothing, the trace brings its own: "
                    "leave it out, or stretch the trace by workload.time_scale"
                )

    def _check_lengths(self, tenant: SimulatedTenant) -> None:
        workload = self.experiment.workload
        name = tenant.lengths or workload.lengths
        if workload.arrivals == "trace" or (name == OF_TRACE and workload.arrivals == "windows"):
            return
        lengths(name)

    def _check_fit(self, tenant: SimulatedTenant) -> None:
        device = self.hardware.memory_bytes
        try:
            base(
                Entitled(tenant.name, tenant.share, tenant.priority, tenant.floor_layers),
                self.shapes[tenant.name],
                device,
            )
        except DoesNotFitError as error:
            raise ConfigError(str(error)) from None


def load(path: Path, known: Mapping[str, variants.Variant] = variants.VARIANTS) -> Setup:
    """Read and check one experiment, whose policies are names in `known`.

    Raises `ConfigError` if the file cannot be read, or the experiment cannot be simulated.
    """
    raw = read_yaml(path)
    if isinstance(raw, dict) and "decode" in raw:
        raise ConfigError(
            f"{path}: decode asks for a decoding batch: run python -m benchmarks.decode {path} in "
            "the checkout of MIRAGE"
        )
    experiment = with_traces(validated(Experiment, raw, path), path.parent)
    try:
        return Setup(experiment, path.parent, known=known)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def with_traces(experiment: Asked, near: Path) -> Asked:
    """Return the experiment with each trace replaced by its path, as `located` finds it. `near` is
    the experiment's folder, which relative paths are relative to.

    Raises `TraceError` for a public trace that was not fetched, and `InputRefused` for an unset
    variable or an unknown home in a path.
    """
    file, files = experiment.workload.file, experiment.workload.files
    update: dict[str, object] = {}
    if files:
        update["files"] = {name: located(str(each), near) for name, each in files.items()}
    if file is not None:
        update["file"] = located(str(file), near)
    workload = experiment.workload.model_copy(update=update)
    return experiment.model_copy(update={"workload": workload})


def overridden(hardware: Hardware, experiment: Experiment) -> Hardware:
    """The hardware profile with the values that the experiment overrides."""
    update = {}
    stated = "set by the experiment"
    for key in ("step_overhead_ms", "message_ms"):
        if (value := getattr(experiment, key)) is not None:
            update[key] = profiles.Sourced(value=value, source=stated)
    if experiment.memory_gib is not None:
        update["memory_gib"] = profiles.SourcedPositive(value=experiment.memory_gib, source=stated)
    if experiment.link_gb_s is not None:
        rate = profiles.SourcedPositive(value=experiment.link_gb_s, source=stated)
        update |= {"link_gb_s": rate, "link_mixed_gb_s": rate}
    if experiment.link_mixed_gb_s is not None:
        update["link_mixed_gb_s"] = profiles.SourcedPositive(
            value=experiment.link_mixed_gb_s, source=stated
        )
    return hardware.model_copy(update=update)


def _served(tenant: SimulatedTenant, total: float) -> Served:
    """A tenant in the form of the deciding code, with its share in per cent of `total`."""
    return Served(
        name=tenant.name,
        model=Path(tenant.model),
        share=min(100.0, tenant.share / total * 100),
        priority=tenant.priority,
        floor_layers=tenant.floor_layers,
        max_percent=tenant.max_percent,
        max_cost_ms=tenant.max_cost_ms,
    )
