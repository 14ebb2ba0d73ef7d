"""Everything of one engine that holds device memory, in one place.

The worker builds it while vLLM starts: `loaded` after the weights are,
`make_kv_buffer` when vLLM allocates its KV cache. The scheduler side then moves memory with
`move_layers`, `map_extents` and `unmap_extents`, always on the thread that holds the engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mirage.config import Policy
from mirage.control.reporting import LayerTimes
from mirage.control.token_cost import TokenCost
from mirage.engine import link
from mirage.engine.backend import make_backend
from mirage.engine.compiled import compiling, eagerly, stay_eager
from mirage.engine.fixed import fixed_bytes, models_of
from mirage.engine.kvbuffer import KVBuffer, counted_extent
from mirage.engine.mailbox import Mailbox
from mirage.engine.params import PlacedLayers
from mirage.engine.pieces import UnknownPieces, watched
from mirage.engine.proof import NoForward, Proof, UnsupportedModel, between, observed
from mirage.engine.settings import EngineSettings
from mirage.facts import KVGroups
from mirage.geometry import least_extents
from mirage.protocol import ModelShape
from mirage.streaming.experts import ExpertStreamer
from mirage.streaming.transfer import LayerStreamer
from mirage.tiers.client import PoolClient
from mirage.tiers.contract import Member, Pool
from mirage.units import ceil_div
from vmm.pages import PagePool

logger = logging.getLogger("mirage.engine.memory")

Step = Callable[[], Any]
WHOLE = "whole layers stream, no graph runs while one does, and nothing is compiled: %s"
NOT_COMPILED = "no step is compiled: %s"
FASTER_AS_WRITTEN = (
    "steps that vLLM was to compile run torch's own operators now: device.compile false gives this "
    "model vLLM's kernels"
)
AS_WRITTEN = "steps run as they are written"
UNLIMITED = 1 << 62


class EngineMemory:
    """Pages, layers and KV extents of this process, under its grant (bytes)."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.backend = make_backend(settings)
        self.driver = self.backend.driver
        self.pool = PagePool(self.driver, UNLIMITED)
        self.parameters = PlacedLayers(settings.moves, settings.experts_stay, split=settings.pieces)
        self.compute = self.backend.compute
        self.mailbox = Mailbox()
        self.streamer: LayerStreamer | None = None
        self.kv: KVBuffer | None = None
        self.fixed_bytes = 0
        self.layer_bytes = 0
        self.layer_load_s = 0.0
        self.token_cost = TokenCost()
        self.compiled = False
        """Whether steps are compiled, and proven to compute the same while layers stream."""
        self._moves = False
        """Whether layers are to be placed in the pool's pages."""
        self.kv_outlives_steps = False
        """Whether KV blocks are still worked on when a step's output is there."""
        self.warm = False
        """Whether steps are those of requests, and tell T_c."""
        self.tasks: tuple[str, ...] = ()
        """vLLM's names of what the model can do."""
        self.emptied: set[int] = set()
        """KV extents that no request had blocks of any more at some time since a step began."""
        self.planned = False
        """Whether a step was scheduled that has not been issued: vLLM names blocks by what it will
        compute."""

    @property
    def elastic(self) -> bool:
        """Whether KV memory may change at all."""
        return self.settings.policy is not Policy.STATIC

    # -- start-up, called by the worker -------------------------------------------------

    def loaded(self, runner: Any, forward: Step, profile: Step) -> None:
        """After loading: fix the layers' addresses (policy mirage) and note the sizes.

        `forward` computes the model once, `profile` as vLLM does to see what memory it takes.
        Raises `UnsupportedModel` if the model then computes something else.
        """
        with eagerly(runner.get_model()):
            self._loaded(runner, forward, profile)
        if self._moves and not self.pieces:
            _stay_eager(runner.get_model())

    def _loaded(self, runner: Any, forward: Step, profile: Step) -> None:
        self.parameters.loaded(runner.get_model())
        mirage = self.settings.policy is Policy.MIRAGE
        proof = self._proof(runner, forward) if mirage and not self.parameters.stays else None
        self._moves = proof is not None
        if mirage and not self._moves:
            logger.warning("the layers stay where they are: %s", self.parameters.stays)
        if proof and self.settings.pieces:
            self._find_pieces(profile)
        moving, device = self.parameters.moving(), runner.device.type
        self.fixed_bytes = fixed_bytes(models_of(runner), moving, device)
        self.layer_bytes = self.parameters.layer_bytes(self.settings.page)
        if self.elastic and self.settings.grant_bytes is not None:
            self.regrant(self.settings.grant_bytes)
        if proof:
            self._place_layers(proof)

    def _proof(self, runner: Any, forward: Step) -> Proof | None:
        """What the model computes now; None if that cannot be seen, and nothing moves then."""
        vocabulary = runner.model_config.get_vocab_size()
        model = runner.get_model()
        try:
            return Proof(partial(observed, model, forward, vocabulary), self.settings.tenant)
        except NoForward as error:
            self.parameters.stays = f"it cannot be computed without requests, {error}"
            return None

    def _find_pieces(self, profile: Step) -> None:
        """See what lies between attentions; else whole layers stream.

        Whatever stands in the way: a model that computes does not fail to start over it.
        """
        try:
            moving = self.parameters.moving()
            self.parameters.in_pieces(watched(self.parameters.layers, profile, moving))
        except UnknownPieces as error:
            logger.warning(WHOLE, error)
        except Exception as error:
            logger.warning(WHOLE, f"{type(error).__name__}: {error}", exc_info=True)

    def _place_layers(self, proof: Proof) -> None:
        self.streamer = self.parameters.place(
            self.backend, self.pool, chunk_bytes=self.settings.copy_chunk
        )
        self.prove(proof, self.streamer)
        self.parameters.left.clear()
        self.layer_load_s = self._measure_load(self.streamer)

    def prove(self, proof: Proof, streamer: LayerStreamer) -> None:
        """Raises `UnsupportedModel` unless the model computes the same wherever its layers are."""
        proof.moved(streamer, self.begin_step)

    def prove_compiled(self, runner: Any, forward: Step) -> None:
        """Compiled steps compute the same with layers streamed; else none is compiled.

        Called when vLLM has compiled the model, or will with the next step.
        """
        model = runner.get_model()
        if self.streamer is None or not compiling(model):
            return
        assert self.parameters.pieces is not None
        vocabulary = runner.model_config.get_vocab_size()
        observe = partial(between, self.parameters.pieces.attentions, model, forward, vocabulary)
        try:
            self.prove(Proof(observe, self.settings.tenant, AS_WRITTEN), self.streamer)
        except (NoForward, UnsupportedModel) as error:
            logger.warning(NOT_COMPILED, error)
            self.streamer.set(0, 0)
            if self.giver is not None:
                self.giver.forget()
            _stay_eager(model)
            return
        self.compiled = True
        logger.info("compiled steps are proven to compute the same while layers stream")

    def make_kv_buffer(self, config: Any) -> torch.Tensor:
        """The KV buffer of vLLM's KVCacheConfig, its base extents mapped."""
        if self.streamer is None:
            self.layer_load_s = link.load_s(self.driver, self.pool, self.layer_bytes)
        self.kv = KVBuffer(config, self.driver, self.pool)
        per_extent = self.kv.extents.blocks_per_extent
        base = ceil_div(self.settings.base_blocks, per_extent)
        # What vLLM made of the weights may be larger than what it was asked about beforehand.
        fitting = min(base, self.kv.extents.extents, self.affordable_extents())
        self.kv.extents.map(range(fitting))
        return self.kv.tensor()

    def shape(self, config: Any, kv: KVGroups) -> ModelShape:
        """What the control server needs to know about this engine."""
        blocks, nbytes = self._extent_geometry(config)
        return ModelShape(
            layers=len(self.parameters.layers),
            layer_bytes=self.layer_bytes,
            fixed_bytes=self.fixed_bytes,
            extent_bytes=nbytes,
            extent_blocks=blocks,
            block_tokens=min((group.block_tokens for group in kv.groups), default=1),
            max_extents=config.num_blocks // blocks if kv.groups else 0,
            min_extents=least_extents(kv.request_blocks, blocks),
            movable_layers=len(self.parameters.layers) if self.streamer else 0,
            **self._expert_shape(),
        )

    def _expert_shape(self) -> dict[str, int]:
        if self.giver is None:
            return {}
        layout = self.giver.layout
        return {
            "movable_experts": layout.most,
            "expert_layers": len(layout.layers),
            "expert_bytes": layout.nbytes,
        }

    def expert_counts(self) -> dict[str, int]:
        """What `Counters` has of experts."""
        if self.giver is None:
            return {}
        books = self.giver.residency
        return {
            "expert_hits": books.hits,
            "expert_loads": books.loads,
            "expert_bytes_loaded": self.giver.expert_bytes_loaded,
            "expert_peer_loads": self.giver.replicas_loaded,
        }

    def layer_times(self) -> LayerTimes:
        """T_T and T_c, and what is known of experts."""
        giver, token_s = self.giver, self.token_cost.token_s
        times = LayerTimes(self.layer_load_s, self.layer_compute_s, token_s=token_s)
        if giver is None:
            return times
        # Until one was loaded, as long as its part of a layer.
        part = giver.layout.nbytes / self.layer_bytes
        load_s = giver.load_s or self.layer_load_s * part
        return times._replace(expert_s=load_s, expert_routed=giver.observed())

    def _extent_geometry(self, config: Any) -> tuple[int, int]:
        """(blocks, bytes) of one extent. A static engine's blocks are only counted in them."""
        if self.kv is not None:
            return self.kv.extents.blocks_per_extent, self.kv.extents.extent_bytes
        if not config.kv_cache_tensors:
            return 1, self.settings.page
        return counted_extent(config, self.settings.page)

    def join_pool(self, member: Member) -> Pool:
        """The pool of KV blocks that the settings name."""
        assert self.settings.tier_socket is not None
        return PoolClient(Path(self.settings.tier_socket), member)

    # -- moving memory, called by the scheduler side ------------------------------------

    @property
    def alpha(self) -> int:
        """Layers whose memory was given away."""
        return self.streamer.alpha if self.streamer else 0

    @property
    def beta(self) -> int:
        """Slots that the streamed layers share."""
        return self.streamer.beta if self.streamer else 0

    @property
    def giver(self) -> ExpertStreamer | None:
        """The streamer, if it can give experts away as well."""
        return self.streamer if isinstance(self.streamer, ExpertStreamer) else None

    @property
    def experts(self) -> int:
        """Experts of each layer that were given away."""
        return self.giver.experts if self.giver else 0

    @property
    def streaming(self) -> bool:
        """Whether any layer is loaded step by step, or has not come back yet."""
        return self.streamer is not None and self.streamer.streaming

    @property
    def pieces(self) -> bool:
        """Whether pieces stream, so that graphs may run between attentions."""
        return self.parameters.pieces is not None

    @property
    def interrupted(self) -> bool:
        """True if this step stops in its middle: for layers, for experts, or to see the routing.

        No graph of a whole step may run then.
        """
        return self.streaming or (self.giver is not None and self.giver.looks)

    def begin_step(self) -> None:
        """The last piece reaches into the next step: it must be there before that begins."""
        if self.giver is not None:
            self.giver.begin()
        if self.pieces and self.streaming:
            assert self.streamer is not None
            self.streamer.before(len(self.streamer.layers) - 1)

    def left_blocks(self) -> Collection[int]:
        """Blocks of what was emptied, once: before a step tells the runner of new ones."""
        if self.kv is None or not self.emptied:
            return ()
        size = self.kv.extents.blocks_per_extent
        left = {n for e in self.emptied for n in range(e * size, (e + 1) * size)}
        self.emptied.clear()
        return left

    def move_layers(self, alpha: int, beta: int, experts: int = 0) -> None:
        """Change the streamed set, or the experts that are away, between steps.

        Raises `TransferError`, `GrantExceeded`.
        """
        assert self.streamer is not None, "only policy mirage moves layers"
        if self.giver is not None:
            self.giver.set(alpha, beta, experts)
        else:
            self.streamer.set(alpha, beta)

    def layer_pages(self, alpha: int, experts: int) -> int:
        """Pages of layers, slots and spare frames of experts; 0 if no layer moves."""
        if self.giver is not None:
            return self.giver.pages(alpha, experts)
        if self.streamer is None:
            return 0
        return (len(self.streamer.layers) - alpha) * self.streamer.frame_pages

    def affordable_extents(self) -> int:
        """Extents that could be mapped with the pages at hand."""
        if self.kv is None:
            return 0
        return self.pool.available * self.settings.page // self.kv.extents.extent_bytes

    def uncache(self) -> None:
        """Give the device what torch's allocator keeps and nobody uses. Between steps."""
        self.backend.uncache()

    def map_extents(self, extents: list[int]) -> list[int]:
        """Back and clear KV extents, the first that the device has memory for; those."""
        assert self.kv is not None
        return self.kv.extents.map_most(extents)

    def unmap_extents(self, extents: list[int]) -> None:
        """Take the memory of KV extents that no scheduled step touches.

        Unmapping does not wait for the device by itself. A step's output comes behind all that the
        step does to its blocks, unless `kv_outlives_steps`.
        """
        assert self.kv is not None
        if self.kv_outlives_steps:
            self.compute.synchronize()
        self.kv.extents.unmap(extents)

    @property
    def outside_bytes(self) -> int:
        """Device memory that is not the pool's: what never moves."""
        layers = len(self.parameters.layers) * self.layer_bytes
        return self.fixed_bytes + (0 if self._moves else layers)

    def regrant(self, grant_bytes: int) -> None:
        """A new grant for everything this engine holds."""
        self.pool.set_grant(max(0, grant_bytes - self.outside_bytes))

    def held_bytes(self, kv_extents: int, extent_bytes: int) -> int:
        """Device memory held now. Static engines hold vLLM's own allocations."""
        kv = self.pool.held_bytes if self.elastic else kv_extents * extent_bytes
        return self.outside_bytes + kv

    @contextmanager
    def timed_step(self, tokens: int) -> Iterator[None]:
        """Around one step of so many tokens, whose time becomes known then or later."""
        if not self.warm:
            yield
            return
        self.token_cost.begin(tokens)
        self.backend.compute_time.begin(self.alpha + self.beta)
        try:
            with self.backend.timed(self.stepped):
                yield
        except BaseException:
            self.token_cost.fail()
            self.backend.compute_time.fail()
            raise

    def stepped(self, compute_s: float) -> None:
        """Note the seconds of compute of the first step whose time was not known."""
        if self.giver is not None:
            compute_s = max(0.0, compute_s - self.giver.spent_s())
        self.token_cost.end(compute_s)
        self.backend.compute_time.end(compute_s)

    @property
    def layer_compute_s(self) -> float:
        """T_c: seconds of compute per layer and step; 0 while unknown."""
        return self.backend.compute_time.step_s / max(len(self.parameters.layers), 1)

    def self_check(self) -> None:
        """After each move, in O(1): the pages in use are the layers' and the KV cache's.

        Raises `RuntimeError`, which ends the engine: its memory could no longer be trusted.
        """
        layers = self.layer_pages(self.alpha, self.experts) * self.settings.page
        kv = 0
        if self.kv is not None:
            kv = len(self.kv.extents.mapped) * self.kv.extents.extent_bytes
        if self.pool.in_use_bytes != layers + kv:
            raise RuntimeError(
                f"{self.pool.in_use_bytes} bytes are in use, layers {layers} and KV cache {kv}"
            )

    def check_integrity(self) -> None:
        """Raise if pages, layers and extents do not add up."""
        self.pool.check_integrity()
        self.driver.check_integrity()
        if self.streamer is not None:
            self.streamer.check_integrity()
        if self.kv is not None:
            self.kv.extents.check_integrity()

    def _measure_load(self, streamer: LayerStreamer, rounds: int = 3) -> float:
        """T_T: seconds to load one layer from its master, on the copy stream.

        The least of `rounds`: engines that start beside this one can only make it longer.
        """
        times = []
        for layer in streamer.layers[:rounds]:
            start = time.perf_counter()
            streamer.load(layer)
            streamer.copies.synchronize()
            times.append(time.perf_counter() - start)
        return min(times)


def _stay_eager(model: torch.nn.Module) -> None:
    """vLLM chose its kernels when it built the model, believing that it would be compiled."""
    if compiling(model):
        logger.warning(FASTER_AS_WRITTEN)
    stay_eager(model)
