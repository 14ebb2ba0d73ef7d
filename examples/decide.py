"""The deciding code as a library: what it tells two engines when one of them gets busy.

No process, no clock, no memory: messages go in with their time in seconds, decisions come out.
"""

from __future__ import annotations

from msgspec.structs import replace

from mirage.config import Config
from mirage.control.arbiter import Arbiter
from mirage.protocol import PROTOCOL_VERSION, Allotment, Hello, ModelShape, Report
from mirage.units import MIB

SHAPE = ModelShape(
    layers=32,
    layer_bytes=400 * MIB,
    fixed_bytes=1024 * MIB,
    extent_bytes=32 * MIB,
    extent_blocks=16,
    block_tokens=16,
    max_extents=2000,
    min_extents=8,
    movable_layers=32,
)
CONFIG = {
    "device": {"memory": "48GiB"},
    "tenants": [
        {"name": name, "model": f"/models/{name}", "share": 50, "max_model_len": 2048}
        for name in ("chat", "code")
    ],
}


def complied(allotment: Allotment) -> Report:
    """The report of an idle engine that holds what it was told to."""
    return Report(
        revision=allotment.revision,
        holds_turn=True,
        held_bytes=allotment.grant_bytes,
        layers_remapped=allotment.layers_remapped,
        stream_slots=allotment.stream_slots,
        kv_extents=allotment.kv_extents,
        kv_used_extents=0,
        kv_usable_extents=allotment.kv_extents,
        layer_load_s=0.001,
        layer_compute_s=0.0005,
    )


def busy(report: Report) -> Report:
    """The same engine with 64 requests that use all its KV memory and want to grow."""
    used = report.kv_extents
    return replace(report, running=64, kv_used_extents=used, growth_extents=used + 100)


def main() -> None:
    arbiter = Arbiter.of(Config.model_validate(CONFIG))
    for name in ("chat", "code"):
        arbiter.joined(Hello(PROTOCOL_VERSION, name, 1, SHAPE, 0), 0.0)
    told: dict[str, Allotment] = {}
    reports: dict[str, Report] = {}
    for now in (0.0, 1.0, 2.0, 3.0, 4.0):
        for name, message in arbiter.decide(now):
            print(f"{now:g} s: {name}: {message}")
            if isinstance(message, Allotment):
                told[name] = message
        for name, allotment in told.items():
            report = complied(allotment)
            reports[name] = busy(report) if name == "chat" and now >= 1.0 else report
            arbiter.reported(name, reports[name], now + 0.5)
    arbiter.controller.check(5.0)
    print(f"chat went from half of the device to {reports['chat'].held_bytes / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
