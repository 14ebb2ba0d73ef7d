"""Child process: an engine loses its turn in the middle of requests.

python turns.py MODELS OUT drain|stop|preempt
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tiny import make_llm, make_model, prompts, scheduler_of

from mirage.protocol import Turn

AT_ONCE, REQUESTS, TOKENS = 2, 4, 12


class Probe:
    """Takes the turn away after the third step was scheduled and before it is executed, and notes
    whether the engine still reports the turn then.
    """

    def __init__(self, executor: Any, scheduler: Any, *, drain: bool) -> None:
        self.scheduler, self.calls, self.drain = scheduler, 0, drain
        self.while_executing: bool | None = None
        self._execute = executor.execute_model
        executor.execute_model = self.execute_model

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == 3:
            self.scheduler.mailbox.post(Turn(False, drain=self.drain))
            self.while_executing = self.scheduler.report().holds_turn
        return self._execute(*args, **kwargs)


def main(models: str, out: str, mode: str) -> None:
    from vllm import SamplingParams

    llm = make_llm(
        make_model("llama", Path(models)),
        mirage={"temporal": True},
        max_num_seqs=AT_ONCE,
    )
    engine, scheduler = llm.llm_engine, scheduler_of(llm)
    params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    for i, tokens in enumerate(prompts(REQUESTS, 40, seed=3)):
        engine.add_request(str(i), {"prompt_token_ids": tokens}, params)
    before = scheduler.report().holds_turn
    scheduler.mailbox.post(Turn(True))
    executor = engine.engine_core.engine_core.model_executor
    probe = Probe(executor, scheduler, drain=mode != "stop")
    done: dict[str, int] = {}

    def step() -> None:
        for output in engine.step():
            if output.finished:
                done[output.request_id.split("-")[0]] = len(output.outputs[0].token_ids)

    while probe.calls < 3:
        step()
    if mode == "preempt":
        while not scheduler.fence.idle:
            step()
        scheduler._preempt_request(scheduler.running.pop(), time.monotonic())
    while mode != "stop" and scheduler.turn.may_step:
        step()
    state = scheduler.report()
    facts = {
        "before": before,
        "while_executing": probe.while_executing,
        "after": state.holds_turn,
        "running": state.running,
        "waiting": state.waiting,
        "done": len(done),
    }
    threading.Timer(0.3, lambda: scheduler.mailbox.post(Turn(True))).start()
    while engine.has_unfinished_requests():
        step()
    Path(out).write_text(json.dumps(facts | {"lengths": sorted(done.values())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
