"""24 chats of each pretrained model at once, and what people ask meanwhile, against plain vLLM.

Each model in turn has the memory of both, for longer answers than its own would hold; then both go
on with two more turns, whose histories have left the device meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from questions import Server
from real_questions import KINDS, QUESTIONS, alike, choices, words
from real_serving import ask, ask_both, histories, most, plain_both, served_both
from supervised import Served

from tests.real.chats import TOPICS, body
from tests.real.judging import Said, beginning, faults, forks, widest
from tests.real.models import NAMES, SMOLLM

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

Answers = dict[str, list[Said]]
"""Answers to one turn of all chats, by the model's name."""
CHATS = len(TOPICS)
CONTEXT = 2048
TOKENS = {"float32": (400, 40, 40), "bfloat16": (64, 16, 16)}
"""Tokens generated in each turn; a processor without bfloat16 instructions takes long."""
ALONE, BEGINNING = 8, 64
"""Chats that plain vLLM begins once more, one by one, for so many tokens: is it equal to itself?"""
LONG = "\n".join(f"Notes on {topic}, to be read before the lesson." for topic in TOPICS * 3)
"""Some thousand tokens."""
MANY_TURNS = 6


@pytest.mark.parametrize("dtype", TOKENS)
def test_chats_are_plain_vllms(dtype: str, tmp_path: Path) -> None:
    plain = _plain_turns(dtype)
    with served_both(tmp_path, dtype, CONTEXT) as served:
        before = histories([], CHATS)
        ours = [{n: ask(served, n, TOPICS, before[n], TOKENS[dtype][0]) for n in NAMES}]
        for number, tokens in enumerate(TOKENS[dtype][1:], 1):
            before = histories(plain[:number], CHATS)
            ours.append(ask_both(dict.fromkeys(NAMES, served), TOPICS, before, tokens))
        moved = {
            key: most(served, key) for key in ("layers_remapped", "kv_blocks", "tokens_loaded")
        }
    print(f"{dtype}: most of each {moved}")
    wrong = [each for pair in zip(plain, ours, strict=True) for each in _judged(dtype, *pair)]
    assert wrong == []
    assert min(moved["layers_remapped"].values()) > 0, "no layer moved"
    assert min(moved["tokens_loaded"].values()) > 0, "nothing came back from host memory"


def _plain_turns(dtype: str) -> list[Answers]:
    """Plain vLLM's answers in all turns of all chats, and the differences that rounding makes to
    them.
    """
    turns: list[Answers] = []
    with plain_both(dtype, CONTEXT) as servers:
        for tokens in TOKENS[dtype]:
            turns.append(ask_both(servers, TOPICS, histories(turns, CHATS), tokens))
        for name in NAMES:
            first = [beginning(each, BEGINNING) for each in turns[0][name][:ALONE]]
            again = [ask(servers[name], name, [t], [[]], BEGINNING)[0] for t in TOPICS[:ALONE]]
            print(f"{dtype} {name}: alone plain vLLM {_told(forks(first, again), ALONE)}")
    return turns


def _judged(dtype: str, plain: Answers, ours: Answers) -> list[Any]:
    """Faults of the answers of one turn; differences by rounding are printed."""
    for name in NAMES:
        print(f"{dtype} {name}: {_told(forks(plain[name], ours[name]), CHATS)}")
    return [each for name in NAMES for each in faults(plain[name], ours[name], dtype)]


def _told(found: Sequence[Any], chats: int) -> str:
    return f"says {chats - len(found)} of {chats} texts equally, widest lead {widest(found):.3g}"


def test_what_people_ask_while_chats_run(tmp_path: Path) -> None:
    with plain_both("float32", CONTEXT) as servers:
        expected = _answers(servers)
    with served_both(tmp_path, "float32", CONTEXT) as served, _chats(served):
        served.until("layers are away", lambda: min(most(served, "layers_remapped").values()) > 0)
        found = _answers(dict.fromkeys(NAMES, served))
    assert [kind for kind, answer in expected.items() if not alike(answer, found[kind])] == []


def _answers(servers: Mapping[str, Server]) -> dict[Any, Any]:
    """Answers to all questions, to one after a long text, and of a conversation."""
    answers: dict[Any, Any] = {(n, kind): QUESTIONS[n][kind](servers[n], n) for n, kind in KINDS}
    for name in NAMES:
        (choice,) = choices(servers[name], name, f"{LONG}\nWhat should I read first?")
        answers[name, "long"] = words(choice)
    answers["turns"] = _conversation(servers[SMOLLM])
    return answers


def _conversation(server: Server) -> list[str]:
    said = [{"role": "user", "content": "Tell me a story about a fox, one sentence at a time."}]
    for _ in range(MANY_TURNS):
        ask_for = {"model": SMOLLM, "messages": said, "temperature": 0, "max_tokens": 40}
        status, answer = server.request("POST", "/v1/chat/completions", ask_for)
        assert status == 200, answer
        said += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    return [str(each["content"]) for each in said[1::2]]


@contextmanager
def _chats(served: Served, clients: int = 24) -> Iterator[None]:
    """Context in which `clients` clients hold chats with both models, one after the other."""
    over, wrong = threading.Event(), []

    def client(number: int) -> None:
        for topic in (TOPICS[number:] + TOPICS) * 100:
            if over.is_set():
                return
            model = NAMES[number % len(NAMES)]
            status, answer = served.request("POST", *body(model, topic, (), 100 + 10 * number))
            if status != 200:
                wrong.append(answer)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:3]
