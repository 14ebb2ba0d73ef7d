"""The file of keys: what is refused, and what `mirage keys new` makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest
import yaml

from mirage.config import ConfigError
from mirage.errors import InputRefused
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.keys_file import read_keys, with_entry
from mirage.serve.access.rates import RateLimits
from mirage.serve.access.ring import digest
from mirage.serve.access.server_keys import KeySource, ServerKeys, key_lines, key_source

pytestmark = pytest.mark.pure

HASH = digest("token")
TEXT = f"""\
# who may ask
keys:
- name: ci   # the build
  sha256: "{HASH}"
  models: [a, b/1]
  expires: 2027-01-15T09:00:00+01:00
  limits: {{requests_per_minute: 60}}
"""
DEEPER = TEXT[: TEXT.index("- ")] + indent(TEXT[TEXT.index("- ") :], "    ")
CI = AccessKey("ci", HASH, ("a", "b/1"), 1_800_000_000.0, limits=RateLimits(60))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


def test_a_file_is_read(file: Path) -> None:
    assert read_keys(file) == (CI,)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_one_that_others_may_open_is_refused_with_what_mends_it(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o} .*: chmod 600 {file}$"):
        read_keys(file)
    assert read_keys(file, private=False) == (CI,)


def keys(*entries: dict[str, object]) -> dict[str, object]:
    return {"keys": [{"name": "k", "sha256": HASH, "models": "all"} | one for one in entries]}


SECRET = "mirage-this-is-a-token-itself"
OTHER = {"sha256": digest("other")}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"keys": []}, "keys: found [], write 1 entry or more"),
        (keys({}) | {"key": []}, "unknown key 'key'"),
        (keys({"token": SECRET}), "unknown key 'keys.0.token'"),
        (keys({"sha256": SECRET}), "keys.0.sha256: it is no SHA-256 in quotes"),
        (keys({"sha256": 10**63}), "keys.0.sha256: it is no SHA-256 in quotes"),
        (keys({"name": "a b"}), "keys.0.name"),
        (keys({"models": "a"}), "keys.0.models"),
        (keys({"models": []}), "k opens nothing: give it models, admin or metrics"),
        (keys({"expires": "soon"}), "keys.0.expires: 'soon' is no time"),
        (keys({"expires": "2027-01-15T08:00:00"}), "write one with its zone"),
        (keys({"expires": "2027-01-15"}), "write one with its zone"),
        (keys({"limits": {"rpm": 3}}), "unknown key 'keys.0.limits.rpm'"),
        (keys({"limits": {"in_flight": 0}}), "keys.0.limits.in_flight"),
        (keys({}, {"name": "l"}), "l has a sha256 that another key has"),
        (keys({}, {"limits": {"in_flight": 1}} | OTHER), "keys k have different limits"),
    ],
)
def test_what_is_wrong_in_it_is_one_line_without_a_token(
    file: Path, content: object, words: str
) -> None:
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError) as refusal:
        read_keys(file)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)
    assert SECRET not in str(refusal.value)


def test_a_date_alone_of_yaml_has_no_zone(file: Path) -> None:
    file.write_text(TEXT.replace("2027-01-15T09:00:00+01:00", "2027-01-15"))
    with pytest.raises(ConfigError, match="'2027-01-15' is no time: write one with its zone"):
        read_keys(file)


@pytest.mark.parametrize(
    "key",
    [
        AccessKey("new", digest("1"), None),
        AccessKey("ci", digest("2"), ("é'\"", "b"), 1_900_000_000.0, limits=RateLimits(60)),
        AccessKey("root", digest("3"), admin=True, metrics=True, limits=RateLimits(None, 5, 6)),
    ],
)
@pytest.mark.parametrize("text", ["", TEXT, DEEPER])
def test_an_entry_is_added_and_all_else_stays_as_it_was(
    file: Path, key: AccessKey, text: str
) -> None:
    longer = with_entry(text, key, file)
    assert longer.startswith(text)
    file.write_text(longer)
    assert read_keys(file) == (*((CI,) if text else ()), key)


def test_a_file_written_in_another_way_is_left_alone(file: Path) -> None:
    flow = f'keys: [{{name: k, sha256: "{HASH}", models: all}}]\n'
    with pytest.raises(ConfigError, match="add the entry by hand"):
        with_entry(flow, AccessKey("new", digest("1"), None), file)


# -- where keys come from ------------------------------------------------------------------


def source(file: Path | None = None, **environment: str) -> tuple[KeySource, dict[str, str]]:
    return key_source(file, environment), environment


def test_systemds_credential_is_read_whatever_its_mode(file: Path) -> None:
    credential = file.rename(file.with_name("mirage-keys"))
    credential.chmod(0o440)
    found, _ = source(CREDENTIALS_DIRECTORY=str(file.parent))
    assert found.read() == (CI,)
    named = file.with_name("named.yaml")
    named.write_text(TEXT.replace("ci", "named"))
    named.chmod(0o600)
    found, _ = source(named, CREDENTIALS_DIRECTORY=str(file.parent))
    assert [key.name for key in found.read() or ()] == ["named"]
    assert source(CREDENTIALS_DIRECTORY="/nowhere")[0].read() is None


def test_a_plain_key_of_the_environment_opens_all_and_goes_on_to_nobody(file: Path) -> None:
    found, environment = source(file, MIRAGE_API_KEY="a long enough one", OTHER="x")
    assert environment == {"OTHER": "x"}
    plain = AccessKey("MIRAGE_API_KEY", digest("a long enough one"), None, None, True, True)
    assert found.read() == (CI, plain)
    assert source(MIRAGE_API_KEY="")[0].read() is None


@pytest.mark.parametrize("token", ["short", " with blanks around "])
def test_a_plain_key_that_can_be_guessed_is_refused_untold(token: str) -> None:
    with pytest.raises(ConfigError, match=f"has {len(token)} characters") as refusal:
        source(MIRAGE_API_KEY=token)
    assert token not in str(refusal.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.7", "example.org"])
def test_nobody_listens_to_other_machines_without_keys(file: Path, host: str) -> None:
    with pytest.raises(InputRefused, match=r"--keys FILE .* or --no-keys$"):
        ServerKeys(KeySource()).check_listening(host)
    ServerKeys(KeySource(), open_to_all=True).check_listening(host)
    ServerKeys(KeySource(file)).check_listening(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.3.2.1"])
def test_on_the_loopback_address_one_may(host: str) -> None:
    ServerKeys(KeySource()).check_listening(host)


def test_no_keys_beside_keys_is_refused(file: Path) -> None:
    with pytest.raises(InputRefused, match=f"there are keys \\({file}\\)"):
        ServerKeys(KeySource(file), open_to_all=True)


@pytest.fixture
def held(file: Path) -> Iterator[ServerKeys]:
    file.write_text(f'{TEXT}- {{name: all, sha256: "{digest("2")}", models: all, admin: true}}\n')
    yield ServerKeys(KeySource(file))


def test_check_says_what_keys_open(held: ServerKeys, file: Path) -> None:
    assert key_lines(held, ["a"], CI.expires or 0) == [
        f"keys: 2 of {file}, 1 of them expired (ci)",
        "key ci: a, b/1; until 2027-01-15T08:00:00Z; not here: b/1",
        "key all: all models and admin",
    ]
    assert key_lines(ServerKeys(KeySource()), ["a"], 0) == []
