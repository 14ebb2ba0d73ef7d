"""Real engines of `mirage serve` take their weights from the keeper: the next engine answers with
the same text after the model's files were overwritten with zeros.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml
from supervised import Served, assert_gone, serving

from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.forms import OperatorAct, TenantStatus
from mirage.tools.demo.models import make_models
from tests.keeping import master_files, without_weights
from tests.opened import opened

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPT = list(range(5, 40))
READY_S = 600


class Serving:
    """A server with the tenants a and b of equal weights, which start on request."""

    def __init__(self, served: Served, weights: Path) -> None:
        self.served, self.weights = served, weights
        line = served.until("operators", lambda: self.said("--socket "))
        self.admin = AdminClient(Path(line.rpartition("--socket ")[2].strip()))

    def said(self, words: str) -> str:
        return next((line for line in self.served.log if words in line), "")

    def text(self, name: str) -> str:
        body = {"model": name, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
        status, answer = self.served.request("POST", "/v1/completions", body)
        assert status == 200, answer
        return str(answer["choices"][0]["text"])

    def status(self, name: str, state: str) -> TenantStatus:
        def there() -> TenantStatus | None:
            one = self.admin.tenant(name)
            return one if one.state == state else None

        found: TenantStatus = self.served.until(f"{name} is {state}", there, READY_S)
        return found

    def stop(self, name: str) -> TenantStatus:
        self.admin.act(name, OperatorAct.STOP)
        return self.status(name, "stopped")

    def masters(self) -> dict[int, int]:
        """Bytes of each master that a process of the server has open, found from
        outside by inode.
        """
        return master_files(*(process.pid for process in self.served.family()))

    def kept(self) -> dict[str, int]:
        """Figures of the keeper in `/mirage/state`."""
        found: dict[str, int] = self.served.request("GET", "/mirage/state")[1]["kept_weights"]
        return found

    def read(self, name: str) -> int:
        """Bytes that a tenant's engine core has read by system calls, from files or sockets."""
        counts = Path(f"/proc/{self.served.engine_core(name).pid}/io").read_text()
        found = dict(line.split(": ") for line in counts.splitlines())
        print(f"{name}: engine core has read {found}")
        return int(found["rchar"])

    def keeper(self) -> psutil.Process:
        found = [p for p in self.served.family() if "mirage.keeper.process" in p.cmdline()]
        assert len(found) == 1
        return found[0]


@contextmanager
def two_of_one(folder: Path) -> Iterator[Serving]:
    model = make_models(folder, which=["llama"], layers=4)["llama"]
    tenant = {"model": str(model), "share": 50, "max_model_len": 320, "max_wait_s": READY_S}
    tenants = [{"name": name, "start": "on_request", **tenant} for name in "ab"]
    config = folder / "config.yaml"
    content = {"device": {"memory": "48MiB"}, "dtype": "float32", "tenants": tenants}
    config.write_text(yaml.safe_dump(content | {"roster": {"drain_s": 0.2}}))
    with serving(config, fake=False, ready_timeout_s=READY_S) as served:
        served.patience_s = READY_S
        served.drain()
        yield Serving(served, model / "model.safetensors")


def test_no_start_reads_what_host_memory_has(tmp_path: Path) -> None:
    with two_of_one(tmp_path) as one, opened(one.weights) as opens:
        first = one.text("a")
        assert one.read("a") > 0 and opens() > 0
        assert one.status("b", "stopped").weights == "disk"
        size = one.weights.stat().st_size
        without_weights(one.weights)
        assert opens() > 0

        # Another tenant of the same weights, and the same one after its engine was killed.
        assert one.text("b") == first
        assert len(one.masters()) == 1
        one.served.engine_core("a").send_signal(signal.SIGKILL)
        one.served.until("it is noticed", lambda: one.admin.tenant("a").state != "ready")
        assert one.text("a") == first

        # None has an engine: the keeper alone has them.
        assert one.stop("a").weights == one.stop("b").weights == "host"
        files = one.masters()
        assert len(files) == 1 and sum(files.values()) >= size
        kept = one.kept()
        assert (kept["masters"], kept["used_bytes"], kept["idle_bytes"]) == (1, 0, *files.values())
        assert one.text("a") == first
        assert one.masters() == files

        # Nobody has opened the checkpoint since, and an engine reads fewer bytes than it has.
        assert opens() == 0
        assert one.read("a") < size

        # Without the keeper engines go on, and bring what they have to the next one.
        one.keeper().kill()
        assert one.text("a") == first
        one.served.until("it is told", lambda: one.said("the keeper of weights ended"))
        assert one.admin.tenant("b").weights == "disk"
        one.served.until("another keeper", lambda: one.said("another keeper of weights is up"))
        assert not one.said("keeper.sock; something had removed them")  # its own end did
        one.served.until("it has the master", lambda: one.kept()["masters"] == 1)
        assert one.stop("a").weights == "host"
        assert one.text("b") == one.text("a") == first
        assert one.masters() == files

        family = one.served.family()
        one.served.process.kill()
        assert_gone(family)
