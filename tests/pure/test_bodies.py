"""Body of a request in the router: its model is read and replaced, and equal requests have equal
digests.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.api.openai import ApiError
from mirage.serve.http.bodies import body_digest, model_of, with_model

pytestmark = pytest.mark.pure

FORM = "multipart/form-data; boundary=XyZ"


def form(boundary: str, *parts: tuple[str, bytes]) -> bytes:
    lines = b""
    for disposition, value in parts:
        head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
        lines += head.encode() + value + b"\r\n"
    return lines + f"--{boundary}--\r\n".encode()


AUDIO = ('name="file"; filename="a.wav"\r\nContent-Type: audio/wav', b'\r\n\0name="model"\r\n\r\nx')


def test_the_model_of_a_form_is_one_of_its_fields() -> None:
    body = form("XyZ", AUDIO, ('name="prompt"', b"model"), ('name="model"', b"team/whisper"))
    assert model_of(body, FORM) == "team/whisper"
    assert model_of(body, 'Multipart/Form-Data; charset=x; boundary="XyZ"') == "team/whisper"


@pytest.mark.parametrize(
    "body", [b"", b"--XyZ", form("XyZ", AUDIO), form("XyZ", ('name="model"', b"")), b"\xff" * 9]
)
def test_a_form_without_a_model_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="'model' must name a model"):
        model_of(body, FORM)


@given(st.binary(max_size=200), st.text(max_size=60))
def test_anything_is_read_or_refused(body: bytes, kind: str) -> None:
    for content_type in (kind, FORM, "application/json"):
        body_digest("/x", body, content_type)
        try:
            assert model_of(body, content_type)
        except ApiError as error:
            assert error.status == 400


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.sampled_from([None, 1, 4]))
def test_a_body_is_given_another_model_and_nothing_else(
    rest: dict[str, object], space: int
) -> None:
    said = rest | {"model": "llama3:8b"}
    body = json.dumps(said, indent=space).encode() + b"\n"
    named = with_model(body, "application/json", "team/llama")
    assert json.loads(named) == said | {"model": "team/llama"}
    assert model_of(named, "application/json") == "team/llama"


def test_a_form_is_given_another_model_and_nothing_else() -> None:
    model, prompt = 'name="model"', ('name="prompt"', b"model")
    body = form("XyZ", (model, b"gpt:4o"), AUDIO, prompt, (model, b"gpt:4o"))
    named = with_model(body, FORM, "a")
    assert named == form("XyZ", (model, b"a"), AUDIO, prompt, (model, b"a"))
    assert model_of(named, FORM) == "a"


def test_the_digest_is_of_route_and_body_and_not_of_the_boundary() -> None:
    body = json.dumps({"model": "a", "prompt": "x"}).encode()
    same = body_digest("/v1/completions", body, "application/json")
    assert same == body_digest("/v1/completions", body, "")
    assert same != body_digest("/v1/chat/completions", body, "application/json")
    assert same != body_digest("/v1/completions", body + b" ", "application/json")
    one, two = (
        body_digest("/x", form(b, AUDIO), f"multipart/form-data; boundary={b}") for b in ("A", "BB")
    )
    assert one == two
    assert one != body_digest("/x", form("A", AUDIO, AUDIO), "multipart/form-data; boundary=A")


def test_a_form_of_very_many_parts_is_refused() -> None:
    body = form("x", *([('name="a"', b"")] * 1000))
    with pytest.raises(ApiError, match="must name a model, found None"):
        model_of(body, "multipart/form-data; boundary=x")
    with pytest.raises(ApiError, match="more than 1000 parts"):
        model_of(body + b"\r\n--x" * 10, "multipart/form-data; boundary=x")


@pytest.mark.parametrize(
    "rest", [b'"\\ud83d\\ude00"', b'"\\\\ud83d"', b"[1e999]", b'{"model": "b"}']
)
def test_the_rest_of_a_body_is_the_engines_business(rest: bytes) -> None:
    assert model_of(b'{"model": "a", "prompt": ' + rest + b"}", "application/json") == "a"


def test_a_mark_of_the_byte_order_is_passed_over() -> None:
    assert model_of(b'\xef\xbb\xbf{"model": "a"}', "application/json") == "a"


NO_JSON = {
    b'"\\ud83d"': r"half of a surrogate pair, as \ud83d alone, before byte ",
    b'"\\ud83d" ': r"half of a surrogate pair, as \ud83d alone, before byte ",
    b'"a\\ud83d\\u0041b"': r"half of a surrogate pair, as \ud83d alone, before byte ",
    b'"\\ude00 and more"': r"half of a surrogate pair, as \ud83d alone, before byte ",
    b'{"\\ud83d": 1}': r"half of a surrogate pair, as \ud83d alone, before byte ",
    b'"\xed\xa0\xbd"': "it is not UTF-8 at byte 26 (0xed)",
    b'"\xe9t\xe9"': "it is not UTF-8 at byte 26 (0xe9)",
    b"NaN": "NaN at byte 25 is no number of JSON",
    b"[Infinity]": "Infinity at byte 26 is no number of JSON",
    b"-Infinity": "-Infinity at byte 25 is no number of JSON",
    b'"a\nb"': "invalid character (byte 27)",
    b"[" * 20_000 + b"]" * 20_000: "it is nested too deeply",
}


@pytest.mark.parametrize("bytes_more", [0, 70_000])
@pytest.mark.parametrize("rest", NO_JSON)
def test_what_is_wrong_is_named_however_long_the_body_is(rest: bytes, bytes_more: int) -> None:
    more = b', "more": "' + b"x" * bytes_more + b'"' if bytes_more else b""
    with pytest.raises(ApiError) as raised:
        model_of(b'{"model": "a", "prompt": ' + rest + more + b"}", "application/json")
    assert raised.value.status == 400
    assert raised.value.message.startswith(f"the body is not JSON: {NO_JSON[rest]}")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it is empty"),
        (b'{"model": "a"', "it ends too early"),
        (b'{"model": "a"} x', "trailing characters (byte 16)"),
        ('{"model": "a"}'.encode("utf-16"), "it is not UTF-8 at byte 0 (0xff)"),
        (
            b'{"model": "a", "x": "' + b"y" * (1 << 20) + b'\xff"}',
            "it is not UTF-8 at byte 1048597",
        ),
        (
            b'{"model": "' + b"y" * ((1 << 20) - 12) + "é".encode() + b"\xff",
            "it is not UTF-8 at byte 1048577",
        ),
    ],
)
def test_a_body_that_is_no_json_is_refused_with_the_reason(body: bytes, words: str) -> None:
    with pytest.raises(ApiError) as raised:
        model_of(body, "application/json")
    assert raised.value.message.startswith(f"the body is not JSON: {words}")


def test_a_large_body_that_is_no_json_is_never_made_into_objects() -> None:
    body = b'{"model": "a", "prompt": [NaN' + b",[]" * 30_000 + b"]}"
    with pytest.raises(ApiError, match="NaN at byte 26"):
        model_of(body, "application/json")
