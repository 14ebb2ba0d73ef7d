"""Latencies that the replay's client, `vllm bench serve` and guidellm measure at one server.

python benchmarks/clients.py [--repeats 3] [--paced] [--guidellm PATH]

One model is served. Every client sends the same prompts, `CONCURRENCY` at a time, greedy and of
fixed length, and the clients alternate. The program prints means and 95 % intervals, and whether
the replay's client differs from another one by more than noise. If clients share the processor with
the engine, a client's own computing lengthens its figures; the program prints its processor time
too. With ``--paced`` a server with known times answers (`paced_server`), which clients do not
disturb. `vllm bench` needs pandas. guidellm (0.8) wants an environment of its own (``pip install
guidellm``), and PATH is its executable there; without PATH it is left out. Its figures are computed
from the times that it writes for each request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from paced_server import paced

from mirage.tools.demo.models import make_models
from mirage.tools.replay import client
from mirage.tools.replay.child import Server
from mirage.tools.replay.client import Habits, Journal
from mirage.tools.replay.metrics import summarize
from mirage.tools.replay.policies import VARIANTS
from mirage.tools.report.intervals import difference, mean
from mirage.workload.dealing import TenantRequest, prompt

NAME, REQUESTS, CONCURRENCY, SEED = "opt", 64, 4, 3
PROMPT, OUTPUT = 120, 48
"""Tokens of each prompt, and of each output."""
FIGURES = (
    *("mean_ttft_ms", "p50_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p50_tpot_ms"),
    *("mean_itl_ms", "p50_itl_ms", "p99_itl_ms", "output_throughput"),
)
COMPUTED = "client_ms_a_token"
"""Processor milliseconds of the client for each output token, its start left out."""
CONFIG = {
    "device": {"kind": "host", "memory": "96MiB", "page": "64KiB"},
    "tenants": [{"name": NAME, "model": NAME, "share": 100, "max_model_len": 512}],
}
BENCH = """
import sys, time
from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
plain = serve.benchmark
async def timed(*args, **kwargs):
    before = time.process_time()
    found = await plain(*args, **kwargs)
    return found | {"processor_s": time.process_time() - before}
serve.benchmark = timed
serve.main(parser.parse_args(sys.argv[1:]))
"""
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--guidellm", type=Path, metavar="PATH")
    options = parser.parse_args()
    if options.guidellm is not None and not options.guidellm.is_file():
        parser.error(f"--guidellm {options.guidellm}: no such file: name guidellm's executable")
    if options.guidellm is None:
        print("guidellm: left out, --guidellm PATH names its executable")
    with tempfile.TemporaryDirectory(prefix="mirage-clients-") as name:
        folder = Path(name)
        make_models(folder, which=[NAME])
        _write_prompts(folder)
        with paced(NAME) if options.paced else engine(folder) as url:
            clients: dict[str, Callable[[], Figures]] = {
                "mirage replay": lambda: ours(url),
                "vllm bench serve": lambda: vllm_bench(url, folder),
            }
            if options.guidellm is not None:
                tool = options.guidellm.absolute()
                clients["guidellm"] = lambda: guidellm(url, folder, tool)
            ours(url)  # warm
            show(taking_turns(clients, options.repeats))


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """Serve the model while the block runs; gives the server's address."""
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    with Server(folder / "config.yaml", VARIANTS["static"], folder / "serve.log") as server:
        yield asyncio.run(server.ready(lambda seconds: None))


def taking_turns(
    clients: dict[str, Callable[[], Figures]], repeats: int
) -> dict[str, list[Figures]]:
    """Figures of all clients' runs, with the clients alternating."""
    found: dict[str, list[Figures]] = {name: [] for name in clients}
    for _ in range(repeats):
        for name, measure in clients.items():
            found[name].append(measure())
    return found


def show(found: dict[str, list[Figures]]) -> None:
    """Print a row for each figure and client, ours first."""
    first = next(iter(found))
    print(f"{'figure':<18} {'client':<18} {'mean':>9} {'± 95 %':>8}  against {first}")
    for figure in (*FIGURES, COMPUTED):
        own = [run[figure] for run in found[first]]
        for name, runs in found.items():
            values = [run[figure] for run in runs if figure in run]
            if not values:
                continue
            average = mean(values)
            half = "" if average.half is None else f"{average.half:.2f}"
            against = difference(values, own)
            told = "" if name == first else f"{against.ratio:.3f}x {against.word}"
            print(f"{figure:<18} {name:<18} {average.value:>9.2f} {half:>8}  {told}")


def ours(url: str) -> Figures:
    """Figures `FIGURES` measured by the client of `mirage replay`, and its processor time per
    token.
    """
    calls = [TenantRequest(n, 0.0, NAME, PROMPT, OUTPUT, clipped=False) for n in range(REQUESTS)]
    journal = Journal()

    async def run() -> None:
        async with client.session(url, 300.0) as http:
            await client.send_all(http, calls, SEED, journal, Habits(CONCURRENCY))

    before = time.process_time()
    asyncio.run(run())
    computed = _a_token(time.process_time() - before)
    assert not journal.failed
    found = summarize(journal.outcomes, journal.duration_s)
    return {name: float(found[name] or 0) for name in FIGURES} | computed


def vllm_bench(url: str, folder: Path) -> Figures:
    """The same figures, measured by vLLM's own client."""
    words = (
        f"--backend openai --base-url {url} --endpoint /v1/completions --model {NAME} "
        f"--tokenizer {folder / NAME} --dataset-name custom --skip-chat-template "
        f"--dataset-path {folder / 'prompts.jsonl'} --custom-output-len {OUTPUT} "
        f"--num-prompts {REQUESTS} --disable-shuffle --ignore-eos --max-concurrency {CONCURRENCY} "
        "--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99 --temperature 0 "
        f"--num-warmups 0 --save-result --result-dir {folder} --result-filename vllm.json"
    )
    _run([sys.executable, "-c", BENCH, *words.split()], folder)
    found = json.loads((folder / "vllm.json").read_text())
    assert found["completed"] == REQUESTS, found
    figures = {name: float(found[name]) for name in FIGURES if name in found}
    return figures | _a_token(found["processor_s"])


def _a_token(processor_s: float) -> Figures:
    return {COMPUTED: processor_s / (REQUESTS * OUTPUT) * 1e3}


def guidellm(url: str, folder: Path, tool: Path) -> Figures:
    """Figures by guidellm. Its inter-token latency of a request is TPOT; it keeps no single
    gaps.
    """
    backend = {
        "kind": "openai_http",
        "target": url,
        "model": NAME,
        "request_format": "/v1/completions",
        "extras": {"body": {"temperature": 0}},
    }
    words = {
        "--backend": json.dumps(backend),
        "--profile": f"kind=concurrent,streams={CONCURRENCY}",
        "--constraint": f"kind=max_requests,count={REQUESTS}",
        "--tokenizer": json.dumps({"kind": "huggingface_auto", "model": str(folder / NAME)}),
        "--data": json.dumps({"kind": "json_file", "path": str(folder / "prompts.jsonl")}),
        "--output": f"kind=json,path={folder / 'guidellm.json'}",
    }
    command = [str(tool), "run", "--disable-console"]
    _run(command + [word for pair in words.items() for word in pair], folder, HF_HOME=str(folder))
    (found,) = json.loads((folder / "guidellm.json").read_text())["benchmarks"]
    rows = found["requests"]["successful"]
    assert len(rows) == REQUESTS and {row["output_tokens"] for row in rows} == {OUTPUT}, len(rows)
    assert {row["prompt_tokens"] for row in rows} == {PROMPT}
    return from_rows(rows)


def from_rows(rows: list[dict[str, Any]]) -> Figures:
    """Figures as `vllm bench` defines them, from guidellm's requests."""
    ttft = np.array([row["time_to_first_token_ms"] for row in rows])
    tpot = np.array([row["inter_token_latency_ms"] for row in rows])
    seconds = max(r["request_end_time"] for r in rows) - min(r["request_start_time"] for r in rows)
    return {
        "mean_ttft_ms": float(ttft.mean()),
        "p50_ttft_ms": float(np.percentile(ttft, 50)),
        "p99_ttft_ms": float(np.percentile(ttft, 99)),
        "mean_tpot_ms": float(tpot.mean()),
        "p50_tpot_ms": float(np.percentile(tpot, 50)),
        "mean_itl_ms": float(tpot.mean()),  # the same, all outputs being of one length
        "output_throughput": sum(row["output_tokens"] for row in rows) / seconds,
    }


def _write_prompts(folder: Path) -> None:
    """Write the prompts for both other clients. The lengths of outputs in it are for guidellm;
    `vllm bench` gets them by an option.
    """
    with (folder / "prompts.jsonl").open("w") as file:
        for number in range(REQUESTS):
            row = {"prompt": prompt(SEED, number, PROMPT), "output_tokens_count": OUTPUT}
            file.write(json.dumps(row) + "\n")


def _run(command: list[str], folder: Path, **environment: str) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr[-3000:] or done.stdout[-3000:]


if __name__ == "__main__":
    main()
