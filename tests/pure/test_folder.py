"""Odd files in the folder of a model or adapter are refused in one line, whatever is odd."""

import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_folder import LLAMA, LORA, make_adapter, make_folder, write_safetensors

from mirage.config import ConfigError
from mirage.folder.adapter import read_adapter
from mirage.folder.model import check_model
from mirage.folder.weights import INDEX
from tests.examples import examples

pytestmark = pytest.mark.pure

WEIGHTS = "model.safetensors"


def refusal(folder: Path, check: Callable[[Path], Any] = check_model) -> str:
    """Message, one printable line, with which `check` refuses `folder`."""
    with pytest.raises(ConfigError) as caught:
        check(folder)
    line = str(caught.value)
    assert line.isprintable() and len(line) < 1000
    return line


def spoil_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"\xff" * 64)


def cut_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"\x01")


def shorten_weights(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 1)


def point_at_weights(folder: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 27901454\n"
    (folder / WEIGHTS).write_text(pointer)


def link_nowhere(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("../blobs/0123")


def weights_as_folder(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()


def config_as_pipe(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def half_the_shards(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")


def index(weight_map: Any) -> Callable[[Path], None]:
    return writes(INDEX, {"metadata": {}, "weight_map": weight_map})


def writes(name: str, content: Any) -> Callable[[Path], None]:
    text = content if isinstance(content, str) else json.dumps(content)

    def write(folder: Path) -> None:
        (folder / name).write_text(text)

    return write


def removes(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (writes("config.json", "{"), "config.json: cannot be read as JSON"),
        (writes("config.json", "[" * 100_000), "config.json: cannot be read as JSON"),
        (writes("config.json", []), "config.json: expected a JSON object, found []"),
        (writes("config.json", LLAMA | {"hidden_size": "4"}), "hidden_size: found '4', write"),
        (writes("config.json", LLAMA | {"num_hidden_layers": 10**9}), "write 10000 or less"),
        (writes("config.json", LLAMA | {"architectures": "X"}), "architectures: found 'X', write"),
        (removes("config.json"), "config.json: it is missing: fetch the model again"),
        (config_as_pipe, "config.json: it is no regular file"),
        (removes(WEIGHTS), "holds no *.safetensors file"),
        (spoil_weights, "not a whole safetensors file (Error"),
        (cut_weights, "not a whole safetensors file (Error"),
        (shorten_weights, "not a whole safetensors file (it is cut short): fetch it again"),
        (point_at_weights, "model.safetensors: it is a Git LFS pointer"),
        (link_nowhere, "it is a link to ../blobs/0123, which is not there"),
        (weights_as_folder, "model.safetensors: it is no regular file"),
        (half_the_shards, "holds 1 of 2 files model-...-of-00002.safetensors: fetch the others"),
        (index([]), "weight_map: found [], write keys with values"),
        (index(None), "weight_map: found nothing, write keys with values"),
        (index({"x": None}), "weight_map.x: found nothing, write text"),
        (index({}), "its weight_map names no file"),
        (index({"x": "../x.safetensors"}), "'../x.safetensors' is no name of a file beside it"),
        (
            index({"x": "model-00015-of-00030.safetensors", "y": WEIGHTS}),
            "of 2 files that it names 1 are not there, as 'model-00015-of-00030.safetensors'",
        ),
        (writes(INDEX, "[]"), "index.json: expected a JSON object"),
        (writes("tokenizer.json", {"model": []}), "tokenizer.json: model: found [], write keys"),
        (writes("tokenizer.json", {}), "tokenizer.json: model: it is missing"),
        (
            writes("tokenizer.json", {"model": {}, "added_tokens": [{"id": "1", "content": "x"}]}),
            "added_tokens.0.id: found '1', write a whole number",
        ),
        (writes("tokenizer_config.json", "null"), "tokenizer_config.json: expected a JSON object"),
        (writes("tokenizer_config.json", {"chat_template": 3}), "chat_template: found 3, write"),
        (writes("special_tokens_map.json", "3"), "special_tokens_map.json: expected a JSON object"),
        (lambda f: (f / "chat_template.jinja").write_bytes(b"\xff"), "jinja: it is not UTF-8"),
        (writes("generation_config.json", {"temperature": "hot"}), "temperature: found 'hot'"),
        (writes("generation_config.json", {"eos_token_id": [None]}), "eos_token_id.0: found not"),
    ],
)
def test_an_odd_folder_is_one_clear_line(tmp_path: Path, spoil: Any, words: str) -> None:
    check_model(make_folder(tmp_path))
    spoil(tmp_path)
    line = refusal(tmp_path)
    assert words in line and str(tmp_path) in line


@contextmanager
def nobody() -> Iterator[None]:
    """Context in which this process has the rights of an ordinary user, not root's."""
    if (own := os.geteuid()) == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(own)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("config.json", "config.json: user {} may not read it: allow it"),
        (WEIGHTS, "model.safetensors: user {} may not read it: allow it"),
        (".", ": it cannot be looked into (Permission denied): allow it"),
    ],
)
def test_what_somebody_else_owns_is_not_called_damaged(path: str, words: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        (make_folder(Path(folder)) / path).chmod(0)
        with nobody():
            line = refusal(Path(folder))
            assert words.format(os.geteuid()) in line
        Path(folder).chmod(0o755)


def test_what_real_folders_say_passes(tmp_path: Path) -> None:
    """A folder with values that published models have passes: null, infinity, and sizes that differ
    between layers.
    """
    real = {"head_dim": None, "time_step_limit": [0.0, float("inf")], "sliding_window": None}
    make_folder(tmp_path, **real, intermediate_size=[128, 256], text_config={"vocab_size": 9})
    settings = {"chat_template": [{"name": "default", "template": "x"}], "model_max_length": 1e30}
    writes("tokenizer_config.json", settings)(tmp_path)
    writes("generation_config.json", {"eos_token_id": [1, 2], "temperature": 1})(tmp_path)
    check_model(tmp_path)


def test_only_the_files_of_the_index_are_looked_at(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / WEIGHTS).rename(tmp_path / "model-1.safetensors")
    (tmp_path / "consolidated.safetensors").write_bytes(b"torn")
    index({"anything": "model-1.safetensors"})(tmp_path)
    check_model(tmp_path)


def test_other_formats_are_for_vllm_to_judge(tmp_path: Path) -> None:
    removes(WEIGHTS)(make_folder(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    check_model(tmp_path)


def test_an_adapter_without_a_tensor_is_refused(tmp_path: Path) -> None:
    read_adapter(make_adapter(tmp_path))
    write_safetensors(tmp_path / "adapter_model.safetensors", {})
    assert "holds no tensor" in refusal(tmp_path, read_adapter)


# -- random content -----------------------------------------------------------------------

KEYS = st.sampled_from([*LLAMA, *LORA, "weight_map", "model", "added_tokens", "chat_template"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: (
        st.lists(inside, max_size=4) | st.dictionaries(KEYS | st.text(), inside, max_size=4)
    ),
    max_leaves=8,
)
GOOD: dict[str, dict[str, Any]] = {
    "config.json": LLAMA,
    INDEX: {"weight_map": {"x": WEIGHTS}},
    "tokenizer.json": {"model": {}, "added_tokens": [{"id": 1, "content": "x"}]},
    "tokenizer_config.json": {"chat_template": "x", "model_max_length": 10},
    "special_tokens_map.json": {"eos_token": "x"},
    "generation_config.json": {"temperature": 1.0, "eos_token_id": 2},
    "adapter_config.json": LORA,
}
"""Valid content of each file, by its name."""


def read(folder: Path, name: str) -> None:
    """Let `check_model` or `read_adapter` read the changed file `name` of a folder. It may raise
    only a `ConfigError`, whose message is one printable line.
    """
    try:
        read_adapter(folder) if name == "adapter_config.json" else check_model(folder)
    except ConfigError as error:
        assert str(error).isprintable() and len(str(error)) < 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(make_folder(tmp_path_factory.mktemp("random")))


@pytest.mark.parametrize("name", GOOD)
@examples(400)
@given(data=st.data())
def test_random_json_is_read_or_refused(folder: Path, name: str, data: st.DataObject) -> None:
    """A file of the folder has random JSON, as a whole or in single values. It is read, or refused
    with a `ConfigError`.
    """
    changed = st.dictionaries(st.sampled_from([*GOOD[name]]), ANYTHING, min_size=1)
    content = data.draw(changed.map(lambda new: GOOD[name] | new) | ANYTHING)
    before = (folder / name).read_bytes() if (folder / name).exists() else None
    (folder / name).write_text(json.dumps(content))
    try:
        read(folder, name)
    finally:
        (folder / name).unlink() if before is None else (folder / name).write_bytes(before)


@pytest.mark.parametrize("name", [*GOOD, WEIGHTS, "adapter_model.safetensors"])
@examples(100)
@given(content=st.binary(max_size=64))
def test_random_bytes_are_read_or_refused(folder: Path, name: str, content: bytes) -> None:
    before = (folder / name).read_bytes() if (folder / name).exists() else None
    (folder / name).write_bytes(content)
    try:
        read(folder, name.replace("adapter_model.safetensors", "adapter_config.json"))
    finally:
        (folder / name).unlink() if before is None else (folder / name).write_bytes(before)


@examples(400)
@given(entry=ANYTHING, tail=st.binary(max_size=16))
@example(entry=["\x1f"], tail=b"\x00")
def test_random_headers_are_read_or_refused(folder: Path, entry: Any, tail: bytes) -> None:
    before = (folder / WEIGHTS).read_bytes()
    header = json.dumps({"x": entry} if tail else entry).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + tail)
    try:
        read(folder, "config.json")
    finally:
        (folder / WEIGHTS).write_bytes(before)
