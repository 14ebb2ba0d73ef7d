"""Child process: answers of a pretrained model to its chats, six at a time, as JSON.

python real_run.py OUT MODE NAME DTYPE   MODE is one of `identity.MODES`

Plain vLLM and our engine compute the same batches, so nothing may differ, not even a rounding.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from identity import MODES, arguments_of, observe
from tiny import make_llm, run

from tests.real.chats import SYSTEM, TOPICS, first_words, messages, text
from tests.real.models import SMOLLM, folders

BLOCKS = 512
"""KV blocks in all: no prefix is evicted."""
AT_ONCE = 6
TOKENS = 40
"""Tokens generated per prompt."""
PREFACE = 4 * f"{SYSTEM} "
"""Text that fills the first KV block of all prompts without a template, so that prefixes hit."""


def prompts(name: str, path: Path) -> list[list[int]]:
    """Tokens of the first turn of each chat."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    asked = [first_words(topic) for topic in TOPICS]
    if name != SMOLLM:
        return [tokenizer.encode(text([PREFACE + each], ())) for each in asked]
    chats = [messages([each], ()) for each in asked]
    return [
        tokenizer.apply_chat_template(each, add_generation_prompt=True, return_dict=False)
        for each in chats
    ]


def main(out: Path, mode: str, name: str, dtype: str) -> None:
    path = folders()[name]
    chats = prompts(name, path)
    llm = make_llm(path, blocks=BLOCKS, dtype=dtype, **arguments_of(mode))
    groups = [chats[start : start + AT_ONCE] for start in range(0, len(chats), AT_ONCE)]
    throttled = "copy_bytes_per_s" in (MODES[mode] or {})
    facts = observe(
        llm,
        mode,
        lambda number, change: run(llm, groups[number], TOKENS, change),
        seeds=(0,) if throttled else (*range(len(groups)), 0),
        chance=len(name),
    )
    out.write_text(json.dumps(facts))


if __name__ == "__main__":
    where, how, which, kind = sys.argv[1:]
    main(Path(where), how, which, kind)
