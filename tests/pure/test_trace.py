"""Azure's CSV with all its quirks, and a clear line for everything else."""

from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.workload.trace import (
    MAX_TOKENS,
    Reading,
    TraceError,
    TraceRequest,
    parse_window,
    read,
    scaled,
    select,
)

pytestmark = pytest.mark.pure

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROWS = ["2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319600,3180,8"]
TWO = [TraceRequest(0.0, 4808, 10), TraceRequest(0.052, 3180, 8)]


@pytest.fixture
def make(tmp_path):
    def write(*rows: str, header: str = HEADER, end: str = "\r\n", last: str = ""):
        path = tmp_path / "trace.csv"
        path.write_bytes((end.join([header, *rows]) + last).encode())
        return path

    return write


@pytest.mark.parametrize("end", ["\r\n", "\n"])
@pytest.mark.parametrize("last", ["", "\r\n", "\n", "\n\n  \n\r\n"])
def test_line_ends_and_blank_lines_at_the_end(make, end, last):
    assert list(read(make(*ROWS, end=end, last=last))) == TWO


def test_byte_order_mark(make):
    assert list(read(make(*ROWS, header="\ufeff" + HEADER))) == TWO


def test_zone_and_missing_fraction_as_in_2024(make):
    path = make(
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:01+00:00,2399,6",
        "2024-05-10 02:00:01.5+02:00,76,15",
        "2024-05-10T00:00:01.75Z,76,15",
        "2024-05-10 00:00:02,1,1",
    )
    assert [request.arrival_s for request in read(path)] == [
        0.0,
        0.99007,
        1.49007,
        1.74007,
        1.99007,
    ]


def test_seven_digits_are_kept(make):
    path = make("2023-11-16 00:00:00.0000001,1,1", "2023-11-16 00:00:00.0000004,1,1")
    assert [request.arrival_s for request in read(path)] == [0.0, 3e-7]


def test_equal_times_are_kept(make):
    assert [r.arrival_s for r in read(make(ROWS[0], ROWS[0]))] == [0.0, 0.0]


def test_dates_before_1970(make):
    path = make("1969-12-31 23:59:58,1,1", "1970-01-01 00:00:00.5,1,1")
    assert [request.arrival_s for request in read(path)] == [0.0, 2.5]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("2023-11-16 18:17:05,12", "expected 3 fields, as the header has"),
        ("2023-11-16 18:17:05,12,13,14", "expected 3 fields, as the header has"),
        ("yesterday,12,13", "'yesterday' is not of the form 2023-11-16 18:17:03.9799600"),
        ("2023-13-16 18:17:05,12,13", "'2023-13-16 18:17:05' is not of the form"),
        ("2023-11-16 18:17:05.,12,13", "is not of the form"),
        ("2023-11-16 18:17:05,12.5,13", "context tokens '12.5', expected a whole number"),
        ("2023-11-16 18:17:05,12,-3", "output tokens '-3'"),
        ("2023-11-16 18:17:05,0,13", "context tokens '0'"),
        ("2023-11-16 18:17:05,12,", "output tokens ''"),
        ("2023-11-16 18:17:05,²,13", "context tokens '²'"),
        ("2023-11-16 18:17:05,10000001,13", "from 1 to 10,000,000"),
        ("2023-11-16 18:17:05," + "9" * 5000 + ",13", "from 1 to 10,000,000"),
        ("2023-11-16 18:17:03,12,13", "time goes back by 1.03196 s to '2023-11-16 18:17:03'"),
        ("\x00\xff", "expected 3 fields, as the header has"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(make, row, says):
    path = make(*ROWS, row, "2023-11-16 18:17:06,1,1")
    with pytest.raises(TraceError) as caught:
        list(read(path))
    message = str(caught.value)
    assert message.startswith(f"{path}, line 4: ")
    assert says in message
    assert "\n" not in message and len(message) < 400


def test_rows_before_the_malformed_one_are_streamed(make):
    stream = read(make(*ROWS, "broken"))
    assert [next(stream), next(stream)] == TWO
    with pytest.raises(TraceError, match="line 4"):
        next(stream)


def test_a_blank_line_between_rows_is_named(make):
    with pytest.raises(TraceError, match="line 3: blank, and rows follow"):
        list(read(make(ROWS[0], "", ROWS[1])))


@pytest.mark.parametrize("header", [ROWS[0], "a,b,c", ""])
def test_a_missing_header(make, header):
    with pytest.raises(TraceError, match=r"line 1: .* expected a header with TIMESTAMP, Context"):
        list(read(make(*ROWS, header=header), Reading("azure")))


def test_no_rows(make):
    with pytest.raises(TraceError, match="has a header and no rows"):
        list(read(make()))


def test_no_such_file(tmp_path):
    with pytest.raises(TraceError, match=r"none.csv: cannot be read \(No such file"):
        list(read(tmp_path / "none.csv"))
    with pytest.raises(TraceError, match=r"azuree: .*`mirage traces list` has the names"):
        list(read(Path("azuree")))
    with pytest.raises(TraceError, match="cannot be read"):
        list(read(tmp_path))


seconds = [f"2023-11-16 00:00:{second:02d},{second + 1},1" for second in range(0, 60, 10)]


def test_window_is_half_open_and_moves_the_start(make):
    chosen = select(make(*seconds), (10, 30))
    assert chosen == [TraceRequest(0.0, 11, 1), TraceRequest(10.0, 21, 1)]


def test_limit(make):
    path = make(*seconds)
    assert [r.context_tokens for r in select(path, limit=2)] == [1, 11]
    assert [r.context_tokens for r in select(path, (20, 60), limit=1)] == [21]


def test_window_stops_reading_at_its_end(make):
    assert len(select(make(*seconds, "broken"), (0, 50))) == 5


@pytest.mark.parametrize("window", [(51, 90), (11, 19), (1000, 2000)])
def test_an_empty_window_says_how_long_the_trace_is(make, window):
    with pytest.raises(TraceError, match=r"no request arrives from .* the trace is 50.0 s long"):
        select(make(*seconds), window)


def test_parse_window():
    assert parse_window("60:120.5") == (60.0, 120.5)


@pytest.mark.parametrize(
    "text", ["", "60", "60:", ":60", "a:b", "1:2:3", "-5:10", "nan:1", "60:60"]
)
def test_a_window_that_is_none(text):
    with pytest.raises(TraceError, match="START:END"):
        parse_window(text)


tokens = st.integers(1, MAX_TOKENS)
ticks = st.integers(0, 10**12)


@st.composite
def traces(draw):
    """Drawn requests: gaps in ticks of 100 ns, and their lengths in tokens."""
    return draw(st.lists(st.tuples(ticks, tokens, tokens), min_size=1, max_size=20))


def render(rows, start=datetime(2023, 11, 16, tzinfo=UTC)) -> bytes:
    times = list(accumulate(gap for gap, _, _ in rows))
    stamps = [
        f"{start + timedelta(seconds=time // 10**7):%Y-%m-%d %H:%M:%S}.{time % 10**7:07d}"
        for time in times
    ]
    lines = [f"{s},{c},{o}" for s, (_, c, o) in zip(stamps, rows, strict=True)]
    return "\r\n".join([HEADER, *lines]).encode()


@given(rows=traces())
def test_what_is_written_is_read_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_bytes(render(rows))
    found = list(read(path))
    assert [(r.context_tokens, r.output_tokens) for r in found] == [row[1:] for row in rows]
    times = list(accumulate(gap for gap, _, _ in rows))
    assert [round(r.arrival_s * 10**7) for r in found] == [time - times[0] for time in times]


@given(rows=traces(), cuts=st.lists(st.floats(0, 3e6), min_size=1, max_size=4))
def test_windows_side_by_side_hold_every_request_once(tmp_path_factory, rows, cuts):
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_bytes(render(rows))
    edges = [0.0, *sorted(cuts), 1e9]
    found = []
    for start, end in pairwise(edges):
        try:
            part = select(path, (start, end))
        except TraceError:
            continue
        assert all(0 <= request.arrival_s < end - start + 1e-6 for request in part)
        found += [(request.context_tokens, request.output_tokens) for request in part]
    assert found == [row[1:] for row in rows]


requests = st.builds(TraceRequest, st.floats(0, 1e6), tokens, tokens)
scales = st.floats(0.001, 1000)


@given(request=requests, time_scale=scales, length_scale=scales)
def test_scaling(request, time_scale, length_scale):
    found = scaled(request, time_scale, length_scale)
    assert found.arrival_s == request.arrival_s * time_scale
    for before, after in (
        (request.context_tokens, found.context_tokens),
        (request.output_tokens, found.output_tokens),
    ):
        assert after == max(1, round(before * length_scale))


@given(request=requests)
def test_scaling_by_one_changes_nothing(request):
    assert scaled(request, 1.0, 1.0) == request
