"""All formats of trace files: recognised, read row by row, and damage named."""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import accumulate, count, islice, repeat
from math import ceil

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.workload.formats import source
from mirage.workload.formats.registry import FORMATS
from mirage.workload.trace import (
    AS_IT_SAYS,
    MAX_TOKENS,
    Reading,
    TraceError,
    TraceRequest,
    read,
    select,
)
from tests.examples import examples

pytestmark = pytest.mark.pure

BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURSTGPT_3 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
)
TALK = [
    {"from": "system", "value": "Be kind."},
    {"from": "human", "value": "Say a word"},
    {"from": "gpt", "value": "Word"},
    {"from": "human", "value": "And another one"},
    {"from": "gpt", "value": "Another word, as you wish"},
    {"from": "human", "value": "Thanks"},
]


def lines(*rows: object) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


def timed_row(time, asked, answered, *hashes, **more) -> dict:
    row = {"timestamp": time, "input_length": asked, "output_length": answered}
    return row | ({"hash_ids": list(hashes)} if hashes else {}) | more


def rag_row(time, asked, answered, *parts, **more) -> dict:
    """Row in RAGPulse's format; `parts` are lists of hashes for the parts of its prompt, and
    missing ones are empty.
    """
    names = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
    lists = [*parts, *([[]] * len(names))][: len(names)]
    hashes = dict(zip(names, lists, strict=True))
    return timed_row(time, asked, answered, hash_ids=hashes, **more)


SAMPLES = {
    "azure": lines(
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.0319600,3180,8",
    ),
    "burstgpt": lines(
        BURSTGPT, "5,ChatGPT,472,18,490,Conversation log", "45,GPT-4,20,30,50,API log"
    ),
    "mooncake": lines(timed_row(27482, 1000, 52, 46, 47), timed_row(30535, 513, 26, 46, 48)),
    "guidellm": lines(timed_row(0, 1000, 52, 46, 47), timed_row(0.25, 513, 26, 46, 48)),
    "timed": lines(timed_row(0.5, 40, 132, 7, 8, 9), timed_row(60, 8, 5, 7)),
    "ragpulse": lines(
        rag_row(
            "82", 1537, 192, [8302, 14332, 15199], [7398], [15200], [], [26923], session_id="a"
        ),
        rag_row("93.5", 1200, 86, [8302, 14332, 15198], session_id="b"),
    ),
    "sharegpt": json.dumps([{"id": "one", "conversations": TALK}], indent=1).encode(),
    "alpaca": json.dumps(
        [
            {"instruction": "Name a colour", "input": "", "output": "Blue"},
            {"instruction": "Sum up", "input": "A long text", "output": "A text"},
        ]
    ).encode(),
    "custom": lines({"prompt": "What is the capital?", "output_tokens": 10}, {"prompt": "Hi"}),
}
MEANT = {
    "azure": [TraceRequest(0.0, 4808, 10), TraceRequest(0.052, 3180, 8)],
    "burstgpt": [TraceRequest(0.0, 472, 18), TraceRequest(40.0, 20, 30)],
    "mooncake": [
        TraceRequest(0.0, 1000, 52, None, (46, 47), 512),
        TraceRequest(3.053, 513, 26, None, (46, 48), 512),
    ],
    "guidellm": [
        TraceRequest(0.0, 1000, 52, None, (46, 47), 512),
        TraceRequest(0.25, 513, 26, None, (46, 48), 512),
    ],
    "timed": [
        TraceRequest(0.0, 40, 132, None, (7, 8, 9), 16),
        TraceRequest(59.5, 8, 5, None, (7,), 16),
    ],
    "ragpulse": [
        TraceRequest(0.0, 1537, 192, "a", (8302, 14332, 15199, 7398), 512),
        TraceRequest(11.5, 1200, 86, "b", (8302, 14332, 15198), 512),
    ],
    "sharegpt": [
        TraceRequest(0.0, 5, 1, "one", prompt="Say a word"),
        TraceRequest(0.0, 10, 7, "one", prompt="And another one"),
    ],
    "alpaca": [
        TraceRequest(0.0, 4, 1, prompt="Name a colour"),
        TraceRequest(0.0, 5, 2, prompt="Sum up\n\nA long text"),
    ],
    "custom": [
        TraceRequest(0.0, 5, 10, prompt="What is the capital?"),
        TraceRequest(0.0, 1, 256, prompt="Hi"),
    ],
}
NAMES = sorted(set(FORMATS) - {"synthetic", "gentd26", "servegen"})
"""Formats whose file alone gives all requests; `test_trace_synthetic.py` and `test_trace_models.py`
have the others.
"""


def how(name: str, given: str | None = None) -> Reading:
    """Options for reading a format. Requests of formats without arrivals get 1,000 arrivals a
    second.
    """
    return Reading(given, None if FORMATS[name].has_arrivals else 1000.0)


def without_arrivals(name, requests) -> list[TraceRequest]:
    """Requests as their file has them; arrivals that had to be drawn are set to 0."""
    timed = FORMATS[name].has_arrivals
    return [request if timed else replace(request, arrival_s=0.0) for request in requests]


@pytest.fixture
def write(tmp_path):
    def written(content: bytes, name: str = "trace"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return written


def refusal(path, reading=AS_IT_SAYS) -> str:
    with pytest.raises(TraceError) as caught:
        list(read(path, reading))
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    return message


@pytest.mark.parametrize("name", NAMES)
def test_a_format_is_known_by_its_beginning_and_read(write, name):
    path = write(SAMPLES[name])
    assert without_arrivals(name, read(path, how(name))) == without_arrivals(name, MEANT[name])
    named = read(path, how(name, given=name))
    assert without_arrivals(name, named) == without_arrivals(name, MEANT[name])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\n  \n"])
def test_marks_and_blank_ends_change_nothing(write, name, mark, end):
    path = write(mark + SAMPLES[name].replace(b"\n", b"\r\n") + end)
    assert without_arrivals(name, read(path, how(name))) == without_arrivals(name, MEANT[name])


@pytest.mark.parametrize("name", ["sharegpt", "alpaca", "mooncake"])
def test_an_array_and_an_object_a_line_are_read_alike(write, name):
    rows = (
        json.loads(SAMPLES[name])
        if SAMPLES[name].startswith(b"[")
        else [json.loads(row) for row in SAMPLES[name].splitlines()]
    )
    for content in (json.dumps(rows).encode(), lines(*rows)):
        found = without_arrivals(name, read(write(content), how(name)))
        assert found == without_arrivals(name, MEANT[name])


def test_burstgpt_with_sessions(write):
    path = write(
        lines(
            BURSTGPT_3,
            "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log",
            "19440161.25,,2,ChatGPT,36,29,65,API log",
        )
    )
    assert list(read(path)) == [
        TraceRequest(0.0, 906, 446, "1722ac82"),
        TraceRequest(51.25, 36, 29),
    ]


LMM = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
AZURES = [
    (LMM, "2024-10-15 00:00:00.5,0,4808,10", "2024-10-15 00:00:00.75,2,3180,8"),
    (f",{LMM}", "0,2024-10-15 00:00:00.5,0,4808,10", "1,2024-10-15 00:00:00.75,2,3180,8"),
    (
        "ContextTokens,TIMESTAMP,GeneratedTokens,NumImages",
        "4808.0,2024-10-15 00:00:00.500000+00:00,10.0,0.0",
        "3180.0,2024-10-15 00:00:00.750000+00:00,8.0,2.0",
    ),
    (
        '"TIMESTAMP","NumImages","ContextTokens","GeneratedTokens"',
        '"2024-10-15 00:00:00.5","0","4808","10"',
        '"2024-10-15 00:00:00.75","2","3180","8"',
    ),
]


@pytest.mark.parametrize("rows", AZURES)
def test_azure_of_2025_is_read_without_its_pictures(write, caplog, rows):
    path = write(lines(*rows))
    assert list(read(path)) == [TraceRequest(0.0, 4808, 10), TraceRequest(0.25, 3180, 8)]
    assert list(read(path)) == list(read(path, Reading("azure")))
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(str(path)) and "pictures (NumImages) are left out" in said


def test_azure_of_2025_without_any_picture_says_nothing(write, caplog):
    assert len(list(read(write(lines(LMM, "2024-10-15 00:00:00,0,4808,10"))))) == 1
    assert not caplog.records


@pytest.mark.parametrize(
    "rows",
    [
        (
            f",{BURSTGPT}",
            "0,5.0,ChatGPT,472.0,18.0,490.0,Conversation log",
            "1,45.0,GPT-4,20.0,30.,50.0,API log",
        ),
        (
            ",".join(f'"{name}"' for name in BURSTGPT.split(",")),
            '"5","Chat ""GPT"", old",472,18,490,"Conversation log"',
            '45,"GPT-4",20,30,50,API log',
        ),
    ],
)
def test_burstgpt_as_pandas_and_r_write_it(write, rows):
    assert list(read(write(lines(*rows)))) == MEANT["burstgpt"]


def test_a_session_of_a_timed_trace_is_kept(write):
    path = write(lines(timed_row(0.0, 3, 4, session_id="a"), timed_row(1.0, 3, 4, session_id=7)))
    assert [request.session for request in read(path)] == ["a", "7"]


def test_chats_without_a_name_are_sessions_all_the_same(write):
    path = write(lines({"conversations": TALK}, {"conversations": TALK}))
    found = read(path, how("sharegpt"))
    assert [request.session for request in found] == ["1", "1", "2", "2"]


@pytest.mark.parametrize(
    ("content", "name", "requests", "skipped"),
    [
        (
            lines(BURSTGPT, "5,GPT-4,0,0,0,x", "6,GPT-4,7,0,7,x", "7,GPT-4,0,7,7,x", "8,a,1,1,2,x"),
            "burstgpt",
            1,
            {"failed requests (0 response tokens)": 2, "rows with 0 request tokens": 1},
        ),
        (
            lines(timed_row(0, 600, 0, 1, 2), timed_row(0, 600, 1, 1, 2)),
            "mooncake",
            1,
            {"requests without output (output_length 0)": 1},
        ),
        (
            lines(
                {"conversations": []},
                {"conversations": TALK[:2]},
                {"conversations": [TALK[1], {"from": "gpt", "value": " "}, *TALK[1:3]]},
            ),
            "sharegpt",
            1,
            {
                "conversations without a question and its answer": 2,
                "turns with an empty question or answer": 1,
            },
        ),
        (
            lines({"instruction": "a", "output": ""}, {"instruction": "a", "output": "b"}),
            "alpaca",
            1,
            {"entries with an empty instruction or output": 1},
        ),
    ],
)
def test_what_is_no_request_is_skipped_and_counted(write, content, name, requests, skipped):
    counted: Counter[str] = Counter()
    found = select(write(content), None, None, how(name), counted)
    assert (len(found), counted) == (requests, skipped)


def test_the_first_request_after_skipped_rows_keeps_its_place_in_time(write):
    path = write(lines(BURSTGPT, "5,GPT-4,9,0,9,x", "8,GPT-4,9,9,18,x"))
    assert [request.arrival_s for request in read(path)] == [3.0]


def test_a_trace_of_nothing_but_failures_says_so(write):
    path = write(lines(BURSTGPT, "5,GPT-4,0,0,0,x", "6,GPT-4,7,0,7,x"))
    says = refusal(path)
    assert "no row is a request (failed requests (0 response tokens): 2)" in says


DAMAGED_ROWS = [
    ("burstgpt", "6,GPT-4,1,2,3", "expected 6 fields, as the header has"),
    ("burstgpt", "6,GPT-4,1,2,3,x,y", "expected 6 fields"),
    ("burstgpt", "now,GPT-4,1,2,3,x", "Timestamp 'now', expected seconds"),
    ("burstgpt", "-6,GPT-4,1,2,3,x", "Timestamp '-6', expected seconds"),
    ("burstgpt", "1e3,GPT-4,1,2,3,x", "Timestamp '1e3', expected seconds"),
    ("burstgpt", '6,"GPT-4,1,2,3,x', "expected 6 fields, as the header has"),
    ("burstgpt", f'6,"{"a" * 200_000}",1,2,3,x', "expected 6 fields, as the header has"),
    ("burstgpt", "6,GPT-4,nan,2,3,x", "request tokens 'nan', expected a whole number from 0"),
    ("burstgpt", "6,GPT-4,1.5,2,3,x", "request tokens '1.5', expected a whole number from 0"),
    ("burstgpt", "6,GPT-4,1,,3,x", "response tokens '', expected a whole number from 0"),
    ("burstgpt", "6,GPT-4,1,-2,3,x", "response tokens '-2'"),
    ("burstgpt", "6,GPT-4,10000001,2,3,x", "request tokens '10000001'"),
    ("burstgpt", "4,GPT-4,1,2,3,x", "time goes back by 1 s to '4': sort the rows"),
    ("mooncake", '{"timestamp": 1', "which is no JSON"),
    ("mooncake", "timestamp,input_length", "which is no JSON"),
    ("mooncake", "[1, 2]", "found [1, 2], expected a JSON object"),
    ("mooncake", "{}", "has no 'timestamp', only nothing"),
    (
        "mooncake",
        '{"timestamp": 30000, "input_length": 4}',
        "has no 'output_length', only 'timestamp",
    ),
    ("mooncake", timed_row("soon", 1, 1), "timestamp 'soon', expected a number from 0"),
    ("mooncake", timed_row(-1, 1, 1), "timestamp -1, expected a number"),
    ("mooncake", timed_row(True, 1, 1), "timestamp True, expected a number"),
    ("mooncake", timed_row(10**18, 1, 1), "expected a number from 0 to"),
    ("mooncake", '{"timestamp": NaN, "input_length": 1, "output_length": 1}', "no JSON"),
    ("mooncake", '{"timestamp": 1e999, "input_length": 1, "output_length": 1}', "line 2: "),
    ("mooncake", timed_row(27481, 1, 1), "time goes back by 0.001 s to '27481'"),
    ("mooncake", timed_row(30000, 0, 1), "input_length tokens 0, expected a whole number from 1"),
    ("mooncake", timed_row(30000, 1.5, 1), "input_length tokens 1.5"),
    ("mooncake", timed_row(30000, "7", 1), "input_length tokens '7'"),
    ("mooncake", timed_row(30000, 7, None), "output_length tokens None"),
    ("mooncake", timed_row(30000, 7, MAX_TOKENS + 1), "output_length tokens 10000001"),
    ("mooncake", timed_row(30000, 512, 1, 1, 2), "2 hash_ids for 512 tokens, one for each 512"),
    ("mooncake", timed_row(30000, 512, 1, hash_ids="a"), "hash_ids 'a', expected a list"),
    ("mooncake", timed_row(30000, 512, 1, "a"), "hash_ids ['a'], expected a list of whole"),
    ("mooncake", timed_row(30000, 512, 1, session_id=[]), "session_id [], expected a text"),
    ("guidellm", timed_row(0.125, 1, 1), "time goes back by 0.125 s to '0.125'"),
    ("guidellm", timed_row(1, 512, 1, 1, 2), "2 hash_ids for 512 tokens, one for each 512"),
    ("guidellm", {"delay": 2.5, "input_length": 1, "output_length": 1}, "a delay after an answer"),
    ("timed", timed_row(0.25, 1, 1), "time goes back by 0.25 s to '0.25'"),
    ("timed", timed_row(1, 32, 1, 1, 2, 3), "3 hash_ids for 32 tokens, one for each 16"),
    ("ragpulse", rag_row(93, 9, 9), "timestamp 93, expected a text"),
    ("ragpulse", rag_row("soon", 9, 9), "Timestamp 'soon', expected seconds"),
    ("ragpulse", rag_row("0", 9, 9), "time goes back by 82 s to '0': sort the rows"),
    ("ragpulse", rag_row("93", 0, 9), "input_length tokens 0, expected a whole number from 1"),
    ("ragpulse", rag_row("93", 9, -1), "output_length tokens -1"),
    ("ragpulse", timed_row("93", 9, 9), "has no 'hash_ids', only"),
    ("ragpulse", timed_row("93", 9, 9, 1), "hash_ids [1], expected an object with lists"),
    ("ragpulse", timed_row("93", 9, 9, hash_ids={"sys_prompt": [1]}), "expected an object with"),
    ("ragpulse", rag_row("93", 9, 9, ["a"]), "expected an object with lists of whole numbers"),
    ("ragpulse", rag_row("93", 9, 9, session_id=[]), "session_id [], expected a text or a number"),
    ("sharegpt", {"id": "x"}, "has no 'conversations', only 'id'"),
    ("sharegpt", {"conversations": "hi"}, "conversations 'hi', expected a list of turns"),
    ("sharegpt", {"conversations": ["hi"]}, "turn 'hi', expected an object with from and value"),
    ("sharegpt", {"conversations": [{"from": "gpt"}]}, "has no 'value', only 'from'"),
    ("sharegpt", {"conversations": [{"from": 1, "value": ""}]}, "from 1, expected a text"),
    ("sharegpt", {"conversations": [{"from": "gpt", "value": None}]}, "value None, expected"),
    ("sharegpt", {"id": {}, "conversations": TALK}, "id {}, expected a text or a number"),
    ("alpaca", {"instruction": "a"}, "has no 'output', only 'instruction'"),
    ("alpaca", {"instruction": 1, "output": "b"}, "instruction 1, expected a text"),
    ("alpaca", {"instruction": "a", "input": None, "output": "b"}, "input None, expected"),
    ("custom", {"output_tokens": 3}, "has no 'prompt', only 'output_tokens'"),
    ("custom", {"prompt": ["a"]}, "prompt ['a'], expected a text"),
    ("custom", {"prompt": ""}, "prompt is empty"),
    ("custom", {"prompt": "a", "output_tokens": 0}, "output_tokens tokens 0"),
    ("custom", {"prompt": "a", "output_tokens": "many"}, "output_tokens tokens 'many'"),
    ("custom", '"a"', "found 'a', expected a JSON object"),
    ("custom", '{"prompt": "\\ud800"}', "which is no JSON"),
    ("custom", "[" * 5000, "which is no JSON"),
]
FIRST = {
    "burstgpt": (BURSTGPT, "5,ChatGPT,472,18,490,x"),
    "mooncake": (timed_row(27482, 1000, 52, 46, 47),),
    "guidellm": (timed_row(0.25, 1000, 52, 46, 47),),
    "timed": (timed_row(0.5, 40, 132, 7, 8, 9),),
    "ragpulse": (rag_row("82", 1537, 192, [8302, 14332, 15199]),),
    "sharegpt": ({"conversations": TALK},),
    "alpaca": ({"instruction": "a", "output": "b"},),
    "custom": ({"prompt": "a"},),
}


@pytest.mark.parametrize(("name", "row", "says"), DAMAGED_ROWS)
def test_a_damaged_row_is_named_by_file_and_line(write, name, row, says):
    first = FIRST[name]
    path = write(lines(*first, row, first[-1]))
    message = refusal(path, how(name))
    assert message.startswith(f"{path}, line {len(first) + 1}: ")
    assert says in message


@pytest.mark.parametrize(
    ("name", "row", "says"), [case for case in DAMAGED_ROWS if isinstance(case[1], dict)]
)
def test_a_damaged_entry_of_an_array_is_named_by_its_number(write, name, row, says):
    first = FIRST[name]
    path = write(json.dumps([*first, row, first[-1]]).encode())
    message = refusal(path, how(name))
    assert message.startswith(f"{path}, entry 2: ")
    assert says in message


ENTRY = json.dumps({"instruction": "a", "output": "b"}).encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" + ENTRY + b"," + ENTRY[:20], "entry 2: here the file is no JSON"),
        (b"[" + ENTRY + b",", "entry 2: here the file is no JSON"),
        (b"[" + ENTRY + b" " + ENTRY + b"]", "entry 2: here the file is no JSON"),
        (b"[" + ENTRY + b"] and more", "entry 2: here the file is no JSON"),
        (b"[" + ENTRY + b", NaN]", "entry 2: here the file is no JSON"),
        (b"[" + ENTRY + b', {"instruction": "\xff"}]', "entry 2: here the file is no JSON"),
        (b"[" + ENTRY + b", 5]", "entry 2: found 5, expected a JSON object"),
        (b"[" + ENTRY + b", [1, 2]]", "entry 2: found [1, 2], expected a JSON object"),
        (ENTRY + b"\n" + b'{"instruction": "\xff", "output": "a"}', "line 2: found"),
        (ENTRY + b"\n\n" + ENTRY, "line 2: blank, and rows follow"),
    ],
)
def test_a_damaged_file_is_named_where_it_breaks(write, content, says):
    path = write(content)
    assert refusal(path, how("alpaca")).startswith(f"{path}, {says}")


@pytest.mark.parametrize("name", ["mooncake", "timed", "sharegpt", "alpaca", "custom"])
@pytest.mark.parametrize("content", [b"[]", b"\n"])
def test_a_file_without_entries(write, name, content):
    assert "holds no JSON objects" in refusal(write(content), how(name, given=name))


@pytest.mark.parametrize("name", ["azure", "burstgpt"])
def test_a_header_without_rows_and_a_file_without_its_header(write, name):
    header = SAMPLES[name].splitlines()[0]
    assert "has a header and no rows" in refusal(write(header))
    for content in (b"a,b,c\n1,2,3", b"\n", b"[]"):
        assert "line 1: found" in refusal(write(content), Reading(name))


def test_a_row_that_never_ends_is_not_held(write, monkeypatch):
    monkeypatch.setattr(source, "MAX_LINE", 2**20)
    path = write(SAMPLES["burstgpt"] + b"\n" + b"9" * 2**21)
    assert "line 4: over 1.0 MiB long: this is no trace" in refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        b"a,b,c\n1,2,3",
        b"2023-11-16 18:17:03,1,1",
        b'{"data": [1, 2]}',
        b"[[1, 2]]",
        b"[",
    ],
)
def test_a_file_of_no_known_format_gets_the_list_of_them(write, content):
    message = refusal(write(content))
    assert "line 1: found" in message and all(name in message for name in FORMATS)


@pytest.mark.parametrize(
    ("row", "fits"),
    [
        (timed_row(0, 600, 5, 1, 2), "mooncake"),
        (timed_row(0, 600, 5, 1), "mooncake"),
        (timed_row(0, 32, 5, 1, 2), "timed"),
        (timed_row(0.0, 600, 5), "timed"),
        (timed_row(0, 12, 5, 1, chat_id=3, parent_chat_id=-1, turn=1), "timed"),
        (timed_row(3, 600, 5), None),
        (timed_row(3, 12, 5, 1), None),
    ],
)
def test_milliseconds_and_seconds_are_told_apart_or_asked_for(write, row, fits):
    path = write(lines(row, row | {"timestamp": row["timestamp"] + 1}))
    if fits is None:
        message = refusal(path)
        assert "mooncake" in message and "or timed" in message and "--trace-format" in message
        assert [r.arrival_s for r in read(path, Reading("mooncake"))] == [0.0, 0.001]
        assert [r.arrival_s for r in read(path, Reading("timed"))] == [0.0, 1.0]
    else:
        gap = {"mooncake": 0.001, "timed": 1.0}[fits]
        assert [r.arrival_s for r in read(path)] == [0.0, gap]


def test_a_format_that_is_none(write):
    message = refusal(write(SAMPLES["azure"]), Reading("azur"))
    assert message == f"trace format 'azur': choose from {', '.join(FORMATS)}"


@pytest.mark.parametrize("name", NAMES)
def test_a_rate_is_for_formats_without_arrivals(write, name):
    path = write(SAMPLES[name])
    if FORMATS[name].has_arrivals:
        assert "has arrivals of its own: leave the rate out" in refusal(path, Reading(rate=1.0))
    else:
        assert f"{name} has no arrivals: give a rate" in refusal(path)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e7])
def test_a_rate_that_is_none(write, rate):
    assert "use requests a second" in refusal(write(SAMPLES["custom"]), Reading(rate=rate))


def test_drawn_arrivals_have_the_rate_and_follow_the_seed(write):
    path = write(lines(*[{"prompt": "a"}] * 2000))
    arrivals = [request.arrival_s for request in read(path, Reading(rate=50.0, seed=1))]
    assert arrivals[0] == 0.0 and arrivals == sorted(arrivals)
    assert 36 < arrivals[-1] < 44
    again = [request.arrival_s for request in read(path, Reading(rate=50.0, seed=1))]
    other = [request.arrival_s for request in read(path, Reading(rate=50.0, seed=2))]
    assert arrivals == again != other
    half = [request.arrival_s for request in read(path, Reading(rate=25.0, seed=1))]
    assert half == pytest.approx([2 * arrival for arrival in arrivals]), "the same gaps, longer"


def test_a_window_of_drawn_arrivals(write):
    path = write(lines(*({"prompt": "a", "output_tokens": n} for n in range(1, 500))))
    reading = Reading(rate=10.0, seed=3)
    whole = list(read(path, reading))
    part = select(path, (10, 20), None, reading)
    inside = [request for request in whole if 10 <= request.arrival_s < 20]
    assert [r.output_tokens for r in part] == [r.output_tokens for r in inside]
    assert [r.prompt for r in part] == ["a"] * len(inside)


ENDLESS = {
    "azure": (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n",
        (f"2023-11-16 18:17:{n % 60:02d},1,1\n".encode() for n in repeat(3)),
    ),
    "burstgpt": (
        BURSTGPT.encode() + b"\n",
        (f"{n},GPT-4,3,4,7,x\n".encode() for n in count()),
    ),
    "mooncake": (b"", (lines(timed_row(n, 600, 4, n, n + 1)) + b"\n" for n in count())),
    "guidellm": (b"", (lines(timed_row(n / 4, 600, 4, n, n + 1)) + b"\n" for n in count())),
    "timed": (b"", (lines(timed_row(n / 4, 30, 4, n, n + 1)) + b"\n" for n in count())),
    "ragpulse": (b"", (lines(rag_row(str(n), 600, 4, [n, n + 1])) + b"\n" for n in count())),
    "sharegpt": (b"[", (lines({"id": "a", "conversations": TALK}) + b"," for _ in count())),
    "alpaca": (b"[", (ENTRY + b"," for _ in count())),
    "custom": (b"", (lines({"prompt": "a b c d"}) + b"\n" for _ in count())),
}


@pytest.mark.parametrize("name", NAMES)
def test_an_endless_pipe_gives_its_first_requests(tmp_path, name):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    begin, rows = ENDLESS[name]

    def feed() -> None:
        try:
            with path.open("wb", buffering=0) as pipe:
                pipe.write(begin)
                for row in rows:
                    pipe.write(row)
        except BrokenPipeError:
            pass

    feeder = threading.Thread(target=feed)
    feeder.start()
    requests = read(path, how(name))
    assert len(list(islice(requests, 3))) == 3
    requests.close()
    feeder.join()


def test_an_empty_window_of_a_pipe_does_not_wait_for_a_second_one(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    feeder = threading.Thread(target=path.write_bytes, args=(SAMPLES["azure"],))
    feeder.start()
    with pytest.raises(TraceError, match="from 5 to 9 s: choose another window"):
        select(path, (5, 9))
    feeder.join()


TEXT = "words " * 200
MANY = {
    "azure": lambda n: f"2023-11-16 {n // 3600:02d}:{n // 60 % 60:02d}:{n % 60:02d},1,1",
    "burstgpt": lambda n: f"{n},GPT-4,3,4,7,{TEXT}",
    "mooncake": lambda n: timed_row(n, 50_000, 4, *range(n, n + 98)),
    "guidellm": lambda n: timed_row(n / 4, 50_000, 4, *range(n, n + 98)),
    "timed": lambda n: timed_row(n / 4, 1600, 4, *range(n, n + 100)),
    "ragpulse": lambda n: rag_row(str(n), 50_000, 4, [*range(n, n + 98)]),
    "sharegpt": lambda n: {"conversations": [TALK[1] | {"value": TEXT}, TALK[2]]},
    "alpaca": lambda n: {"instruction": TEXT, "output": "b"},
    "custom": lambda n: {"prompt": TEXT},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_rows_are_not_held(write, name):
    header = {"azure": SAMPLES["azure"].splitlines()[0].decode(), "burstgpt": BURSTGPT}
    rows = [MANY[name](n) for n in range(10_000)]
    array = name in ("sharegpt", "alpaca")
    before = [header[name]] if name in header else []
    content = json.dumps(rows).encode() if array else lines(*before, *rows)
    path = write(content)
    del rows, content
    tracemalloc.start()
    try:
        assert sum(1 for _ in read(path, how(name))) == 10_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20, "a few chunks, and no row twice"


lengths = st.integers(1, MAX_TOKENS)
gaps = st.integers(0, 10**9)
texts = st.text(min_size=1, max_size=60).filter(lambda text: text.strip())
rows = st.lists(st.tuples(gaps, lengths, lengths), min_size=1, max_size=20)
names = st.none() | texts


def times_of(entries) -> list[int]:
    return list(accumulate(entry[0] for entry in entries))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("traces") / "trace"


@given(rows=rows, extra=st.booleans())
def test_burstgpt_is_read_back(path, rows, extra):
    times = times_of(rows)
    stamps = [f"{time // 1000}.{time % 1000:03d}" for time in times]
    header = BURSTGPT_3 if extra else BURSTGPT
    between = ",s-1,3" if extra else ""
    found = [
        f"{stamp}{between},GPT-4,{asked},{answered},{asked + answered},API log"
        for stamp, (_, asked, answered) in zip(stamps, rows, strict=True)
    ]
    path.write_bytes(lines(header, *found))
    session = "s-1" if extra else None
    assert list(read(path)) == [
        TraceRequest((time - times[0]) / 1000, asked, answered, session)
        for time, (_, asked, answered) in zip(times, rows, strict=True)
    ]


@st.composite
def hashed(draw, size):
    """Drawn gap, lengths, and one hash for each `size` tokens of the prompt."""
    asked = draw(st.integers(1, size * 20))
    number = ceil(asked / size)
    ids = draw(st.lists(st.integers(0, 10**9), min_size=number, max_size=number))
    return draw(gaps), asked, draw(st.integers(1, 5000)), tuple(ids)


@pytest.mark.parametrize(
    ("name", "size", "unit"), [("mooncake", 512, 1000), ("guidellm", 512, 1), ("timed", 16, 1)]
)
@given(data=st.data(), array=st.booleans())
def test_timed_rows_are_read_back(path, name, size, unit, data, array):
    drawn = data.draw(st.lists(hashed(size), min_size=1, max_size=10))
    times = times_of(drawn)
    rows = [
        timed_row(time, asked, answered, *ids)
        for time, (_, asked, answered, ids) in zip(times, drawn, strict=True)
    ]
    path.write_bytes(json.dumps(rows).encode() if array else lines(*rows))
    assert list(read(path, Reading(name))) == [
        TraceRequest((time - times[0]) / unit, asked, answered, None, ids, size)
        for time, (_, asked, answered, ids) in zip(times, drawn, strict=True)
    ]


@given(data=st.data(), array=st.booleans())
def test_ragpulse_is_read_back(path, data, array):
    numbers = st.lists(st.integers(0, 10**9), max_size=4)
    drawn = data.draw(
        st.lists(
            st.tuples(gaps, lengths, lengths, st.tuples(*[numbers] * 5), st.none() | texts),
            min_size=1,
            max_size=10,
        )
    )
    times = times_of(drawn)
    rows = [
        rag_row(f"{time}", asked, answered, *parts, session_id=name)
        for time, (_, asked, answered, parts, name) in zip(times, drawn, strict=True)
    ]
    path.write_bytes(json.dumps(rows).encode() if array else lines(*rows))
    meant = []
    for time, (_, asked, answered, parts, name) in zip(times, drawn, strict=True):
        ids = tuple(one for part in parts for one in part)[: ceil(asked / 512)]
        size = 512 if ids else 0
        meant.append(TraceRequest(float(time - times[0]), asked, answered, name, ids, size))
    assert list(read(path, Reading("ragpulse"))) == meant


def test_what_is_skipped_of_ragpulse_is_counted(write):
    counted: Counter[str] = Counter()
    path = write(lines(rag_row("1", 9, 0), rag_row("2", 9, 1)))
    assert len(select(path, None, None, how("ragpulse"), counted)) == 1
    assert counted == {"requests without output (output_length 0)": 1}


def tokens_of(characters: int) -> int:
    return max(1, ceil(characters / 4))


@given(chats=st.lists(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), min_size=1))
@examples(50)
def test_sharegpt_is_read_back(path, chats):
    entries = [
        {
            "id": f"chat {number}",
            "conversations": [
                {"from": speaker, "value": said}
                for pair in chat
                for speaker, said in zip(("human", "gpt"), pair, strict=True)
            ],
        }
        for number, chat in enumerate(chats)
    ]
    path.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
    meant = []
    for number, chat in enumerate(chats):
        said = 0
        for question, answer in chat:
            said += len(question)
            lengths = tokens_of(said), tokens_of(len(answer))
            meant.append(TraceRequest(0.0, *lengths, f"chat {number}", prompt=question))
            said += len(answer)
    found = read(path, how("sharegpt"))
    assert without_arrivals("sharegpt", found) == without_arrivals("sharegpt", meant)


@given(
    entries=st.lists(st.tuples(texts, st.just("") | texts, texts), min_size=1), array=st.booleans()
)
@examples(50)
def test_alpaca_is_read_back(path, entries, array):
    keys = ("instruction", "input", "output")
    rows = [dict(zip(keys, entry, strict=True)) for entry in entries]
    path.write_bytes(json.dumps(rows, indent=4).encode() if array else lines(*rows))
    meant = []
    for instruction, given_text, answer in entries:
        prompt = f"{instruction}\n\n{given_text}" if given_text else instruction
        lengths = tokens_of(len(prompt)), tokens_of(len(answer))
        meant.append(TraceRequest(0.0, *lengths, prompt=prompt))
    found = read(path, how("alpaca"))
    assert without_arrivals("alpaca", found) == without_arrivals("alpaca", meant)


@given(entries=st.lists(st.tuples(texts, st.none() | lengths), min_size=1))
@examples(50)
def test_custom_is_read_back(path, entries):
    rows = [
        {"prompt": prompt} | ({} if output is None else {"output_tokens": output})
        for prompt, output in entries
    ]
    path.write_bytes(lines(*rows))
    meant = [
        TraceRequest(0.0, tokens_of(len(prompt)), 256 if output is None else output, prompt=prompt)
        for prompt, output in entries
    ]
    found = read(path, how("custom"))
    assert without_arrivals("custom", found) == without_arrivals("custom", meant)


@given(content=st.binary(max_size=300), name=st.none() | st.sampled_from(NAMES))
@examples(300)
def test_any_bytes_are_read_or_refused_in_one_line(path, content, name):
    path.write_bytes(content)
    rate = None if name is None or FORMATS[name].has_arrivals else 1.0
    try:
        list(read(path, Reading(name, rate)))
    except TraceError as error:
        assert "\n" not in str(error) and str(error).startswith(str(path))


@given(data=st.data(), name=st.sampled_from(NAMES))
@examples(300)
def test_any_damage_of_a_file_is_read_or_refused_in_one_line(path, data, name):
    whole = bytearray(SAMPLES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place : place + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=3))
        if not whole:
            break
    path.write_bytes(bytes(whole))
    try:
        list(read(path, how(name)))
    except TraceError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("content", [SAMPLES["azure"], b"a,b,c"])
def test_a_file_is_closed_however_its_reading_ends(write, content):
    path, before = write(content), psutil.Process().num_fds()
    requests = read(path)
    try:
        next(requests)
        assert psutil.Process().num_fds() == before + 1
    except TraceError:
        pass
    requests.close()
    assert psutil.Process().num_fds() == before
