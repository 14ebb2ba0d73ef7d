"""Serve two models from one device memory and ask both over the OpenAI API."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from mirage.tools.demo.models import make_models

STARTUP_S = 300


def configuration(models: dict[str, Path]) -> dict[str, Any]:
    """Both models share 64 MiB; each starts with half of it."""
    tenants = [
        {"name": name, "model": str(path), "share": 50, "max_model_len": 256}
        for name, path in models.items()
    ]
    device = {"memory": "64MiB", "page": "64KiB"}
    return {"device": device, "dtype": "float32", "tenants": tenants}


def serve(config: Path, ready: Path) -> subprocess.Popen[bytes]:
    """Start the server and wait until it says that it is ready."""
    words = ["serve", str(config), "--port", "0", "--ready-file", str(ready)]
    server = subprocess.Popen([sys.executable, "-m", "mirage", *words])
    deadline = time.monotonic() + STARTUP_S
    while not ready.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            server.terminate()
            raise SystemExit("the server did not get ready: its last lines say why")
        time.sleep(0.2)
    return server


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        models = {
            name: path.resolve()
            for name, path in make_models(Path("out/models"), which=["opt", "llama"]).items()
        }
        config, ready = here / "two.yaml", here / "ready.json"
        config.write_text(yaml.safe_dump(configuration(models)))
        server = serve(config, ready)
        try:
            url = json.loads(ready.read_text())["url"]
            for name in models:
                body = {"model": name, "prompt": "Hello", "max_tokens": 8, "temperature": 0}
                text = post(f"{url}/v1/completions", body)["choices"][0]["text"]
                print(f"{name} answers {text!r}")
            with urllib.request.urlopen(f"{url}/mirage/state", timeout=10) as answer:
                state = json.load(answer)
            for name, tenant in state["tenants"].items():
                print(f"{name} holds {tenant['held_bytes'] / 2**20:.1f} MiB")
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


if __name__ == "__main__":
    main()
