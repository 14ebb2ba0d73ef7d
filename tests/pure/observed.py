"""Alarm rules and dashboard of `configs/observe`, and the metrics that their queries name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import configs

OBSERVE = configs.HERE / "observe"
NAME = re.compile(r"\b(?:mirage_|vllm:|http_|process_)[a-z0-9_:]*")

DASHBOARDS = (
    *("http_requests_total", "process_start_time_seconds"),
    *("vllm:engine_sleep_state", "vllm:kv_cache_usage_perc"),
    *("vllm:num_requests_running", "vllm:num_requests_waiting"),
    *("vllm:num_requests_waiting_by_reason", "vllm:num_preemptions_total"),
    *("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    *("vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total"),
    *("vllm:generation_tokens_total", "vllm:request_success_total"),
    *("vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket"),
    *("vllm:request_queue_time_seconds_sum", "vllm:request_prefill_time_seconds_sum"),
    *("vllm:request_decode_time_seconds_sum", "vllm:request_max_num_generation_tokens_sum"),
    *(
        f"vllm:{name}_seconds_{part}"
        for name in (
            "e2e_request_latency",
            "inter_token_latency",
            "request_time_per_output_token",
            "time_to_first_token",
        )
        for part in ("bucket", "count", "sum")
    ),
)
"""Names in the queries of vLLM's own dashboards (vLLM's examples/observability, November 2026), as
far as they tell of a model's requests, cache and tokens."""


class Asked(NamedTuple):
    """One query (`expr`) of a panel of the dashboard."""

    panel: str
    expr: str


def read(name: str) -> Any:
    """Parsed content of a file of `configs/observe`."""
    text = (OBSERVE / name).read_text()
    return json.loads(text) if Path(name).suffix == ".json" else yaml.safe_load(text)


def alarms() -> dict[str, dict[str, Any]]:
    return {
        rule["alert"]: rule for group in read("alerts.yml")["groups"] for rule in group["rules"]
    }


def panels() -> list[dict[str, Any]]:
    return [one for one in read("dashboard.json")["panels"] if one["type"] != "row"]


def queries() -> list[Asked]:
    return [Asked(one["title"], each["expr"]) for one in panels() for each in one["targets"]]


def names() -> set[str]:
    """Names of all metrics in the queries of alarms and panels."""
    exprs = [rule["expr"] for rule in alarms().values()] + [one.expr for one in queries()]
    return {name for expr in exprs for name in NAME.findall(expr)}
