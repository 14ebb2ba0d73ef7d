"""A byte-level tokenizer without training: one byte of text is one token."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

SPECIALS = ("<|pad|>", "<|begin|>", "<|end|>")
PAD, BEGIN, END = range(256, 259)
VOCABULARY = 320
"""Rows of the models' embeddings: 256 bytes, the specials, and padding to a multiple of 64."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_characters() -> list[str]:
    """Character that stands for each of the 256 bytes by the byte-level convention.

    Bytes that print in Latin-1 stand for themselves; the others are numbered from U+0100.
    """
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(others)) for byte in range(256)]


def make_tokenizer() -> Tokenizer:
    """Tokenizer whose token i is byte i, followed by the special tokens. It adds nothing to a
    text.
    """
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    return tokenizer


def save_tokenizer(folder: Path, max_length: int) -> None:
    """Write the files that transformers' AutoTokenizer reads; `max_length` in tokens."""
    make_tokenizer().save(str(folder / "tokenizer.json"))
    pad, begin, end = SPECIALS
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "pad_token": pad,
        "bos_token": begin,
        "eos_token": end,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
