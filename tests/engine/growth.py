"""Child process: a burst of requests needs more KV memory than the engine has at its start.

python growth.py MODELS OUT MODE   MODE: one of `MODES`; with `-async` two steps are in flight
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from control import ControlServer
from deferred import schedule_asynchronously
from tiny import make_llm, make_model, prompts, run, scheduler_of

from mirage.control import growth_hold

UNIVERSE, BASE = 256, 20
HOLD_S, LONGEST_S = 0.2, 0.5
UNHURRIED_S = 20.0
"""Seconds for which a growing request is held in modes that are always answered: a busy machine may
take seconds to answer.
"""
ASYNCHRONOUS = "-async"
MODES = {
    "grant": {"answer": "grant"},
    "late": {"answer": "grant", "delay_s": 0.03},
    # Later than an engine waits for a server that it does not hear.
    "very-late": {"answer": "grant", "delay_s": 3 * HOLD_S, "beat_s": 0.05},
    "mute": {"answer": "silent", "beat_s": 0.05},
    "refuse": {"answer": "refuse"},
    "silent": {"answer": "silent"},
    "capped": {"answer": "grant", "most": 40},
    "recalled": {"answer": "grant", "most": 60, "recall_to": BASE},
    # All beyond the share is for running requests: newcomers wait for those to finish.
    "closed": {"answer": "grant", "open_extents": BASE},
}
ANSWERED = ("grant", "late", "refuse", "capped", "recalled", "closed")

if __name__ == "__main__":
    models, out, mode = sys.argv[1:]
    if mode.endswith(ASYNCHRONOUS):
        schedule_asynchronously()
    mode = mode.removesuffix(ASYNCHRONOUS)
    if mode == "mute":
        growth_hold.LONGEST_S = LONGEST_S
    model = make_model("llama", Path(models))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "control.sock"
        server = ControlServer(path, **MODES[mode])
        mirage = {
            "base_blocks": BASE,
            "control": str(path),
            "hold_s": UNHURRIED_S if mode in ANSWERED else HOLD_S,
        }
        if mode == "closed":
            # Without a reserve of their own the running ones soon need what is closed.
            mirage |= {"kept": "asked", "headroom_extents": 0, "lookahead_steps": 0}
        # Prefix hits would depend on what was evicted; here only memory may differ. In bfloat16
        # AMX kernels round by a batch's size, and preemptions change it.
        llm = make_llm(
            model, blocks=UNIVERSE, mirage=mirage, enable_prefix_caching=False, dtype="float32"
        )
        asked = prompts(12, 60, seed=5)
        result = run(llm, asked, 120, logprobs=None)
        scheduler = scheduler_of(llm)
        scheduler.kv.blocks.check_integrity()
        scheduler.worker.memory.check_integrity()
        final = scheduler.report()
        facts = {
            "tokens": [tokens for tokens, _ in result],
            "preemptions": scheduler.counts.preemptions,
            "recomputed": final.recomputed_tokens,
            "beyond_prompts": final.prefill_tokens - sum(map(len, asked)),
            "kv_blocks": final.kv_blocks,
            "problems": server.problems,
            "reports": len(server.reports),
            "asked": sum(r.growth_extents > r.kv_extents for r in server.reports),
            "asynchronous": llm.llm_engine.vllm_config.scheduler_config.async_scheduling,
            "most_used": max(r.kv_used_extents for r in server.reports),
            "running_when_back": [
                r.running
                for r in server.reports
                if r.revision == server.recalled and r.kv_extents <= BASE
            ][:1],
            "most_running": max(r.running for r in server.reports),
        }
        scheduler.shutdown()
    Path(out).write_text(json.dumps(facts))
