"""Keys, tokens and passwords of a configuration are in no message, and in no report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.arguments.check import ArgumentRefused, check_environment, check_names
from mirage.arguments.table import TABLE
from mirage.config import Config
from mirage.secrets import HIDDEN, is_name, places, redacted
from mirage.tools.replay.preparation import ReplayOptions
from mirage.tools.replay.provenance import command

pytestmark = pytest.mark.pure
SECRET = "SECRETTOKEN"

NAMES = [
    *("api_key", "--api-key", "api-key", "apikey", "API_KEY", "openai_api_key", "x.y.api-key"),
    *("hf_token", "--hf-token", "token", "access_token", "auth_token", "bearer_token", "api_token"),
    *("ssl_keyfile_password", "password", "passwd", "passphrase", "secret", "client_secret"),
    *("aws_secret_access_key", "access_key_id", "s3_access_key", "private_key", "credentials"),
    *("credential", "authorization", "Proxy-Authorization", "auth_header"),
    *("encryption_key", "signing-key"),
]
SHAPES: list[Any] = [
    *(SECRET, [SECRET], {"user": SECRET}, [[SECRET]]),
]
TEXTS = [
    f"http://me:{SECRET}@host:80/path",
    f"http://{SECRET}@host/path",
    f"https://host/path?a=1&token={SECRET}",
    f"https://host/path?X-Amz-Signature={SECRET}&b=2",
    f"https://host/path?sv=2025-01-01&sig={SECRET}",
    f"https://host/path?pwd={SECRET}",
    f"Authorization: Bearer {SECRET} host",
    f"host, proxy-authorization:{SECRET}",
    f'{{"a": {{"api_key": "{SECRET}"}}}}',
    f'{{"a": ["redis://:{SECRET}@host"]}}',
]
"""Values that contain a secret, whatever their key is."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_has_the_name_of_a_secret_is_hidden(name: str, shape: Any) -> None:
    for value in ({name: shape}, {"a": [{"b": {name: shape}}]}):
        shown = redacted(value)
        assert SECRET not in json.dumps(shown) and HIDDEN in json.dumps(shown)
        assert list(places(value))


@pytest.mark.parametrize("text", TEXTS)
def test_what_a_text_carries_is_hidden(text: str) -> None:
    for value in (text, {"a": text}, {"a": [{"b": text}]}):
        shown = json.dumps(redacted(value))
        assert SECRET not in shown and HIDDEN in shown and "host" in shown + "host" * ("{" in text)
        assert len(list(places(value, "k"))) == 1


@pytest.mark.parametrize("nothing", [None, True, False, "", [], {}])
def test_what_says_nothing_is_no_secret(nothing: Any) -> None:
    assert redacted({"hf_token": nothing}) == {"hf_token": nothing}
    assert not list(places({"hf_token": nothing}))


def test_of_vllms_arguments_two_are_secrets() -> None:
    """By their names, vLLM's `api_key` and `hf_token` are secrets. `allow_credentials`, a switch of
    CORS, looks like one too and passes; names of tokenizers and counts of tokens do not.
    """
    named = {name for name in TABLE if is_name(name)}
    assert named == {"api_key", "hf_token", "allow_credentials"}
    check_names({"allow_credentials": False})
    assert not any(map(is_name, ("eos_token", "bos_token", "pad_token_id", "max_tokens", "key")))


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
))  # fmt: skip
def test_places_are_where_something_is_hidden(value: Any) -> None:
    assert bool(list(places(value, "k"))) is (redacted(value, "k") != value)


@pytest.mark.parametrize("name", ["api_key", "--api-key", "api-key", "hf_token", "hf-token"])
@pytest.mark.parametrize("value", [SECRET, [SECRET], {"a": SECRET}, f"{SECRET}1 2"])
def test_arguments_that_are_secrets_are_refused_without_a_word_of_them(
    name: str, value: Any
) -> None:
    with pytest.raises(ArgumentRefused) as refusal:
        check_names({name: value})
    said = str(refusal.value)
    assert said.startswith(f"engine_args.{name}: {HIDDEN!r} is refused: ")
    assert SECRET not in said
    assert ("mirage serve --keys FILE" in said) or ("set HF_TOKEN in the env" in said)


@pytest.mark.parametrize(
    "value",
    [{"api_key": SECRET}, {"a": {"hf_token": SECRET}}, [{"password": SECRET}], *TEXTS],
)
def test_a_secret_inside_of_any_argument_is_refused_and_not_repeated(value: Any) -> None:
    for name in TABLE:
        with pytest.raises(ArgumentRefused) as refusal:
            check_names({name: value})
        assert SECRET not in str(refusal.value)


def test_dotted_keys_are_looked_into() -> None:
    with pytest.raises(ArgumentRefused, match=r"^engine_args\.media_io_kwargs\.api_key is a sec"):
        check_names({"media_io_kwargs.api_key": SECRET})


def test_a_key_in_the_environment_is_refused_and_not_repeated() -> None:
    with pytest.raises(ArgumentRefused) as refusal:
        check_environment({"VLLM_API_KEY": SECRET})
    assert str(refusal.value).startswith(f"VLLM_API_KEY={HIDDEN} in the environment is refused: ")
    assert str(refusal.value).endswith(": unset it")


def test_a_configuration_as_json_has_no_secrets() -> None:
    """The JSON of a configuration, which reports contain, hides secrets among `engine_args`. The
    arguments with which engines are served stay as they are.
    """
    engine_args = {"api_key": [SECRET], "seed": 1, "hf-token": SECRET, "a": {"b": TEXTS[0]}}
    tenant = {"name": "a", "model": Path("/m"), "share": 50, "engine_args": engine_args}
    made = Config.model_validate({"device": {"memory": "1GiB"}, "tenants": [tenant]})
    assert SECRET not in made.model_dump_json()
    dumped = made.model_dump(mode="json")["tenants"][0]["engine_args"]
    assert dumped == {
        "api_key": HIDDEN, "seed": 1, "hf-token": HIDDEN, "a": {"b": "http://***@host:80/path"}
    }  # fmt: skip
    assert made.tenants[0].engine_args == engine_args, "what is served stays as it is"


def test_a_servers_address_in_a_report_has_no_password() -> None:
    told = command(Path("c.yaml"), ReplayOptions(server=f"http://me:{SECRET}@host:8000"))
    assert told == "mirage replay c.yaml --server 'http://***@host:8000'"


@pytest.mark.parametrize(
    "key", ["clientSecret", "dbPassword", "pwd", "redis_pwd", "bearer", "Cookie"]
)
def test_other_spellings_are_secrets_too(key: str) -> None:
    assert redacted({key: "s"}) == {key: "***"}


@pytest.mark.parametrize("key", ["eosToken", "maxTokens", "eos_token", "cookies_allowed"])
def test_the_words_of_a_vocabulary_are_none(key: str) -> None:
    assert redacted({key: "s"}) == {key: "s"}
