"""The fingerprint under which an engine's blocks are stored is never that of other weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from toys import Model

from mirage.config import Policy
from mirage.engine import content
from mirage.engine.params import PlacedLayers
from mirage.engine.tiers import offer
from mirage.engine.tiers.offer import fingerprint, why_not
from tests import kinds
from tests.settings import engine_settings

pytestmark = pytest.mark.engine
ROWS = 5


@pytest.fixture
def parameter(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Parameter of five rows and a rest, so that its digest takes three chunks."""
    monkeypatch.setattr(content, "CHUNK", 2 * content.WIDTH)
    count = ROWS * content.WIDTH + 100
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.manual_seed(0))


@pytest.mark.parametrize("at", [0, content.WIDTH, ROWS * content.WIDTH - 1, -1])
def test_one_byte_more(parameter: torch.Tensor, at: int) -> None:
    other = parameter.clone()
    other[at] += 1
    assert content.digest(other) != content.digest(parameter)


@pytest.mark.parametrize(
    ("one", "two"), [(0, 1), (0, content.WIDTH), (7, content.WIDTH + 8), (3, 3 * content.WIDTH)]
)
def test_bytes_that_change_places(parameter: torch.Tensor, one: int, two: int) -> None:
    parameter[one], parameter[two] = 1, 2
    other = parameter.clone()
    other[one], other[two] = 2, 1
    assert content.digest(other) != content.digest(parameter)


def test_rows_that_change_places(parameter: torch.Tensor) -> None:
    rows = parameter[: ROWS * content.WIDTH].view(ROWS, -1)
    for a, b in [(0, 1), (0, 4)]:
        other = rows.clone()
        other[a], other[b] = rows[b], rows[a]
        assert content.digest(other) != content.digest(rows)


def test_strides_and_dtype_do_not_count(parameter: torch.Tensor) -> None:
    matrix = parameter[: 64 * 64].view(64, 64)
    apart = torch.zeros(64, 128, dtype=torch.uint8)[:, ::2]
    apart.copy_(matrix)
    assert content.digest(apart) == content.digest(matrix)
    assert content.digest(matrix.view(torch.float32)) == content.digest(matrix)


def test_nothing_and_a_single_number_have_a_digest() -> None:
    assert content.digest(torch.empty(0)) != content.digest(torch.tensor(1.5))


def test_weights_that_a_kernel_hides_have_no_name() -> None:
    """A kernel has taken a layer's weights away, so the model has no fingerprint and uses no tier.
    Otherwise an int8 model could read blocks of another one of the same shape.
    """
    model = Model()
    placed = PlacedLayers()
    placed.found(model)
    assert placed.hidden() is None
    first = next(m for m in model.layers[0].modules() if isinstance(m, torch.nn.Linear))
    first.weight.data = torch.empty(0)
    assert "a kernel has taken their weights away" in (placed.hidden() or "")
    settings = engine_settings()
    config = SimpleNamespace(
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        model_config=SimpleNamespace(is_encoder_decoder=False),
    )
    blocks = SimpleNamespace(kv_cache_groups=[], kv_cache_tensors=[object()])
    assert "cannot be told from others" in why_not(settings, placed.hidden(), config, blocks)


def test_of_unknown_layers_nobody_knows_it() -> None:
    assert PlacedLayers().hidden() == "its layers are not known"


def mark_of(
    length: int = 64,
    *adapters: Path,
    tenant: str = "a",
    folder: Path | None = None,
    packed: float | None = None,
    **media: Any,
) -> bytes:
    """Fingerprint of a model with the same weights and block layout each time. With `folder` it is
    multimodal.

    `packed` is the value that attention on AMX has packed into a weight.
    """
    model: Any = torch.nn.Linear(2, 2)
    model.is_amx_bmm_enabled = packed is not None
    model.impl = SimpleNamespace(w_packed=torch.full((2, 2), packed or 0.0), heads=2)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    hf = SimpleNamespace(to_dict=dict)
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=hf,
            dtype="float32",
            max_model_len=length,
            model=str(folder),
            is_multimodal_model=folder is not None,
            multimodal_config=SimpleNamespace(**media),
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", kv_cache_layout="NHD"),
        lora_config=object() if adapters else None,
    )
    tensor = SimpleNamespace(block_stride=512, layer_stride=4096, layers=["one"], offset=0)
    blocks = SimpleNamespace(kv_cache_groups=[], kv_cache_tensors=[tensor])
    settings = engine_settings(policy=Policy.POOLED, tenant=tenant, adapters=adapters)
    return fingerprint(config, blocks, model, settings)


@pytest.fixture(autouse=True)
def one_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend(monkeypatch, "one")


def use_backend(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    backend = SimpleNamespace(full_cls_name=lambda: ("vllm", name))
    monkeypatch.setattr(offer, "get_current_attn_backends", lambda config: [backend])


def test_other_kernels_are_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint differs for each class of processor and for another attention backend,
    because each lays out keys in a block its own way.
    """
    marks = []
    for processor in kinds.ORDER:
        kinds.become(processor, monkeypatch.setattr)
        marks.append(mark_of())
    use_backend(monkeypatch, "other")
    assert len({*marks, mark_of()}) == len(kinds.ORDER) + 1


def test_what_an_attention_has_packed_away_belongs_to_the_name() -> None:
    assert mark_of(packed=1.0) == mark_of(packed=1.0)
    assert len({mark_of(), mark_of(packed=1.0), mark_of(packed=2.0)}) == 3


def test_off_a_cpu_nobody_asks_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise AttributeError("no AMX on this processor")

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", fail)
    monkeypatch.setattr(offer.current_platform, "is_cpu", lambda: False)
    assert mark_of() == mark_of()


def test_another_context_length_is_another_name() -> None:
    """The fingerprint differs for another context length, by which vLLM chooses between the factors
    of LongRoPE and so the keys.
    """
    assert mark_of(64) == mark_of(64) != mark_of(128)


def test_an_adapter_that_was_replaced_has_another_name(tmp_path: Path) -> None:
    """The fingerprint depends on the adapter's file, because vLLM's hash of a block has only the
    adapter's name and folder, and disks outlive both.
    """
    weights = tmp_path / "adapter_model.safetensors"
    (tmp_path / "adapter_config.json").write_text("{}")
    weights.write_bytes(b"one")
    first = mark_of(64, tmp_path)
    assert first == mark_of(64, tmp_path) != mark_of(64)
    (tmp_path / "adapter_of_another_day").mkdir()  # no file of it
    assert first == mark_of(64, tmp_path)
    weights.write_bytes(b"two")
    assert mark_of(64, tmp_path) != first


def test_models_that_see_share_nothing_with_other_tenants(tmp_path: Path) -> None:
    """The fingerprint of a multimodal model depends on the tenant. A client may give a picture an
    id instead of having it hashed, and clients of another tenant may use the same id.
    """
    assert mark_of(tenant="a") == mark_of(tenant="b")
    seen = mark_of(tenant="a", folder=tmp_path)
    assert seen == mark_of(tenant="a", folder=tmp_path) != mark_of(tenant="b", folder=tmp_path)


def test_pictures_that_are_read_in_another_way_have_other_names(tmp_path: Path) -> None:
    before = mark_of(folder=tmp_path)
    assert mark_of(folder=tmp_path, mm_processor_kwargs={"num_crops": 4}) != before
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.5]}')
    assert mark_of(folder=tmp_path) != before
