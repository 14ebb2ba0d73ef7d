"""Child process: two steps in flight, as on a GPU, with memory taken back at every step.

python deferred.py MODELS OUT fence|nofence

Every step's forward runs only when its output is awaited, which is after the next step has
been scheduled. An extent unmapped as soon as it is empty is then still written by the step in
flight: a segmentation fault here, an illegal address on a GPU.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from pathlib import Path
from typing import Any

from tiny import VOCABULARY, make_llm, make_model, scheduler_of

from mirage.control.engine.fence import Fence

UNIVERSE, BASE = 256, 256


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, *args: Any) -> None:
        pass

    synchronize = wait = record


class _Stream:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        import torch

        self.device = torch.device("cpu")

    def wait_stream(self, *args: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


def schedule_asynchronously() -> None:
    """Let the CPU platform keep asynchronous scheduling (two steps in flight), with CUDA streams
    that do nothing.
    """
    import torch
    from vllm.platforms.cpu import CpuPlatform

    torch.cuda.Event, torch.cuda.Stream = _Event, _Stream
    torch.cuda.current_stream = lambda *args, **kwargs: _Stream()
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    original = CpuPlatform.check_and_update_config.__func__

    def patched(cls: Any, vllm_config: Any) -> None:
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(patched)


def defer_forwards() -> None:
    """Install a worker that computes each step only when its output is awaited."""
    from vllm.v1.outputs import AsyncModelRunnerOutput

    from mirage.engine.cpu_worker import MirageCPUWorker

    class Later(AsyncModelRunnerOutput):
        def __init__(self, run: Any) -> None:
            self.run = run

        def get_output(self) -> Any:
            return self.run()

        def get_kv_connector_output(self) -> None:
            """vLLM 0.33 calls this if a step fails."""

    class DeferredWorker(MirageCPUWorker):
        def execute_model(self, scheduler_output: Any) -> Any:
            if not scheduler_output.total_num_scheduled_tokens:
                return Later(lambda: MirageCPUWorker.execute_model(self, scheduler_output))
            self.pending = scheduler_output
            return None

        def sample_tokens(self, grammar: Any) -> Any:
            scheduler_output = self.pending

            def forward() -> Any:
                out = MirageCPUWorker.execute_model(self, scheduler_output)
                if out is None:
                    out = MirageCPUWorker.sample_tokens(self, grammar)
                return out.get_output() if isinstance(out, AsyncModelRunnerOutput) else out

            return Later(forward)

    vars(sys.modules["mirage.engine.cpu_worker"])["DeferredWorker"] = DeferredWorker


class NoFence(Fence):
    """Fence that counts every scheduled step as processed, so that extents are
    unmapped too early.
    """

    def passed(self, mark: int) -> bool:
        return True


class Squeeze:
    """Controller that after each step allots the extents in use and `spare` more, whatever the
    engine asks for.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.revision, self.unmapped = scheduler, 0, 0

    def __call__(self, spare: int) -> None:
        from mirage.protocol import Allotment

        scheduler = self.scheduler
        shape, book = scheduler.shape, scheduler.kv.blocks.book
        before = book.backed_extents()
        extents = min(book.busy_extents() + spare, shape.max_extents)
        self.revision += 1
        grant = shape.fixed_bytes + shape.layers * shape.layer_bytes + extents * shape.extent_bytes
        scheduler.mailbox.post(Allotment(self.revision, 0, 2, extents, grant))
        self.unmapped += max(0, before - book.backed_extents())


def requests(count: int) -> list[tuple[list[int], int, bool]]:
    """Drawn requests: (prompt, most tokens, True if a stop token may end it early)."""
    rng = random.Random(7)
    return [
        (
            [rng.randrange(4, VOCABULARY) for _ in range(rng.randrange(5, 150))],
            rng.randrange(5, 120),
            i % 3 == 0,
        )
        for i in range(count)
    ]


def serve(llm: Any, squeeze: Squeeze) -> dict[str, list[int]]:
    from vllm import SamplingParams

    engine, rng = llm.llm_engine, random.Random(11)
    todo = list(enumerate(requests(50)))
    done: dict[str, list[int]] = {}
    while todo or engine.has_unfinished_requests():
        while todo and rng.random() < 0.4:
            i, (tokens, most, stops) = todo.pop()
            params = SamplingParams(
                max_tokens=most, temperature=0, ignore_eos=True, detokenize=False
            )
            if stops:
                params.stop_token_ids = list(range(0, VOCABULARY, 16))
            engine.add_request(str(i), {"prompt_token_ids": tokens}, params)
        for out in engine.step():
            if out.finished:
                done[out.request_id.split("-")[0]] = list(out.outputs[0].token_ids)
        squeeze(spare=24)
    return done


if __name__ == "__main__":
    models, out, mode = sys.argv[1:]
    schedule_asynchronously()
    defer_forwards()
    llm = make_llm(
        make_model("llama", Path(models)),
        blocks=UNIVERSE,
        mirage={"base_blocks": BASE},
        worker_cls="mirage.engine.cpu_worker.DeferredWorker",
        enable_prefix_caching=False,
    )
    scheduler = scheduler_of(llm)
    assert llm.llm_engine.engine_core.engine_core.batch_queue_size == 2
    if mode == "nofence":
        scheduler.kv.reconciler.books.fence = NoFence()
    squeeze = Squeeze(scheduler)
    done = serve(llm, squeeze)
    scheduler.kv.blocks.check_integrity()
    facts = {"finished": len(done), "unmapped": squeeze.unmapped}
    Path(out).write_text(json.dumps(facts))
