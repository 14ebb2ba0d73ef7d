"""Files of a model that are fetched from a hub, and the errors for a model without usable weights
and for a hub that refuses.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from mirage.hub.said import refusal
from mirage.hub.wanted import said, weights

pytestmark = pytest.mark.pure


class File(NamedTuple):
    path: str


def files(*paths: str) -> list[File]:
    return [File(path) for path in paths]


def paths(found: list[File]) -> list[str]:
    return [file.path for file in found]


WANTED = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "merges.txt"),
    *("model.safetensors.index.json", "chat_template.jinja", "qwen.tiktoken"),
    *("additional_chat_templates/tool_use.jinja", "1_Pooling/config.json"),
)
UNWANTED = (
    *("README.md", ".gitattributes", "pytorch_model.bin", "flax_model.msgpack", "x.gguf", "x.pt"),
    *("onnx/config.json", "original/params.json", "../x.json", ".x.json", "a/../../x.json", "x.sh"),
    *("/etc/x.json", "model.safetensors", "img.png"),
)


def test_what_says_how_to_use_weights_is_fetched_and_nothing_else() -> None:
    assert paths(said(files(*WANTED, *UNWANTED, "modeling_x.py"), code=False)) == list(WANTED)


def test_code_is_fetched_if_it_is_trusted() -> None:
    code = ("modeling_x.py", "sub/x.py", "x.pyc", "../x.py")
    assert paths(said(files("config.json", *code), code=True)) == ["config.json", "modeling_x.py"]


@pytest.mark.parametrize(
    ("have", "indexed", "fetched"),
    [
        (["model.safetensors", "pytorch_model.bin"], None, ["model.safetensors"]),
        (["a.safetensors", "b.safetensors"], None, ["a.safetensors", "b.safetensors"]),
        (["a.safetensors", "consolidated.safetensors"], {"a.safetensors"}, ["a.safetensors"]),
        (
            ["a.safetensors", "2_Dense/model.safetensors"],
            {"a.safetensors"},
            ["a.safetensors", "2_Dense/model.safetensors"],
        ),
        (["a.safetensors", "original/b.safetensors"], None, ["a.safetensors"]),
    ],
)
def test_weights_are_safetensors_and_those_of_the_index(
    have: list[str], indexed: set[str] | None, fetched: list[str]
) -> None:
    assert paths(weights(files(*have), indexed)) == fetched


@pytest.mark.parametrize(
    ("have", "indexed", "words"),
    [
        (["pytorch_model.bin"], None, "only such as 'pytorch_model.bin'; pickles can run code"),
        (["x.gguf"], None, "only such as 'x.gguf'"),
        ([], None, "it has no *.safetensors, so no weights"),
        (["2_Dense/model.safetensors"], None, "so no weights"),
        (["a.safetensors"], {"a.safetensors", "b.safetensors"}, "index names 'b.safetensors'"),
        (["a.safetensors"], {"../a.safetensors"}, "index names '../a.safetensors'"),
    ],
)
def test_no_other_weights_are_taken(have: list[str], indexed: set[str] | None, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        weights(files(*have), indexed)
    assert words in str(refused.value)


PAGE = "https://hub/a/b"


@pytest.mark.parametrize(
    ("status", "kind", "token", "words"),
    [
        (401, "GatedRepo", False, f"granted access (401): ask for it at {PAGE}, and set HF_TOKEN"),
        (403, "GatedRepo", True, f"(403): ask for it at {PAGE}; this token's has not"),
        (403, "", True, "granted access (403)"),
        (401, "", True, "does not take the token (401): set HF_TOKEN"),
        (401, "RepoNotFound", False, f"no such model at {PAGE} (401), and no folder of that"),
        (
            404,
            "RepoNotFound",
            True,
            "(404), and no folder of that name: correct it; the token",
        ),
        (404, "RevisionNotFound", False, "no such revision of it (404): name a branch"),
        (404, "EntryNotFound", False, "has lost a file of it (404)"),
    ],
)
def test_a_refusal_says_what_to_do(status: int, kind: str, token: bool, words: str) -> None:
    said = refusal(status, kind, PAGE, token=token)
    assert said is not None and words in said


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_fault_of_the_hub_is_no_refusal(status: int) -> None:
    assert refusal(status, "", PAGE, token=True) is None
