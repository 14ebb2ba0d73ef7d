"""A thousand random odd folders: each is served, or refused in one line without harm to others."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_folder import make_adapter, make_folder
from odd_folders import check, drawn, odd, tenant

from mirage.tools.demo.tokenizer import save_tokenizer

pytestmark = pytest.mark.e2e

GOOD = "good"
FOLDERS, AT_ONCE = 1000, 100


@pytest.mark.drawn("part")
@pytest.mark.parametrize("part", range(FOLDERS // AT_ONCE))
def test_odd_folders_are_refused_in_one_line_and_the_others_stay(tmp_path: Path, part: int) -> None:
    """`mirage check` on odd folders beside a good one: each is accepted or refused in one line, and
    the good one is accepted. vLLM is replaced by a fake probe, because only our checks of folders
    are tested.
    """
    draw = drawn(f"folders {part}")
    model = make_folder(tmp_path / "model")
    save_tokenizer(model, 128)
    adapter = make_adapter(tmp_path / "adapter")
    share, longest = 100 / (AT_ONCE + 1) - 0.001, {"max_model_len": 64}
    tenants = [tenant(GOOD, model, share, adapter, **longest)]
    for number in range(AT_ONCE):
        name, of_adapter = f"odd{number}", draw.random() < 0.3
        path = odd(adapter if of_adapter else model, tmp_path / name, draw)
        made = (model, share, path) if of_adapter else (path, share)
        tenants.append(tenant(name, *made, **longest))
    accepted = check(tmp_path, tenants, fake=True, memory="1GiB")
    assert GOOD in accepted and len(accepted) < len(tenants)
