"""The replay client and command against a real HTTP server that streams as vLLM does."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import typer
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from fake_serve import Fake
from typer.testing import CliRunner

from mirage.tools.replay import child, client
from mirage.tools.replay.child import ServerError
from mirage.tools.replay.client import PATIENT, Habits, Journal
from mirage.tools.replay.command import replay_command
from mirage.tools.replay.policies import VARIANTS
from mirage.tools.replay.run import replay_on
from mirage.tools.replay.stream import StatusRefused
from mirage.tools.replay.trail import trail
from mirage.workload import trace
from mirage.workload.dealing import TenantRequest, prompt
from traces import SAMPLE

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
FAKE = HERE / "fake_serve.py"


def call(index: int, tenant: str = "a", at_s: float = 0.0, output: int = 4) -> TenantRequest:
    return TenantRequest(index, at_s, tenant, 5, output, False)


def sent(
    calls: list[TenantRequest],
    timeout_s: float = 60.0,
    fake: Fake | None = None,
    habits: Habits = PATIENT,
    key: str | None = None,
) -> Journal:
    """Journal of the replay client after it has sent `calls` to a fake server."""

    async def run() -> Journal:
        server = fake or Fake()
        journal = Journal()
        there = TestServer(server.app(), handler_cancellation=True)
        async with there, client.session(str(there.make_url("/")), timeout_s, key) as http:
            await client.send_all(http, calls, 3, journal, habits)
        return journal

    return asyncio.run(run())


def errors(journal: Journal) -> dict[int, str | None]:
    return {outcome.call.index: outcome.error for outcome in journal.outcomes}


# The client.


def test_what_is_sent_is_what_the_workload_says():
    fake = Fake()
    sent([call(0, output=4), call(1, "b", output=7)], fake=fake)
    bodies = sorted(fake.bodies, key=lambda body: body["model"])
    assert [body["model"] for body in bodies] == ["a", "b"]
    assert [body["max_tokens"] for body in bodies] == [4, 7]
    assert [body["prompt"] for body in bodies] == [prompt(3, 0, 5), prompt(3, 1, 5)]
    for body in bodies:
        assert (body["temperature"], body["ignore_eos"], body["stream"]) == (0, True, True)
        assert body["stream_options"] == {"include_usage": True}


def test_what_comes_back_is_measured():
    (outcome,) = sent([call(0)], habits=Habits(keep_texts=True)).outcomes
    assert outcome.error is None
    assert outcome.text == "".join(chr(ord(letter) + 1) for letter in prompt(3, 0, 5)[:4])
    assert outcome.output == trail("", [*map(ord, outcome.text)])
    assert (outcome.prompt_tokens, outcome.output_tokens, len(outcome.itl_s)) == (5, 4, 3)
    assert 0 < outcome.ttft_s <= outcome.e2el_s
    assert outcome.ttft_s + sum(outcome.itl_s) == pytest.approx(outcome.e2el_s)


def test_what_is_held_of_a_call_is_small():
    asked = replace(call(0), session="s", prefix_hashes=(1, 2), hash_tokens=2.0)
    (outcome,) = sent([asked]).outcomes
    assert outcome.text is None
    assert (outcome.call.session, outcome.call.prefix_hashes) == (None, ())
    assert outcome.call.index == asked.index


def test_arrivals_are_kept():
    journal = sent([call(0, at_s=0.0), call(1, at_s=0.05), call(2, at_s=0.1)])
    for outcome in journal.outcomes:
        assert outcome.sent_s >= outcome.call.at_s, "never early"
        assert outcome.lag_s == pytest.approx(outcome.sent_s - outcome.call.at_s)


@pytest.mark.parametrize(
    ("tenant", "error"),
    [
        ("missing", "HTTP 404: The model `missing` does not exist."),
        ("crashing", "HTTP 502: Bad gateway"),
        ("erring", "EngineCore died"),
        ("ending", "the stream broke off after 1 token"),
    ],
)
def test_a_failed_call_says_why_and_stops_no_other(tenant, error):
    journal = sent([call(0), call(1, tenant), call(2)])
    assert errors(journal) == {0: None, 1: error, 2: None}
    assert (journal.sent, journal.failed) == (3, 1)


def test_a_connection_that_is_cut():
    found = errors(sent([call(0, "breaking"), call(1)]))
    assert found[1] is None and found[0]


def turn(number: int, session: str, at_s: float = 0.0, output: int = 4) -> TenantRequest:
    return replace(call(number, at_s=at_s, output=output), session=session, turn=number)


def test_a_later_turn_waits_for_the_answer_and_a_while():
    calls = [*(turn(n, "s") for n in range(3)), turn(3, "other")]
    ended = {o.call.index: o for o in sent(calls, habits=Habits(think_s=0.2)).outcomes}
    for earlier, later in ((0, 1), (1, 2)):
        assert ended[later].sent_s >= ended[earlier].ended_s + 0.2
    assert ended[3].sent_s < ended[1].sent_s, "other sessions do not wait"
    assert all(o.lag_s >= 0 for o in ended.values())


def test_a_later_turn_keeps_its_own_time_where_that_is_later():
    first, later = sent([turn(0, "s"), turn(1, "s", at_s=0.5)], habits=Habits(think_s=0.0)).outcomes
    assert first.call.index == 0 and later.sent_s >= 0.5


def test_a_turn_that_fails_does_not_end_its_session():
    calls = [replace(turn(n, "s"), tenant="missing") for n in range(2)]
    ended = {o.call.index: o for o in sent(calls, habits=Habits(think_s=0.1)).outcomes}
    assert ended[0].error and ended[1].error
    assert ended[1].sent_s >= ended[0].ended_s + 0.1


def test_sessions_of_two_tenants_with_one_name_do_not_wait_for_each_other():
    calls = [turn(0, "s"), replace(turn(1, "s"), tenant="missing")]
    ended = {o.call.index: o for o in sent(calls, habits=Habits(think_s=0.2)).outcomes}
    assert ended[1].sent_s < ended[0].ended_s + 0.2


def test_without_a_pause_turns_wait_for_nobody():
    calls = [replace(turn(n, "s"), tenant="together") for n in range(3)]
    fake = Fake()  # "together" answers once all three are there
    assert errors(sent(calls, fake=fake)) == {0: None, 1: None, 2: None}


def test_a_closed_loop_keeps_so_many_in_flight():
    fake = Fake()
    journal = sent(
        [call(n, "together", at_s=100.0) for n in range(20)], fake=fake, habits=Habits(3)
    )
    assert fake.most_at_once == 3
    assert sorted(errors(journal)) == list(range(20)), "each once, and nobody waited for arrivals"
    first = sorted(journal.outcomes, key=lambda outcome: outcome.sent_s)[:4]
    assert first[3].sent_s >= min(outcome.ended_s for outcome in first[:3])
    assert all(outcome.lag_s < 1 for outcome in journal.outcomes)


def test_a_closed_loop_goes_on_after_failures():
    found = errors(sent([call(0, "missing"), call(1, "ending"), call(2)], habits=Habits(1)))
    assert found[0] and found[1] and found[2] is None


def test_what_is_given_up_is_no_failure_and_its_connection_is_closed():
    fake = Fake()
    journal = sent([call(0, "stalling"), call(1)], fake=fake, habits=Habits(abandon_s=3.0))
    assert errors(journal) == {0: "given up after 3 s", 1: None}
    assert [o.abandoned for o in sorted(journal.outcomes, key=lambda o: o.call.index)] == [
        True,
        False,
    ]
    assert journal.failed == 0
    assert fake.left.is_set(), "the server hears of it"


def test_a_key_is_sent_with_every_request():
    fake = Fake()
    sent([call(0), call(1)], fake=fake, key="open sesame")
    assert fake.keys == {"Bearer open sesame"}


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (TimeoutError(), "no end within 5 s: look at it, or raise --timeout"),
        (
            StatusRefused(401, "Unauthorized"),
            "HTTP 401: Unauthorized: give --key, or MIRAGE_API_KEY",
        ),
    ],
)
def test_what_a_first_request_without_an_answer_came_to(monkeypatch, error, says):
    async def fails(*_):
        raise error

    monkeypatch.setattr(client, "warm_up", fails)
    with pytest.raises(ServerError, match=re.escape(says)):
        asyncio.run(replay_on("http://127.0.0.1:1", [call(0)], 0, 5.0, Journal()))


def test_a_stream_that_never_ends_is_bounded():
    fake = Fake()
    found = errors(sent([call(0, "stalling"), call(1)], timeout_s=3.0, fake=fake))
    assert found == {0: "no end within 3 s", 1: None}


def test_nobody_listens():
    async def run() -> Journal:
        journal = Journal()
        async with TestServer(Fake().app()) as there:
            url = str(there.make_url("/"))
        async with client.session(url, 5.0) as http:
            await client.send_all(http, [call(0)], 0, journal)
        return journal

    assert "Cannot connect" in errors(asyncio.run(run()))[0]


def test_a_cancel_keeps_what_has_ended_and_hangs_up():
    async def run():
        fake, ended = Fake(), asyncio.Event()
        journal = Journal(changed=lambda seen: ended.set() if seen.outcomes else None)
        calls = [call(0), call(1, "stalling"), call(2, at_s=1e6)]
        server = TestServer(fake.app(), handler_cancellation=True)
        async with server, client.session(str(server.make_url("/")), 60.0) as http:
            sending = asyncio.create_task(client.send_all(http, calls, 0, journal))
            await ended.wait()
            while len(fake.bodies) < 2:
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await fake.left.wait()
            assert sending.cancelled()
        return journal

    journal = asyncio.run(run())
    assert errors(journal) == {0: None}
    assert journal.sent == 2


# One run.


def replayed(fake: Fake, calls: list[TenantRequest], with_timeline: bool = True):
    async def run():
        async with TestServer(fake.app(with_timeline)) as there:
            return await replay_on(str(there.make_url("/")), calls, 0, 60.0, Journal())

    return asyncio.run(run())


def test_a_run_is_warmed_up_and_counts_from_its_own_start():
    fake = Fake(policy="pooled")
    found = replayed(fake, [call(0, "b"), call(1, "a"), call(2, "a")])
    assert [body["model"] for body in fake.bodies[:2]] == ["a", "b"], "one each, not measured"
    assert [outcome.call.index for outcome in found.outcomes] == [0, 1, 2]
    assert (found.policy, found.interrupted) == ("pooled", False)
    first, last = found.timeline.samples[0], found.timeline.samples[-1]
    assert first.t == 0.0
    assert last.tenants["a"].preemptions - first.tenants["a"].preemptions == 3


@pytest.mark.parametrize("page", [None, 2, 1000])
def test_the_timeline_of_a_run_is_whole_in_whatever_pages_it_comes(page):
    fake = Fake()
    fake.page = page
    found = replayed(fake, [call(i) for i in range(7)])
    seen = [s.tenants["a"].preemptions for s in found.timeline.samples]
    assert seen[0] == 1, "of the warm-up"
    assert set(seen) == set(range(1, 9))
    assert page is None or fake.asked_since[0] == "1.0", "nothing from before the run"
    assert (len(fake.asked_since) > 1) is (page == 2)


@pytest.mark.parametrize(
    "address", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"]
)
def test_an_address_may_end_as_servers_print_it(address):
    assert client.base(address) == "http://h:1/"


def test_a_server_behind_a_path():
    async def run():
        fake, journal, app = Fake(), Journal(), web.Application()
        app.add_subapp("/gateway", fake.app())
        server = TestServer(app)
        await server.start_server()
        async with server, client.session(str(server.make_url("/gateway/v1")), 60.0) as http:
            await client.send_all(http, [call(0)], 0, journal)
        return fake, journal

    fake, journal = asyncio.run(run())
    assert [outcome.error for outcome in journal.outcomes] == [None]
    assert len(fake.bodies) == 1


def test_a_server_without_a_timeline():
    found = replayed(Fake(), [call(0)], with_timeline=False)
    assert (found.policy, found.timeline) == ("server", None)
    assert len(found.outcomes) == 1


def test_a_tenant_that_is_not_served_is_found_before_the_run():
    with pytest.raises(child.ServerError, match="first request: HTTP 404: The model `missing`"):
        replayed(Fake(), [call(0), call(1, "missing")])


# The command.


@pytest.fixture
def config(tmp_path):
    tenants = [{"name": name, "model": "m", "share": 40} for name in "ab"]
    path = tmp_path / "demo.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "device": {"memory": "1GiB"},
                "tenants": tenants,
                "replay": {"time_scale": 0.0001, "length_scale": 0.01, "window": [0, 10]},
            }
        )
    )
    return path


@pytest.fixture
def modes(monkeypatch):
    """Behaviour of the fake server for each policy, which the test may change before it starts."""
    modes = dict.fromkeys(VARIANTS, "answer")

    def serve_command(path, variant, ready_file, memory_bytes=None):
        return [sys.executable, str(FAKE), variant.name, str(ready_file), modes[variant.name]]

    monkeypatch.setattr(child, "serve_command", serve_command)
    return modes


@pytest.fixture
def command(modes):
    """Function that runs `mirage replay` in this process, with fake servers."""
    app = typer.Typer()
    app.command()(replay_command)

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


def test_all_policies_in_turn_and_the_report(command, config, tmp_path):
    out = tmp_path / "new" / "out"
    result = command(config, "--output", out, "--limit", 20)
    assert result.exit_code == 0, result.output
    report = json.loads((out / "report.json").read_text())
    assert [run["policy"] for run in report["runs"]] == ["static", "pooled", "mirage"]
    assert [run["completed"] for run in report["runs"]] == [20, 20, 20]
    assert [run["preemptions"] for run in report["runs"]] == [40, 40, 40]
    assert [run["layers_remapped_max"] for run in report["runs"]] == [4, 4, 4]
    assert report["outputs_identical"] is True
    assert report["window"] == [0.0, 10.0], "the configuration's default"
    assert (report["time_scale"], report["limit"]) == (0.0001, 20)
    assert "<svg" in (out / "report.html").read_text()
    assert "static: 20 sent, 20 of 20 finished" in result.output
    assert "the same under every policy" in result.output


@pytest.mark.parametrize(
    "chosen, columns, warned",
    [
        (None, ["static", "pooled", "mirage", "pooled-tiers", "mirage-tiers"], False),
        ("mirage,mirage-tiers", ["mirage", "mirage-tiers"], False),
        ("static,mirage", ["static", "mirage"], True),
    ],
)
def test_tiers_are_columns_of_their_own(command, config, tmp_path, chosen, columns, warned):
    content = yaml.safe_load(config.read_text()) | {"tiers": {"host": {"bytes": "1MiB"}}}
    config.write_text(yaml.safe_dump(content))
    policies = ["--policy", chosen] if chosen else []
    result = command(config, "--output", tmp_path, "--limit", 4, *policies)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert [run["policy"] for run in report["runs"]] == columns
    assert ("policy mirage leaves the configuration's tiers out" in result.output) == warned


def test_options_override_the_configuration(command, config, tmp_path):
    arguments = ("--window", "200:250", "--time-scale", 0.001, "--length-scale", 0.02)
    result = command(
        config, "--output", tmp_path, "--policy", "mirage,mirage", *arguments, "--seed", 9
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert [run["policy"] for run in report["runs"]] == ["mirage"]
    assert (report["window"], report["seed"]) == ([200.0, 250.0], 9)
    assert (report["time_scale"], report["length_scale"]) == (0.001, 0.02)
    assert report["outputs_identical"] is None


def test_a_trace_of_another_format_and_what_it_skips(command, config, tmp_path):
    trace = tmp_path / "burst.csv"
    trace.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,GPT-4,400,300,700,x\n6,GPT-4,100,0,100,x\n7,GPT-4,300,200,500,x\n"
    )
    result = command(config, "--output", tmp_path, "--policy", "static", "--trace", trace)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["requests"] == 2
    assert report["skipped"] == {"failed requests (0 response tokens)": 1}
    told = f"{trace}: skipped and not replayed: 1 failed requests (0 response tokens)"
    assert f"mirage: warning: {told}" in result.output
    assert f"mirage: warning: {trace}: So few requests (2) tell nothing" in result.output
    page = (tmp_path / "report.html").read_text()
    assert "failed requests (0 response tokens)" in page and "So few requests (2)" in page


def test_requests_without_arrivals_come_at_the_rate(command, config, tmp_path):
    trace = tmp_path / "prompts.jsonl"
    trace.write_text('{"prompt": "What is the capital?", "output_tokens": 100}\n' * 40)
    arguments = ("--output", tmp_path, "--policy", "static", "--trace", trace)
    result = command(config, *arguments, "--rate", 2, "--trace-format", "custom")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert 5 < report["requests"] < 40, "ten seconds of them, by the configuration's window"
    assert (report["rate"], report["trace_format"]) == (2.0, "custom")
    refused = command(config, *arguments)
    assert refused.exit_code == 2
    assert "custom has no arrivals: give a rate" in refused.output


def test_against_a_running_server(command, config, tmp_path):
    with child.Server(config, VARIANTS["pooled"], tmp_path / "log") as server:
        url = asyncio.run(server.ready(lambda seconds: None))
        result = command(config, "--output", tmp_path, "--limit", 3, "--server", url)
        assert server._process.poll() is None, "a server that was there before stays"
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert [run["policy"] for run in report["runs"]] == ["pooled"]


def test_repeats_take_turns_and_get_intervals(command, config, tmp_path):
    arguments = ("--policy", "static,mirage", "--repeats", 2, "--limit", 6)
    limits = ("--slo", "e2el_ms=1e5", "--abandon", 50, "--timeout", 60)
    result = command(config, "--output", tmp_path, *arguments, *limits)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(run["policy"], run["repeat"]) for run in report["runs"]] == [
        *(("static", 1), ("mirage", 1), ("static", 2), ("mirage", 2)),
    ]
    assert [column["policy"] for column in report["policies"]] == ["static", "mirage"]
    for column in report["policies"]:
        assert column["slo_met"] == 6 and column["goodput"] > 0
        assert column["intervals"]["p99_ttft_ms"] >= 0
    assert report["outputs_identical"] is True
    assert "Means of 2 runs each" in result.output
    assert {path.name for path in tmp_path.glob("serve-*")} == {
        *("serve-static-1.log", "serve-static-2.log", "serve-mirage-1.log", "serve-mirage-2.log")
    }
    page = (tmp_path / "report.html").read_text()
    assert "±" in page and "e2el_ms ≤ 100000" in page


def test_a_report_holds_the_command_that_repeats_it(command, config, tmp_path):
    options = ("--policy", "static", "--limit", 5, "--window", "0:9.5", "--concurrency", 2)
    first = command(config, "--output", tmp_path, *options, "--key", "hush-hush")
    assert first.exit_code == 0, first.output
    text = (tmp_path / "report.json").read_text()
    assert "hush-hush" not in text
    report = json.loads(text)
    assert report["versions"]["mirage"] and report["versions"]["python"]
    assert [tenant["name"] for tenant in report["configuration"]["tenants"]] == ["a", "b"]
    words = shlex.split(report["command"])
    assert words[:3] == ["mirage", "replay", str(config)]
    again = command(*words[2:])
    assert again.exit_code == 0, again.output
    repeated = json.loads((tmp_path / "report.json").read_text())
    for key in ("command", "window", "limit", "concurrency", "seed", "requests", "configuration"):
        assert repeated[key] == report[key]


def test_what_leaves_in_the_warm_up_is_not_measured(command, config, tmp_path):
    result = command(
        config,
        "--output",
        tmp_path,
        "--policy",
        "static",
        "--limit",
        20,
        "--time-scale",
        0.5,
        "--warm-up",
        0.75,
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    (run,) = report["runs"]
    assert 0 < run["completed"] < report["requests"] == 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--policy", "static,magic"],
            "unknown policy 'magic': choose from static, pooled, mirage",
        ),
        (["--window", "9"], "window '9': write START:END in seconds of the trace"),
        (["--window", "5000:6000"], "the trace is 1155.2 s long"),
        (
            ["--trace", "none.csv"],
            "none.csv: cannot be read (No such file or directory; `mirage traces list`",
        ),
        (["--trace-format", "azur"], "trace format 'azur': choose from azure, burstgpt, mooncake"),
        (["--trace-format", "custom", "--rate", "1"], "sample.csv, line 1: found 'TIMESTAMP,"),
        (["--trace", __file__], 'line 1: found \'"""The replay client'),
        (["--rate", "5", "--time-scale", "1"], "both set the gaps of this trace: give one"),
        (["--rate", "5", "--load", "1"], "--rate and --load both set the gaps"),
        (["--rate", "0"], "rate 0: use requests a second, above 0"),
        (["--rate", "5", "--limit", "1"], "the trace's requests all come at one time"),
        (["--time-scale", "0"], "time scale 0: use a number above 0"),
        (["--length-scale", "nan"], "length scale nan: use a number above 0"),
        (["--concurrency", "0"], "concurrency 0: use a whole number from 1"),
        (["--repeats", "0"], "repeats 0: use a whole number from 1"),
        (["--abandon", "0"], "abandon 0: use seconds above 0"),
        (["--timeout", "nan"], "timeout nan: use seconds above 0"),
        (["--warm-up", "-1"], "warm-up -1: use seconds above 0"),
        (["--warm-up", "1000"], "so none is measured: shorten the warm-up"),
        (["--slo", "ttft=3"], "write NAME=MILLISECONDS"),
        (["--policy", "mirage-tiers"], "policy 'mirage-tiers' needs tiers"),
        (["--think", "-1"], "think -1: use seconds from 0, at most 1e+06"),
        (["--think", "1", "--concurrency", "2"], "a closed loop has no pauses, give one"),
        (["--limit", "0"], "limit 0: use a whole number from 1"),
        (["--output", "/dev/null/out"], "/dev/null/out: cannot be written"),
        (["--server", "localhost:1"], "write its address as http://HOST:PORT"),
        (["--server", "http://"], "write its address as http://HOST:PORT"),
        (["--server", "http://127.0.0.1:99999"], "write its address as http://HOST:PORT"),
        (["--server", "http://x", "--policy", "static"], "leave --policy out"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(command, config, tmp_path, arguments, says):
    if "--output" not in arguments:
        arguments = [*arguments, "--output", tmp_path / "out"]
    result = command(config, *arguments)
    assert result.exit_code == 2
    line = result.output.strip()
    assert line.startswith("mirage: error: ") and says in line and "\n" not in line
    assert not (tmp_path / "out").exists(), "nothing was begun"


def test_a_bad_configuration_is_one_line(command, tmp_path):
    result = command(tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert "none.yaml: cannot be read" in result.output


def test_a_server_that_cannot_start_is_one_line(command, modes, config, tmp_path):
    modes["pooled"] = "refuse"
    result = command(config, "--output", tmp_path, "--limit", 3)
    assert result.exit_code == 1
    last = result.output.strip().splitlines()[-1]
    assert last == (
        "mirage: error: mirage serve --policy pooled did not start: "
        "model a does not fit: lower its share"
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert [run["policy"] for run in report["runs"]] == ["static"], "what finished is kept"


def test_a_server_that_dies_ends_the_replay(command, modes, config, tmp_path):
    modes["static"] = "die"
    arguments = ("--output", tmp_path, "--time-scale", 1000)
    result = command(config, *arguments, "--policy", "static")
    assert result.exit_code == 1
    assert "mirage serve --policy static ended during the replay" in result.output


def test_a_server_that_will_not_end_is_killed(modes, config, tmp_path, monkeypatch):
    monkeypatch.setattr(child, "PATIENCE", ((signal.SIGINT, 0.1), (signal.SIGTERM, 0.1)))
    modes["static"] = "deaf"
    with child.Server(config, VARIANTS["static"], tmp_path / "log") as server:
        asyncio.run(server.ready(lambda seconds: None))
    assert server._process.returncode == -signal.SIGKILL


REPLAY = """
import sys, typer
from mirage.tools.replay import child
from mirage.tools.replay.command import replay_command
fake, fifo = sys.argv.pop(1), sys.argv.pop(1)
child.serve_command = lambda config, variant, ready, memory: [
    sys.executable, fake, variant.name, str(ready),
    "answer" if variant.name == "static" else "stall", fifo
]
typer.run(replay_command)
"""


def stalling(config, folder):
    """Command line of a replay whose second policy's server stalls, and the path of the pipe (FIFO)
    to which that server then writes.
    """
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    arguments = [config, "--output", folder, "--policy", "static,mirage", "--limit", 3]
    return [sys.executable, "-c", REPLAY, str(FAKE), str(fifo), *map(str, arguments)], fifo


def test_a_kill_in_the_second_run_leaves_the_first(config, tmp_path):
    command, fifo = stalling(config, tmp_path)
    replaying = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    assert fifo.read_text() == "stalled\n"
    replaying.kill()
    replaying.wait(60)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [run["policy"] for run in report["runs"]] == ["static"]


@pytest.mark.slow
def test_gpu_serve_has_a_row_for_each_policy_as_it_comes_and_keeps_them(config, tmp_path):
    from benchmarks.gpu.serving import followed

    command, fifo = stalling(config, tmp_path)
    rows = followed(command, tmp_path / "report.json", "a trace")
    assert next(rows).name == "served, static"
    assert fifo.read_text() == "stalled\n", "while the second is under way"
    (replaying,) = (c for c in psutil.Process().children() if "static,mirage" in c.cmdline())
    rows.close()
    assert not replaying.is_running(), "who stops looking ends it"


def test_gpu_serve_ends_what_takes_too_long(tmp_path):
    from benchmarks.gpu.serving import followed

    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(RuntimeError, match=r"not done after 0\.1 s"):
        list(followed(sleeping, tmp_path / "report.json", "a trace", limit_s=0.1))


@pytest.mark.slow
def test_gpu_serve_ends_with_the_texts(config, tmp_path, modes):
    from benchmarks.gpu.serving import followed

    answering = REPLAY.replace('"stall"', '"answer"')
    arguments = [config, "--output", tmp_path, "--policy", "static,mirage", "--limit", 3]
    command = [sys.executable, "-c", answering, str(FAKE), "none", *map(str, arguments)]
    rows = list(followed(command, tmp_path / "report.json", "a trace"))
    assert [row.name for row in rows] == ["served, static", "served, mirage", "served, texts"]
    assert rows[-1].holds


@pytest.mark.drawn("number")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_server_and_writes_what_finished(config, tmp_path, number):
    command, fifo = stalling(config, tmp_path)
    replaying = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert fifo.read_text() == "stalled\n"  # blocks until the second policy is under way
    server = int(children(replaying.pid)[0])
    replaying.send_signal(number)
    _, shown = replaying.communicate(timeout=180)
    assert replaying.returncode == 130, shown
    assert shown.strip().endswith("mirage: interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["interrupted"] and report["outputs_identical"] is None
    assert [run["policy"] for run in report["runs"]] == ["static", "mirage"]
    assert [run["completed"] for run in report["runs"]] == [3, 0]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


HOLD = f"""
import os, signal, subprocess, sys, time
from pathlib import Path
from mirage.tools.replay import child
from mirage.tools.replay.policies import VARIANTS
from mirage.processes.interrupt import terminate_like_interrupt
child.serve_command = lambda config, variant, ready, memory: [
    sys.executable, {str(FAKE)!r}, variant.name, str(ready), "answer"
]
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it runs in background
static = VARIANTS["static"]
class Told(subprocess.Popen):
    def __init__(self, words, **options):
        super().__init__(words, **options)
        if words[1] == {str(FAKE)!r}:
            print(self.pid, flush=True)
            if len(sys.argv) > 1:
                signal.raise_signal(int(sys.argv[1]))
subprocess.Popen = Told
with terminate_like_interrupt(), child.Server(Path("c"), static, Path("log")):
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "starting"),
    [
        (signal.SIGKILL, False),
        (signal.SIGTERM, False),
        (signal.SIGINT, False),
        (signal.SIGTERM, True),
        (signal.SIGINT, True),
    ],
)
def test_a_replay_that_is_ended_takes_its_server_along(tmp_path, number, starting):
    temporary = tmp_path / "t"
    temporary.mkdir()
    replay = subprocess.Popen(
        [sys.executable, "-c", HOLD, *([str(int(number))] if starting else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(HERE.parent.parent)},
    )
    pid = int(replay.stdout.readline())
    servers = []
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have been ended already
        servers.append(psutil.Process(pid))
    if not starting:
        replay.send_signal(number)
    replay.communicate(timeout=180)
    _, alive = psutil.wait_procs(servers, timeout=60)
    assert not alive
    deadline = time.monotonic() + 60
    while list(temporary.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(temporary.iterdir())


# Gaps to suit the machine.


@pytest.fixture
def measured(monkeypatch, modes):
    """List of the servers started so far: policy, and device memory."""
    started = []
    plain = child.serve_command

    def serve_command(path, variant, ready_file, memory_bytes):
        started.append((variant.name, memory_bytes))
        return plain(path, variant, ready_file)

    monkeypatch.setattr(child, "serve_command", serve_command)
    return started


def test_gaps_are_scaled_to_what_the_machine_computes(command, config, measured, tmp_path):
    arguments = ("--load", 0.5, "--limit", 60, "--policy", "mirage")
    result = command(config, "--output", tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert measured == [("static", 4 * 2**30), ("mirage", None)], "ample, then its own"
    report = json.loads((tmp_path / "report.json").read_text())
    [run] = report["runs"]
    assert report["load"] == 0.5
    asked = trace.parse_window("0:10")
    rows = list(trace.stream(SAMPLE, asked, 60, trace.Reading(), Counter()))
    rate = (len(rows) - 1) / (rows[-1].arrival_s - rows[0].arrival_s) / report["time_scale"]
    assert rate == pytest.approx(0.5 * report["capacity_rps"])
    assert "Requests arrive at 50%" in result.output.replace("\n", " ")
    assert run["completed"] == 60


@pytest.mark.slow
def test_the_configuration_may_say_the_load(command, config, measured, tmp_path):
    content = yaml.safe_load(config.read_text())
    content["replay"] = {"load": 2, "window": [0, 10], "length_scale": 0.01}
    config.write_text(yaml.safe_dump(content))
    result = command(config, "--output", tmp_path, "--limit", 20, "--policy", "static")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "report.json").read_text())["load"] == 2
    assert len(measured) == 2
    result = command(
        config, "--output", tmp_path, "--limit", 5, "--policy", "static", "--time-scale", 0.001
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["load"], report["time_scale"], len(measured)) == (None, 0.001, 3)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("--load", 0), "load 0: use a number above 0, at most 100, as 0.7"),
        (("--load", 0.7, "--time-scale", 2), "both scale the gaps, give one"),
        (("--load", 0.7, "--concurrency", 2), "a closed loop has no arrivals, give one"),
        (("--load", 0.7, "--server", "http://x"), "with --server give --time-scale"),
        (("--load", 0.7, "--limit", 1), "no gap can be scaled: leave it out"),
    ],
)
def test_a_load_that_cannot_be(command, config, measured, tmp_path, arguments, says):
    result = command(config, "--output", tmp_path, *arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
    assert not measured, "before anything has started"


def test_requests_that_fail_while_the_machine_is_measured(command, config, modes, tmp_path):
    modes["static"] = "stall"
    arguments = ("--load", 1, "--limit", 5, "--policy", "mirage", "--timeout", 0.5)
    result = command(config, "--output", tmp_path, *arguments)
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "measuring the machine: 5 of 5 requests failed: no end within 0.5 s" in said
    assert not (tmp_path / "report.json").exists()
