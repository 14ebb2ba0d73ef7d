"""One byte of text is one token, and back."""

from __future__ import annotations

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.tools.demo.tokenizer import (
    BEGIN,
    CHAT_TEMPLATE,
    END,
    PAD,
    SPECIALS,
    VOCABULARY,
    byte_characters,
    make_tokenizer,
)

pytestmark = pytest.mark.pure

TOKENIZER = make_tokenizer()
plain_text = st.text().filter(lambda text: not any(name in text for name in SPECIALS))


@given(plain_text)
def test_tokens_are_the_bytes_and_decode_to_the_text(text: str) -> None:
    tokens = TOKENIZER.encode(text).ids
    assert tokens == list(text.encode())
    assert TOKENIZER.decode(tokens) == text


def test_specials_follow_the_bytes_and_are_one_token_each() -> None:
    assert [TOKENIZER.encode(name).ids for name in SPECIALS] == [[PAD], [BEGIN], [END]]
    assert TOKENIZER.get_vocab_size() == 259 <= VOCABULARY
    assert VOCABULARY % 64 == 0


def test_every_byte_has_its_own_visible_character() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert all(c.isprintable() and not c.isspace() for c in characters)


def test_chat_template_names_the_roles() -> None:
    messages = [{"role": "user", "content": "hi"}]
    template = jinja2.Template(CHAT_TEMPLATE)
    text = template.render(messages=messages, add_generation_prompt=True)
    assert text == "user: hi\nassistant: "
