"""Models that also see: a small tower beside the decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.zoo.family import VOCABULARY, Family, shape

IMAGE, VIDEO, VISION_START, VISION_END = range(VOCABULARY, VOCABULARY + 4)
ROWS = VOCABULARY + 16
"""Of the embedding: special tokens that no random prompt holds come after the others."""


def with_processor(family: Family, path: Path) -> None:
    """The model, and what prepares pictures for it."""
    import transformers

    from tests.zoo.making import with_transformers

    with_transformers(family, path)
    for name in PROCESSORS[family.name]:
        made: Any = getattr(transformers, name)()
        made.save_pretrained(path)


PROCESSORS = {
    "qwen2-vl": ("Qwen2VLImageProcessor",),
    "gemma3-mm": ("Gemma3ImageProcessor",),
    "llava": ("CLIPImageProcessor",),
}

_TEXT_ONLY = {"limit_mm_per_prompt": {"image": 0, "video": 0}}
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
        arguments=_TEXT_ONLY,
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
        arguments={"limit_mm_per_prompt": {"image": 0}},
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
        arguments={"limit_mm_per_prompt": {"image": 0}},
    ),
)
