"""Error events in a stream are found, however its bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.api.error_event import MARKS, has_error
from mirage.serve.http.whole_events import WholeEvents

pytestmark = pytest.mark.pure

BEFORE = b'data: {"choices": [{"text": "data: {\\"error\\" event: error\\n"}]}\n\n'
AFTER = b': {"message": "x"}}\n\ndata: [DONE]\n\n'


def seen(text: bytes, cuts: list[int]) -> bool:
    places = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    events = WholeEvents()
    taken = [events.take(text[start:end]) for start, end in itertools.pairwise(places)]
    return any(map(has_error, [*taken, events.rest()]))


@given(
    mark=st.sampled_from(MARKS),
    before=st.integers(0, 3),
    cuts=st.lists(st.integers(0, 300), max_size=200),
)
def test_an_event_is_seen_however_it_is_cut(mark: bytes, before: int, cuts: list[int]) -> None:
    assert seen(BEFORE * before + mark + AFTER, cuts)
    assert seen(BEFORE * before + mark, cuts), "also without its end"


@given(cuts=st.lists(st.integers(0, 300), max_size=200))
def test_a_text_that_names_it_is_no_event(cuts: list[int]) -> None:
    assert not seen(BEFORE * 3 + AFTER, cuts)
