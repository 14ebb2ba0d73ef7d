"""A file applied while models move: what is placed stays, and a move gives way."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from supervised import DEADLINE_S
from test_serve_devices import LEFT, config_of, served, tenant
from test_serve_devices_applied import Applied
from test_serve_moves import OTHER, loaded, movable

pytestmark = pytest.mark.e2e


@pytest.mark.slow
def test_a_model_that_names_no_device_is_placed_and_moves_for_the_file(
    tmp_path: Path, short: Path
) -> None:
    """Models without a device are added. They are placed, the one that was placed earlier stays,
    and a file that names a device for a new one moves it there.
    """
    with served(movable(tmp_path, rest_s=300.0, gain_percent=50.0), short, lease_s=0) as machine:
        up = Applied(machine, tmp_path)
        (home,) = up.devices("b")
        told = {"tenants": [*up.base["tenants"], tenant("d"), tenant("e")]}
        lines = up.has(told, "--dry-run")
        assert any(line.startswith("d: on ") and line.endswith(", placed") for line in lines), lines
        lines = up.has(told, "--wait")
        assert up.devices("b") == [home] and len(up.devices("d")) == len(up.devices("e")) == 1
        (there,) = up.devices("d")
        told["tenants"][3]["device"] = OTHER[there]
        lines = up.has(told, "--wait")
        assert f"d: goes from {there} to {OTHER[there]}" in lines[0], lines
        assert up.devices("d") == [OTHER[there]]
        assert machine.ask("d", "pids")[0] == 200
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


@pytest.mark.slow
def test_a_move_gives_way_to_an_operator_and_comes_again(tmp_path: Path, short: Path) -> None:
    """While `b` moves, its new engine waits for a file, and an operator applies a configuration.
    The move is given up at once and made again later.
    """
    gate = tmp_path / "gate"
    gate.touch()
    config = movable(tmp_path, rest_s=300.0)
    with served(config, short, lease_s=0, FAKE_ENGINE=f"obeys:b:{gate}") as machine:
        up = Applied(machine, tmp_path)
        (home,) = up.devices("b")
        there, beside = OTHER[home], "a" if home == LEFT else "c"
        gate.unlink()
        with loaded(machine, 20, "b", beside) as answers:
            machine.server.until("it comes", lambda: set(up.devices("b")) == {home, there})
            a, b, c = up.base["tenants"]
            lines = up.has({"tenants": [a, b, c | {"priority": 1}]})
            assert lines == ["right: c: changed, priority at once"]
            told = machine.operator.mirage("why").stdout
            assert f"1. start b on {there}, failed" in told, told
            assert "an operator applies a configuration" in told, told
            gate.touch()
            machine.server.until("it moves again", lambda: up.devices("b") == [there])
        assert {status for _, status, _ in answers} == {200}
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


@pytest.mark.slow
def test_who_waits_for_a_tenant_hears_of_it_though_its_devices_server_is_killed(
    tmp_path: Path, short: Path
) -> None:
    """An operator waits for a new tenant, and the server of its device is killed meanwhile. The
    next server adopts the engine, and the operator is told when the tenant is ready.
    """
    gate = tmp_path / "gate"
    with served(config_of(tmp_path), short, FAKE_ENGINE=f"obeys:d:{gate}") as machine:
        up = Applied(machine, tmp_path)
        told = {"tenants": [*up.base["tenants"], tenant("d", device=LEFT)]}
        before = machine.device(LEFT)
        with ThreadPoolExecutor(1) as thread:
            waits = thread.submit(up.has, told, "--wait")

            def added() -> bool:
                audit = [line for line in machine.server.log if "d: added" in line]
                return any(" left INFO" not in line for line in audit)

            machine.server.until("the operator has the answer", added)
            before.kill()
            adopted = lambda: any("adopted from process" in line for line in machine.server.log)  # noqa: E731
            machine.server.until("another has its engines", adopted)
            gate.touch()
            assert waits.result(DEADLINE_S)[-1] == "d is ready on left"
        assert machine.server.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())
