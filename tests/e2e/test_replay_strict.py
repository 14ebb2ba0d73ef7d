"""A replay against servers that refuse fields which are not OpenAI's."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
import yaml
from aiohttp.test_utils import TestServer
from strict_serve import LENGTH, OWN, Strict

from mirage.tools.replay.child import ServerError
from mirage.tools.replay.client import Journal
from mirage.tools.replay.run import PolicyRun, replay_on
from mirage.workload.dealing import TenantRequest

pytestmark = pytest.mark.e2e

CALLS = [TenantRequest(n, 0.0, "a", 5, 8, clipped=False) for n in range(4)]
VLLM_S = {"ignore_eos", "return_token_ids"}


def replayed(server: Strict) -> PolicyRun:
    async def run() -> PolicyRun:
        async with TestServer(server.app()) as there:
            return await replay_on(str(there.make_url("/")), CALLS, 0, 60.0, Journal())

    return asyncio.run(run())


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("names", [True, False])
def test_fields_that_are_refused_are_left_out_from_then_on(status: int, names: bool) -> None:
    server = Strict(VLLM_S, status, names)
    run = replayed(server)
    assert [outcome.error for outcome in run.outcomes] == [None] * len(CALLS)
    assert set(run.refused_fields) == VLLM_S
    assert server.refusals == (2 if names else 1), "it is asked again before the run, not in it"
    assert all(body.keys() == OWN | {"stream_options"} for body in server.bodies)


def test_tokens_are_counted_by_usage_else_by_chunks() -> None:
    counted = replayed(Strict(VLLM_S)).outcomes
    assert {(o.prompt_tokens, o.output_tokens) for o in counted} == {(11, 2 * LENGTH)}
    without = replayed(Strict(VLLM_S | {"stream_options"}))
    assert set(without.refused_fields) == VLLM_S | {"stream_options"}
    assert {(o.prompt_tokens, o.output_tokens) for o in without.outcomes} == {(0, LENGTH)}


def test_another_reason_to_refuse_is_told_as_it_is() -> None:
    with pytest.raises(ServerError, match=r"HTTP 400: Unrecognized request argument.* prompt"):
        replayed(Strict({"prompt"}))


def test_a_report_says_it_once(tmp_path: Path) -> None:
    content = {
        "device": {"memory": "1MiB"},
        "tenants": [{"name": "a", "model": "nowhere", "share": 50}],
        "replay": {"time_scale": 0.001, "length_scale": 0.01},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(content))
    server = Strict(VLLM_S)

    async def run() -> str:
        async with TestServer(server.app()) as there:
            words = ["replay", str(tmp_path / "c.yaml"), "--limit", "3", "--repeats", "2"]
            words += ["--server", str(there.make_url("")), "--output", str(tmp_path / "out")]
            command = [sys.executable, "-m", "mirage", *words]
            process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
            out, err = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == 0, err
            return out.decode()

    out = " ".join(asyncio.run(run()).split())
    assert out.count("the server refuses ignore_eos, return_token_ids: outputs may end") == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [set(one["refused_fields"]) for one in report["runs"]] == [VLLM_S] * 2
    assert report["outputs_identical"] is True
    page = (tmp_path / "out" / "report.html").read_text()
    assert "the server refuses ignore_eos" in page
