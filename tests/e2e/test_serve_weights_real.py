"""A pretrained model is fetched from another machine by name, and answers as from its folder."""

from __future__ import annotations

import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hub_user import AS_ITSELF
from operated import around
from supervised import assert_gone, serving
from test_serve_hub_real import AS_README, answer, conversation
from weight_machines import Machine, same

from tests.real.models import SMOLLM, folders

pytestmark = [pytest.mark.e2e, pytest.mark.slow, AS_README]

START_S = 600


def test_a_model_of_another_machine_answers_as_its_folder_does(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of this cluster")
    secret.chmod(0o600)
    model, origin = folders()[SMOLLM], Machine(tmp_path / "origin", secret)
    assert origin.mirage("add", model, "--name", "smollm").returncode == 0
    with origin.serving() as (url, _), TemporaryDirectory(prefix="t", dir="/tmp") as short:
        told = {
            "device": {"memory": "1GiB"},
            "tenants": [{"name": SMOLLM, "model": "weights:smollm", "share": 90}],
            "weights": {"store": "here", "secret": "secret", "sources": [url]},
        }
        config = tmp_path / "c.yaml"
        config.write_text(yaml.safe_dump(told))
        with serving(
            config, program=AS_ITSELF, environment=around(Path(short)), ready_timeout_s=START_S
        ) as served:
            assert answer(served, SMOLLM) == conversation().answer
            family = served.family()
            assert served.end(signal.SIGTERM)[0] == 0
    assert_gone(family)
    here = Machine(tmp_path / "here", secret).store
    assert same(here.folder(here.names()["smollm"]), model)
