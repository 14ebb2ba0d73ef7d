"""A configuration names models of the weight store: they are fetched, then served."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import forked
import pytest
import yaml
from model_folder import make_folder
from operated import around
from supervised import DEADLINE_S, WITH_FAKES, assert_gone, serving
from weight_machines import ROOT, Machine, same

pytestmark = pytest.mark.e2e


class WeightsUser:
    """A user of the machine `here`, whose store is empty. Another machine, the origin, has a model
    as `toy`.
    """

    def __init__(self, folder: Path, short: Path) -> None:
        self.folder, self.short = folder, short
        secret = folder / "secret"
        secret.write_text("a secret of this cluster")
        secret.chmod(0o600)
        self.model = make_folder(folder / "model")
        (self.model / "tokenizer.json").write_text('{"model": {}}')
        self.origin, self.here = (
            Machine(folder / "origin", secret),
            Machine(folder / "here", secret),
        )
        self.id = self.origin.add(self.model, "toy").id

    @property
    def environment(self) -> dict[str, str]:
        return around(self.short) | {"PYTHONPATH": str(ROOT)}

    def config(self, model: str, *sources: str, **changes: Any) -> Path:
        """Write a configuration with one tenant of `model`; the sources of weights are `sources`.
        Paths in it are relative to its folder.
        """
        tenant = {"name": "toy", "model": model, "share": 50, "max_model_len": 128} | changes
        weights = {"store": "here", "secret": "secret", "sources": list(sources)}
        told = {"device": {"memory": "64MiB"}, "tenants": [tenant], "weights": weights}
        path = self.folder / "c.yaml"
        path.write_text(yaml.safe_dump(told))
        return path

    def mirage(self, *words: object) -> subprocess.CompletedProcess[str]:
        return forked.run(
            [WITH_FAKES, *map(str, words)],
            env={**os.environ, **self.environment},
            cwd=self.folder,
            timeout=DEADLINE_S,
        )


@pytest.fixture
def user(tmp_path: Path) -> Iterator[WeightsUser]:
    with TemporaryDirectory(prefix="t", dir="/tmp") as short:
        yield WeightsUser(tmp_path, Path(short))


def answered(user: WeightsUser, config: Path) -> str:
    """Lines on stderr of a server that has answered a request and was then ended."""
    with serving(config, environment=user.environment) as served:
        told = {"model": "toy", "prompt": "x", "max_tokens": 2}
        status, body = served.request("POST", "/v1/completions", told)
        assert status == 200, body
        family = served.family()
        code, stderr = served.end(signal.SIGTERM)
    assert code == 0
    assert_gone(family)
    return stderr


def test_a_model_is_brought_and_served_and_later_served_without_anybody(user: WeightsUser) -> None:
    with user.origin.serving() as (url, _):
        said = answered(user, user.config("weights:toy", url))
        assert "mirage: toy: bringing 0.1 MiB of 0.1 MiB" in said
    assert same(user.here.store.folder(user.id), user.model)
    for model in ("weights:toy", f"weights:{user.id}"):
        assert "bringing" not in answered(user, user.config(model, url))


def test_what_is_not_there_is_one_line_and_nothing_starts(user: WeightsUser) -> None:
    config = user.config("weights:toy")
    for command, words in (
        ("serve", "toy: it is not whole in"),
        ("check", "tenant 'toy': toy is not whole in the store"),
    ):
        done = user.mirage(command, config)
        assert done.returncode == 2 and words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    with user.origin.serving() as (url, _):
        done = user.mirage("serve", user.config("weights:other", url))
        assert f"other: no source has it ({url} has none of that name)" in done.stderr
        assert user.here.pull("toy", url).returncode == 0
    done = user.mirage("check", user.config("weights:toy"))
    assert done.returncode == 0, done.stderr
    assert not list(user.short.iterdir())


def test_code_runs_only_of_an_id(user: WeightsUser) -> None:
    code = {"engine_args": {"trust_remote_code": True}}
    done = user.mirage("check", user.config("weights:toy", **code))
    assert done.returncode == 2 and "write weights: and the 64 digits of the id" in done.stderr
    done = user.mirage("check", user.config(f"weights:{user.id}", **code))
    assert "is not whole in the store" in done.stderr


def test_sources_need_a_secret(user: WeightsUser) -> None:
    path = user.config("weights:toy", "http://127.0.0.1:1")
    told = yaml.safe_load(path.read_text())
    del told["weights"]["secret"]
    path.write_text(yaml.safe_dump(told))
    done = user.mirage("check", path)
    assert done.returncode == 2
    assert "weights: sources need secret" in done.stderr
