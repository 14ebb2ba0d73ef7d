"""Start of one engine: its layers are placed, and a proof shows that the model computes the same.

The worker calls it while vLLM starts: `loaded` after the weights are loaded, `make_kv_buffer` when
vLLM allocates its KV cache, `prove_compiled` before it warms up. `DeviceMemory` and `EngineTimes`
remain afterwards.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mirage.config import Policy
from mirage.engine import link
from mirage.engine.compiled import compiling, eagerly, stay_eager
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.engine_times import EngineTimes
from mirage.engine.fixed import fixed_bytes, models_of
from mirage.engine.keeping import Keeping
from mirage.engine.kvbuffer import KVBuffer
from mirage.engine.params import NOT_HOLLOW, HollowError, PlacedLayers
from mirage.engine.pieces import UnknownPieces, watched
from mirage.engine.proof import NoForward, Proof, UnsupportedModel, between, observed
from mirage.engine.proof_records import ProofRecord, ProvenBefore
from mirage.streaming.transfer import LayerStreamer
from mirage.units import ceil_div

logger = logging.getLogger("mirage.engine.startup")

Step = Callable[[], Any]
WHOLE = "whole layers stream, no graph runs while one does, and nothing is compiled: %s"
NOT_COMPILED = "no step is compiled: %s"
FASTER_AS_WRITTEN = (
    "steps that vLLM was to compile run torch's own operators now: device.compile false gives this "
    "model vLLM's kernels"
)
AS_WRITTEN = "steps run as they are written"


class StartUp:
    """Placement and proof of one engine's model. It is dropped once the engine is warm."""

    def __init__(self, memory: DeviceMemory, times: EngineTimes) -> None:
        self.memory, self.times, settings = memory, times, memory.settings
        self.settings = settings
        self.parameters = PlacedLayers(settings.moves, settings.experts_stay, split=settings.pieces)
        self.keeping = Keeping(settings.keeper, settings.tenant, self.parameters)
        self.proven = ProvenBefore(None)
        self._sizes: list[int] = []
        """Bytes of each layer that moves. Not changed if pieces move instead."""
        self.recalled = False
        """True if the proof of an earlier start was used."""

    # -- the weights --------------------------------------------------------------------

    def find_proof(self, vllm_config: Any) -> None:
        """Look for the record of an earlier start's proof, before the weights are read. If there is
        one for the same layers, `loaded` computes the model once instead of making the whole
        proof."""
        self.proven = ProvenBefore.of(vllm_config, self.settings)

    def loaded(self, runner: Any, forward: Step, profile: Step) -> None:
        """Place the layers after loading (policy mirage) and note the sizes.

        `forward` computes the model, once for each number of tokens of the proof; `profile` does as
        vLLM does to measure the memory that it takes. Raise `UnsupportedModel` if the model then
        computes something else, and `HollowError` if it is to start without memory for its layers
        and the keeper has no complete master.
        """
        with eagerly(runner.get_model()):
            self._loaded(runner, forward, profile)
        if self.memory.moves and not self.memory.pieces:
            _stay_eager(runner.get_model())

    def _loaded(self, runner: Any, forward: Step, profile: Step) -> None:
        parameters, settings = self.parameters, self.settings
        parameters.loaded(runner.get_model())
        mirage = settings.policy is Policy.MIRAGE
        proof = self._proof(runner, forward) if mirage and not parameters.stays else None
        if proof is None:
            self.keeping.close()
        if mirage and proof is None:
            logger.warning("the layers stay where they are: %s", parameters.stays)
        if proof and settings.pieces:
            self._find_pieces(profile)
        self._note_sizes(runner, moves=proof is not None)
        if settings.elastic and settings.grant_bytes is not None:
            self.memory.regrant(settings.grant_bytes)
        if proof:
            self._place_layers(proof)

    def _note_sizes(self, runner: Any, *, moves: bool) -> None:
        memory, moving = self.memory, self.parameters.moving()
        memory.moves, memory.layers = moves, len(self.parameters.layers)
        memory.fixed_bytes = fixed_bytes(models_of(runner), moving, runner.device.type)
        memory.layer_bytes = self.parameters.layer_bytes(self.settings.page)

    def _proof(self, runner: Any, forward: Step) -> Proof | ProofRecord | None:
        """Return a new proof, which has computed the model before its layers move, or the record of
        an earlier start's proof.

        None if the model cannot be computed without requests; then no layer moves.
        """
        self._sizes = self.parameters.unit_bytes()
        if (record := self.proven.found(self._sizes)) is not None:
            forward()  # in its first step vLLM may change a model
            self.recalled = True
            return record
        vocabulary = runner.model_config.get_vocab_size()
        model = runner.get_model()
        try:
            return Proof(partial(observed, model, forward, vocabulary), self.settings.tenant)
        except NoForward as error:
            self.parameters.stays = f"it cannot be computed without requests, {error}"
            return None

    def _find_pieces(self, profile: Step) -> None:
        """Find the pieces between attentions; if that fails, whole layers stream.

        No error here is passed on, so that a model that computes does not fail to start.
        """
        try:
            moving = self.parameters.moving()
            self.parameters.in_pieces(watched(self.parameters.layers, profile, moving))
            self.memory.pieces = True
        except UnknownPieces as error:
            logger.warning(WHOLE, error)
        except Exception as error:
            logger.warning(WHOLE, f"{type(error).__name__}: {error}", exc_info=True)

    def _place_layers(self, proof: Proof | ProofRecord) -> None:
        memory, hollow = self.memory, self.settings.layers_remapped > 0
        if hollow and not self.keeping.whole:
            raise HollowError(NOT_HOLLOW)
        place = self.parameters.place_hollow if hollow else self.parameters.place
        streamer = place(
            memory.backend,
            memory.pool,
            chunk_bytes=self.settings.copy_chunk,
            masters=self.keeping.masters,
        )
        memory.streamer, memory.masters = streamer, self.parameters.masters
        memory.kept = self.keeping
        if hollow:
            memory.move_layers(self.settings.layers_remapped, self.settings.stream_slots)
        if isinstance(proof, Proof):
            self.prove(proof, streamer)
        if isinstance(proof, Proof) and not hollow:
            self.proven.note(self._sizes)
        self.parameters.left.clear()
        if not hollow:  # else a copy would end up in another layer's place
            self.times.layer_load_s = measured_load_s(streamer)

    def prove(self, proof: Proof, streamer: LayerStreamer) -> None:
        """Raise `UnsupportedModel` unless the model computes the same wherever its layers are."""
        proof.moved(streamer, self.memory.begin_step)

    # -- what vLLM makes of them --------------------------------------------------------

    def make_kv_buffer(self, config: Any) -> torch.Tensor:
        """Return the KV buffer of vLLM's KVCacheConfig, with extents for `base_blocks` blocks
        mapped, or as many as the grant affords. If T_T is unknown, it is measured before."""
        memory = self.memory
        if not self.times.layer_load_s:
            self.times.layer_load_s = link.load_s(memory.driver, memory.pool, memory.layer_bytes)
        memory.kv = KVBuffer(config, memory.driver, memory.pool)
        extents = memory.kv.extents
        base = ceil_div(self.settings.base_blocks, extents.blocks_per_extent)
        # What vLLM made of the weights may be larger than what it was asked about beforehand.
        extents.map(range(min(base, extents.extents, memory.affordable_extents())))
        return memory.kv.tensor()

    def prove_compiled(self, runner: Any, forward: Step) -> None:
        """Prove that compiled steps compute the same with layers streamed as with layers resident;
        otherwise no step is compiled.

        It is called when vLLM has compiled the model, or will with the next step.
        """
        model, memory = runner.get_model(), self.memory
        if memory.streamer is None or not compiling(model):
            return
        assert self.parameters.pieces is not None
        vocabulary = runner.model_config.get_vocab_size()
        observe = partial(between, self.parameters.pieces.attentions, model, forward, vocabulary)
        streamer = memory.streamer
        given = streamer.layers_remapped, streamer.stream_slots
        try:
            self.prove(Proof(observe, self.settings.tenant, AS_WRITTEN), streamer)
        except (NoForward, UnsupportedModel) as error:
            logger.warning(NOT_COMPILED, error)
            streamer.set(*given)  # an engine that started hollow has no memory for more
            if memory.giver is not None:
                memory.giver.forget()
            _stay_eager(model)
            return
        memory.compiled = True
        logger.info("compiled steps are proven to compute the same while layers stream")


def measured_load_s(streamer: LayerStreamer, rounds: int = 3) -> float:
    """Return T_T: the seconds to load one layer from its master, on the copy stream.

    It is the least of `rounds` loads, because engines that start at the same time can only make it
    longer.
    """
    times = []
    for layer in streamer.layers[:rounds]:
        start = time.perf_counter()
        streamer.load(layer)
        streamer.copies.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def _stay_eager(model: torch.nn.Module) -> None:
    """Never compile the model, with a warning: vLLM chose its kernels for a model that is
    compiled."""
    if compiling(model):
        logger.warning(FASTER_AS_WRITTEN)
    stay_eager(model)
