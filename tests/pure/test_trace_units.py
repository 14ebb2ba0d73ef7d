"""Units of a trace: seconds or milliseconds, 16 or 512 tokens a hash, by its first
rows or asked.
"""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.workload.formats import source
from mirage.workload.trace import AS_IT_SAYS, Reading, TraceError, has_arrivals, read

pytestmark = pytest.mark.pure

PAIR = "seconds or milliseconds"


def row(time: object, asked: object = 600, *hashes: int, **more: object) -> dict:
    """Row of a timed trace; by default its prompt has two hashes."""
    found = {"timestamp": time, "input_length": asked, "output_length": 5}
    return found | {"hash_ids": list(hashes or (0, 1))} | more


def bare(time: object) -> dict:
    return {"timestamp": time, "input_length": 600, "output_length": 5}


@pytest.fixture
def write(tmp_path):
    def written(rows: list[dict], array: bool = False, packed: bool = False):
        text = json.dumps(rows) if array else "\n".join(map(json.dumps, rows))
        path = tmp_path / f"trace-{len(list(tmp_path.iterdir()))}"
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        return path

    return written


def read_as(path, how: Reading = AS_IT_SAYS) -> tuple[list[float], int]:
    """Arrivals in seconds, and the tokens that a hash stands for, as the reader finds them."""
    found = list(read(path, how))
    return [request.arrival_s for request in found], found[0].hash_tokens


def refusal(path, how: Reading = AS_IT_SAYS) -> str:
    with pytest.raises(TraceError) as caught:
        list(read(path, how))
    assert "\n" not in str(caught.value)
    return str(caught.value)


GUIDELLM = [row(0), row(0.2, 620, 0, 2), row(30.4, 615, 3, 4)]


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_seconds_with_hashes_of_512_tokens_are_guidellms(write, array, packed):
    path = write(GUIDELLM, array, packed)
    assert read_as(path) == read_as(path, Reading("guidellm")) == ([0.0, 0.2, 30.4], 512)
    assert read_as(path, Reading("mooncake"))[0] == pytest.approx([0.0, 0.0002, 0.0304])


@pytest.mark.parametrize("whole", [1, 40, 400])
def test_a_fraction_may_come_many_rows_after_the_first_one(write, whole):
    path = write([row(n) for n in range(whole)] + [row(whole + 0.5)])
    arrivals, _ = read_as(path)
    assert arrivals[-1] == whole + 0.5


def test_a_fraction_that_comes_too_late_to_be_seen_first_is_refused(write, monkeypatch):
    monkeypatch.setattr(source, "MAX_FURTHER", 2**10)
    path = write([row(n) for n in range(100)] + [row(100.5)])
    said = refusal(path)
    assert "line 101: timestamp 100.5" in said and PAIR in said and "guidellm" in said
    assert read_as(path, Reading("guidellm"))[0][-1] == 100.5
    assert read_as(path, Reading("mooncake"))[0][-1] == pytest.approx(0.1005)


@pytest.mark.parametrize(
    ("times", "meant"),
    [
        ([0, 105, 274], "mooncake"),
        ([0.0, 105.0, 274.0], "mooncake"),
        ([27482.0, 30535.0], "mooncake"),
        ([0.0, 0.2, 0.4], "guidellm"),
        ([0.0, 3.0, 9.0], "guidellm"),
        ([1700000000.25, 1700000001.5], "guidellm"),
    ],
)
def test_times_are_told_by_points_and_by_how_far_apart_they_are(write, times, meant):
    found, size = read_as(write([row(time) for time in times]))
    unit = {"mooncake": 1000, "guidellm": 1}[meant]
    assert found == pytest.approx([(time - times[0]) / unit for time in times])
    assert size == 512


def test_milliseconds_with_fractions_far_apart_are_asked_for(write):
    said = refusal(write([row(0.0), row(1500.5), row(3100.25)]))
    assert "mooncake" in said and "or guidellm" in said and "--trace-format" in said
    said = refusal(write([bare(0.0), bare(1500.5), bare(3100.25)]))
    assert "mooncake" in said and "or timed" in said and "--trace-format" in said


@pytest.mark.parametrize(
    ("rows", "name", "instead"),
    [
        ([row(0), row(1)], "mooncake", "if they are seconds, give --trace-format guidellm"),
        ([row(0), row(20), row(40)], "mooncake", "50 requests a second"),
        (GUIDELLM, "guidellm", "one request in 15.2 s"),
        (GUIDELLM, "guidellm", "if they are milliseconds, give --trace-format mooncake"),
        ([bare(0.5), bare(9.5)], "timed", "if they are milliseconds, give --trace-format mooncake"),
        ([row(0, 48, 1, 2, 3), row(90, 48, 1, 2, 3)], "timed", "give a time scale of 0.001"),
    ],
)
def test_times_that_may_have_the_other_unit_are_read_with_a_word(
    write, caplog, rows, name, instead
):
    path = write(rows)
    assert has_arrivals(path)
    list(read(path))
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"{path}: read as {name}: ") and instead in said
    caplog.clear()
    list(read(path, Reading(name)))
    assert not caplog.records, "somebody said what it is"


@pytest.mark.parametrize(
    "rows",
    [
        [row(0), row(152), row(304)],
        [row(0), row(0)],
        [row(7)],
        [row(0.0), row(0.2)],
        [row(0.5)],
        [bare(0.5), bare(0.75)],
        [row(0, 48, 1, 2, 3), row(5, 48, 1, 2, 3)],
        [row(0.5, 16, 1, chat_id=1), row(90.5, 16, 2, chat_id=2)],
    ],
)
def test_times_that_are_plain_are_read_without_a_word(write, caplog, rows):
    list(read(write(rows)))
    assert not caplog.records


def test_chats_with_hashes_of_512_tokens_are_in_seconds_as_all_chats_are(write, caplog):
    path = write([row(0, chat_id=1), row(30, chat_id=2, parent_chat_id=1)])
    assert read_as(path) == ([0.0, 30.0], 512)
    assert [request.session for request in read(path)] == ["1", "1"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("rows", "size"),
    [
        ([row(0, 12, 1), row(0, 600, 1, 2)], 512),
        ([row(0, 12, 1), row(0, 33, 1, 2, 3)], 16),
        ([row(0, 12, 1), row(0, 33, 1, 2, 3), row(0, 600, 1, 2)], 16),
        ([row(0, 600.0, 1, 2), row(0, 600.0, 1, 2)], 512),
    ],
)
def test_the_tokens_of_a_hash_are_those_that_fit_all_rows(write, rows, size):
    path = write(rows)
    assert next(read(path)).hash_tokens == size


def test_hashes_of_few_tokens_of_their_prompts_are_told(write, caplog):
    assert read_as(write(GUIDELLM), Reading("timed")) == ([0.0, 0.2, 30.4], 16)
    (said,) = (record.getMessage() for record in caplog.records)
    assert "hash_ids of 16 tokens each cover less than half of some prompts" in said


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (
            row(0, 655, 0, 1, 2),
            "3 hash_ids for 655 tokens, expected 41 (of 16 tokens) or 2",
        ),
        (row(0, 6400, *range(100)), "100 hash_ids for 6400 tokens, expected 400 (of 16 tokens)"),
        (row(0, "600"), "input_length '600', expected a whole number"),
        (row(0, 600.5), "input_length 600.5, expected a whole number"),
        (row(0) | {"hash_ids": {"a": [1]}}, "hash_ids {'a': [1]}, expected a list"),
        ({"text_input": "Hi", "session_id": "a"}, "has text_input, as rows for AIPerf may, and no"),
        ({"text_input": "Hi", "timestamp": 0, "output_length": 5}, "and no input_length: write"),
        ({"messages": [], "timestamp": 0, "output_length": 5}, "has messages, as rows for AIPerf"),
        ({"session_id": "a", "delay": 5, "input_length": 9, "output_length": 5}, "no timestamp"),
    ],
)
def test_rows_that_are_nearly_timed_are_told_what_keeps_them(write, first, says):
    path = write([first, first])
    said = refusal(path)
    assert said.startswith(f"{path}, line 1: ") and says in said and "known format" not in said


def test_a_turn_with_a_delay_in_place_of_a_time_is_named(write):
    turn = {"session_id": "a", "delay": 2000, "input_length": 600, "output_length": 5}
    said = refusal(write([row(0, session_id="a"), row(150, session_id="b"), turn]))
    assert "line 3: has a delay after an answer" in said


@given(
    gaps=st.lists(st.integers(1, 999), min_size=2, max_size=40),
    asked=st.integers(1, 3000),
)
def test_a_trace_in_seconds_has_the_arrivals_of_the_same_one_in_milliseconds(
    tmp_path_factory, gaps, asked
):
    times = [sum(gaps[:n]) for n in range(len(gaps))]
    hashes = range(-(-asked // 512))
    path = tmp_path_factory.mktemp("units") / "trace"
    found = {}
    for name, unit in (("mooncake", 1), ("guidellm", 1000)):
        rows = [row(time if unit == 1 else time / unit, asked, *hashes) for time in times]
        path.write_text("\n".join(map(json.dumps, rows)))
        found[name] = [request.arrival_s for request in read(path, Reading(name))]
        if asked >= 32:  # fewer tokens may have one hash of either size
            assert [request.arrival_s for request in read(path)] == found[name]
    assert found["mooncake"] == pytest.approx(found["guidellm"])
