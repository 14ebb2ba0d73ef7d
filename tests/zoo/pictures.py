"""Models that also see: a small tower beside the decoder."""

from __future__ import annotations

import re
import zlib
from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

from mirage.tools.demo.tokenizer import make_tokenizer
from tests.zoo.family import VOCABULARY, Family, shape

IMAGE, VIDEO, VISION_START, VISION_END = range(VOCABULARY, VOCABULARY + 4)
ROWS = VOCABULARY + 16
"""Rows of the embedding; those from `VOCABULARY` on are for special tokens, which no random prompt
contains.
"""


SPECIALS = {
    "llava": ("<image>", "<video>", "<vision>", "</vision>"),
    "gemma3-mm": ("<image_soft_token>", "<video>", "<start_of_image>", "<end_of_image>"),
    "qwen2-vl": ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
}
"""Names of the tokens IMAGE, VIDEO, VISION_START and VISION_END, by family; made up for tokens that
the family does not have.
"""
PLACES = {
    "llava": "<image>",
    "gemma3-mm": "<start_of_image>",
    "qwen2-vl": "<|vision_start|><|image_pad|><|vision_end|>",
}
"""Text that stands for a picture in a prompt, by family."""
CHAT = (
    "{%% for message in messages %%}{{ message['role'] }}: "
    "{%% for part in message['content'] %%}"
    "{%% if part['type'] == 'image' %%}%s{%% else %%}{{ part['text'] }}{%% endif %%}"
    "{%% endfor %%}\n{%% endfor %%}{%% if add_generation_prompt %%}assistant: {%% endif %%}"
)
NEWLINES = ("\n", "\n\n", "\n\n\n", "\n\n\n\n")
"""Tokens that vLLM's Gemma 3 looks up by name in the vocabulary."""
TOWER = (r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.")
SIDE = 56
"""Pixels of a picture's side, after it was prepared."""
ONE = {"limit_mm_per_prompt": {"image": 1, "video": 0}, "skip_tokenizer_init": False}


def with_processor(family: Family, path: Path) -> None:
    """Make the model, and the processor of its texts and pictures."""
    from tests.zoo.making import with_transformers

    with_transformers(family, path)
    _rename(path / "model.safetensors")
    PROCESSORS[family.name](tokenizer(family.name)).save_pretrained(path)


def _rename(weights: Path) -> None:
    """Rename the tower's tensors, because transformers' own class has one level less than published
    weights.
    """
    from safetensors.torch import load_file, save_file

    tensors = load_file(weights)
    renamed = {re.sub(*TOWER, name): tensor for name, tensor in tensors.items()}
    save_file(renamed, weights, metadata={"format": "pt"})


def tokenizer(family: str) -> Any:
    """The byte-level tokenizer with the family's special tokens."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    bytes_only = make_tokenizer()
    first = bytes_only.get_vocab_size() + len(NEWLINES)
    unused = [f"<|{i}|>" for i in range(first, VOCABULARY)]
    added = [AddedToken(name, special=True) for name in (*NEWLINES, *unused, *SPECIALS[family])]
    bytes_only.add_special_tokens(added)
    image, video, begin, end = SPECIALS[family]
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        model_max_length=2048,
        pad_token="<|pad|>",
        chat_template=CHAT % PLACES[family],
        extra_special_tokens={
            "image_token": image,
            "video_token": video,
            "boi_token": begin,
            "eoi_token": end,
        },
    )


def _llava(tokens: Any) -> Any:
    from transformers import CLIPImageProcessor, LlavaProcessor

    size = {"height": SIDE, "width": SIDE}
    return LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size),
        tokens,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token=tokens.image_token,
        num_additional_image_tokens=1,
    )


def _gemma3(tokens: Any) -> Any:
    from transformers import Gemma3ImageProcessor, Gemma3Processor

    pictures = Gemma3ImageProcessor(size={"height": SIDE, "width": SIDE})
    return Gemma3Processor(pictures, tokens, image_seq_length=4)


def _qwen2(tokens: Any) -> Any:
    from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

    pixels = {"min_pixels": SIDE**2, "max_pixels": SIDE**2}
    return Qwen2VLProcessor(
        Qwen2VLImageProcessor(**pixels), tokens, Qwen2VLVideoProcessor(**pixels)
    )


PROCESSORS = {"llava": _llava, "gemma3-mm": _gemma3, "qwen2-vl": _qwen2}
MARKS = {"llava": IMAGE, "gemma3-mm": VISION_START, "qwen2-vl": IMAGE}
"""The token by which a prompt says: here is a picture."""


def prompts(family: Family, texts: list[list[int]], seed: int) -> list[dict[str, Any]]:
    """Prompts for vLLM: each text with a picture of noise in its middle."""
    found = []
    for number, text in enumerate(texts):
        half = len(text) // 2
        tokens = [*text[:half], MARKS[family.name], *text[half:]]
        picture = {"image": noise(100 * seed + number)}
        found.append({"prompt_token_ids": tokens, "multi_modal_data": picture})
    return found


def noise(seed: int) -> Any:
    """A picture of noise, which differs from all others."""
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def chat(text: str) -> list[dict[str, Any]]:
    """Messages of a request over HTTP: `text`, and a picture that depends on it."""
    file = BytesIO()
    noise(zlib.crc32(text.encode())).save(file, "png")
    url = f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"
    picture = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [picture, {"type": "text", "text": text}]}]


_SIGLIP = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}

PICTURES = (
    Family(
        "qwen2-vl",
        "qwen2_vl",
        {
            "text_config": shape(
                vocab_size=ROWS,
                rope_parameters={
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [4, 6, 6],
                },
            ),
            "vision_config": {
                "depth": 2,
                "embed_dim": 64,
                "hidden_size": 128,
                "num_heads": 2,
                "mlp_ratio": 2,
                "patch_size": 14,
            },
            "image_token_id": IMAGE,
            "video_token_id": VIDEO,
            "vision_start_token_id": VISION_START,
            "vision_end_token_id": VISION_END,
        },
        "AutoModelForImageTextToText",
        maker=with_processor,
        arguments=ONE,
    ),
    Family(
        "gemma3-mm",
        "gemma3",
        {
            "text_config": shape(
                vocab_size=ROWS,
                head_dim=32,
                sliding_window=64,
                layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2,
                query_pre_attn_scalar=32,
            ),
            "vision_config": _SIGLIP,
            "mm_tokens_per_image": 4,
            "image_token_index": IMAGE,
            "boi_token_index": VISION_START,
            "eoi_token_index": VISION_END,
        },
        "AutoModelForImageTextToText",
        maker=with_processor,
        arguments=ONE,
    ),
    Family(
        "llava",
        "llava",
        {
            "text_config": {"model_type": "llama", **shape(vocab_size=ROWS)},
            "vision_config": {"model_type": "clip_vision_model", "projection_dim": 64, **_SIGLIP},
            "image_token_index": IMAGE,
            "vision_feature_layer": -1,
        },
        "AutoModelForImageTextToText",
        maker=with_processor,
        arguments=ONE,
    ),
)
