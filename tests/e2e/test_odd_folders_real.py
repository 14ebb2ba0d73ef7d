"""Odd folders that `mirage check` accepts start on real engines, and compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from lora_folder import make_adapter
from odd_folders import check, drawn, odd, tenant
from supervised import serving

from mirage.tools.demo.models import make_models

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

FOLDERS, SERVED = 40, 5
"""Folders that are drawn, and how many of the accepted ones are served at once."""
MEMORY = "400MiB"
TOKENS = [11, 12, 13]


def test_what_check_accepts_of_them_is_served(tmp_path: Path) -> None:
    draw = drawn("served folders")
    model = make_models(tmp_path / "models", which=["llama"], layers=4)["llama"]
    adapter = make_adapter(tmp_path / "adapter", model, seed=0)
    tenants = []
    for number in range(FOLDERS):
        name, of_adapter = f"odd{number}", draw.random() < 0.3
        path = odd(adapter if of_adapter else model, tmp_path / name, draw)
        made = (model, 100 / FOLDERS, path) if of_adapter else (path, 100 / FOLDERS)
        tenants.append(tenant(name, *made, max_model_len=64))
    accepted = check(tmp_path, tenants, fake=False, memory="4GiB")
    assert 0 < len(accepted) < FOLDERS
    chosen = draw.sample(sorted(accepted), min(SERVED, len(accepted)))
    served = [each | {"share": 100 / len(chosen)} for each in tenants if each["name"] in chosen]
    _serve(tmp_path, served)


def _serve(folder: Path, tenants: list[dict[str, object]]) -> None:
    """Serve the tenants with real engines, and send a request to each under each name, its
    adapters' included.
    """
    path = folder / "served.yaml"
    content = {"device": {"memory": MEMORY}, "dtype": "float32", "tenants": tenants}
    path.write_text(yaml.safe_dump(content))
    with serving(path, fake=False, ready_timeout_s=600) as server:
        _, models = server.request("GET", "/v1/models")
        names = {each["id"] for each in models["data"]}
        assert {each["name"] for each in tenants} <= names
        for name in sorted(names):
            asked = {"model": name, "prompt": TOKENS, "max_tokens": 4, "temperature": 0}
            status, answer = server.request("POST", "/v1/completions", asked)
            assert status == 200 and answer["usage"]["completion_tokens"] > 0, (name, answer)
