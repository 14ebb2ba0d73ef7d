"""Check of a tenant's tokenizer, chat templates and sampling defaults, as vLLM's server would use
them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import _compile_jinja_template
from vllm import SamplingParams
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.renderers.chat_utils import load_chat_template
from vllm.tokenizers import cached_tokenizer_from_config

PLACEHOLDERS = ("token_id", "token_index")
"""Suffixes of keys in config.json for tokens that stand for pictures and the like."""


def refusal(config: Any, model: torch.nn.Module, template: str | None) -> str | None:
    """Return the reason why the tokenizer, a chat template or the sampling defaults are unfit; None
    if they are fit.

    `template` is the argument ``chat_template``.
    """
    model_config = config.model_config
    try:
        tokenizer = cached_tokenizer_from_config(model_config)
    except Exception as error:
        return f"vLLM cannot load the tokenizer in {model_config.tokenizer}: {_words(error)}"
    if tokenizer is None:
        return None
    return (
        _beyond(tokenizer, model_config, model)
        or _template(tokenizer, template)
        or _sampling(model_config)
    )


def _beyond(tokenizer: Any, model_config: Any, model: torch.nn.Module) -> str | None:
    """Return the reason if tokens have no row in the embedding: a prompt with such a token would
    end the engine."""
    rows = _rows(model) or model_config.get_vocab_size()
    if tokenizer.max_token_id < rows:
        return None
    named = _placeholders(model_config) if model_config.is_multimodal_model else set()
    beyond = {i: t for t, i in tokenizer.get_vocab().items() if i >= rows and i not in named}
    if not beyond:
        return None
    highest = max(beyond)
    return (
        f"its tokenizer has tokens beyond the {rows} rows of its embedding ({len(beyond)} of them, "
        f"such as {highest} {beyond[highest]!r}): remove those tokens, or resize the embedding"
    )


def _rows(model: torch.nn.Module) -> int:
    """Return the number of rows of the model's largest token embedding; 0 if none is known."""
    tables = (each for each in model.modules() if isinstance(each, VocabParallelEmbedding))
    return max((table.org_vocab_size for table in tables), default=0)


def _placeholders(model_config: Any) -> set[int]:
    """Return the tokens that the model replaces before it looks them up."""
    said = model_config.hf_config.to_dict()
    return {v for k, v in said.items() if k.endswith(PLACEHOLDERS) and isinstance(v, int)}


def _template(tokenizer: Any, given: str | None) -> str | None:
    """Return the reason if a chat template does not compile; None if all do."""
    for name, text in _templates(tokenizer, given):
        try:
            _compile_jinja_template(text)
        except TemplateError as error:
            return f"its {name} is not valid Jinja: {_words(error)}: correct it"
    return None


def _templates(tokenizer: Any, given: str | None) -> Iterator[tuple[str, str]]:
    if (loaded := load_chat_template(given)) is not None:
        yield "engine_args.chat_template", loaded
    own = getattr(tokenizer, "chat_template", None)
    for name, text in own.items() if isinstance(own, dict) else (("", own),):
        if isinstance(text, str):
            yield f"chat template {name!r}" if name else "chat template", text


def _sampling(model_config: Any) -> str | None:
    """Return the reason if vLLM refuses the sampling defaults, and so every request that relies on
    them."""
    try:
        SamplingParams.from_optional(**model_config.get_diff_sampling_param())
    except (TypeError, ValueError) as error:
        return f"its generation_config.json: {_words(error)}: correct it"
    return None


def _words(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
