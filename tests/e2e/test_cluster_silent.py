"""A machine disappears silently: its packets are dropped, and no connection is reset."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack

from net_house import RunningThere
from test_cluster_nets import pytestmark as pytestmark
from test_cluster_nets import two_machines
from tethered import until

READS = """
import http.client, json, sys, time
host, key, prompt = sys.argv[1:4]
told = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
body = json.dumps({"model": "code", "prompt": prompt, "max_tokens": 9999, "stream": True})
http_ = http.client.HTTPConnection(host, 8000)
http_.request("POST", "/v1/completions", body, told)
print("sent", flush=True)
answer = http_.getresponse()
print("status", answer.status, flush=True)
said = b""
try:
    while data := answer.read1():
        print("read", flush=True)
        said = data
except http.client.IncompleteRead:
    pass  # a stream that is not whole ends so
print("over", json.dumps([time.time(), said.decode()]), flush=True)
"""
"""Program that reads an answer to its end."""
PROMPTS = {"drip": "read", "hang": "read", "silent": "sent"}
"""Prompts of requests, and the state of each when the machine disappears: its answer is being read,
or it was sent.
"""
ENDS_S = 15.0
"""Most seconds that a test waits for the end of a stream or of requests to the silent machine, if
this machine is busy with other tests.
"""


def over(running: RunningThere) -> tuple[float, str]:
    """Time at which the stream that `running` reads has ended, and its last bytes."""
    line = until(
        lambda: next((one for one in running.lines if one.startswith("over")), ""),
        "the answer ends",
        ENDS_S,
    )
    at, said = json.loads(line.removeprefix("over"))
    return at, said


def test_who_waits_for_a_machine_that_is_silent_hears_of_it() -> None:
    with two_machines() as two, ExitStack() as over_all:
        m1, m2 = two.m1, two.m2
        controller = two.serves(m1)
        controller.ready()
        url = f"http://{m1.host}:8000"
        until(lambda: m1.ask(url, "code", two.token)[0] == 200, "m1's router reaches m2")
        waiting = {
            prompt: over_all.enter_context(
                m1.runs_program("python3", "-c", READS, m1.host, two.token, prompt)
            )
            for prompt in PROMPTS
        }
        for prompt, words in PROMPTS.items():
            waiting[prompt].says(words)
        time.sleep(1.0)
        with m1.asks(url, "code", two.token) as asked:
            until(lambda: asked.since(0), "m1 asks")
            cut = time.time()
            two.house.cut("m2")
            for prompt, running in waiting.items():
                at, said = over(running)
                assert '"error"' in said, (prompt, said)
                print(f"{prompt}: ended {at - cut:.1f} s after the machine was cut off: {said}")
            until(lambda: asked.since(cut) and asked.since(cut)[-1][1] == 200, "it is elsewhere")
            answers = asked.since(cut)
        print("answers", [(round(at - cut, 1), status) for at, status in answers])

        def computing() -> list[str]:
            """Established connections of m1's router with m2's device, as m2 sees them."""
            told = m2.spaces.root("ss", "-tnH", "state", "established", "dst", m1.host)
            return [line for line in told.splitlines() if f":{port} " in line]

        port = controller.url("right").rpartition(":")[2]
        until(lambda: not computing(), "no engine computes for m1's router", ENDS_S)
        print(f"m2 has given up all of m1's requests after {time.time() - cut:.1f} s")
