"""A scenario over two soft devices of one machine, with its server in a thread."""

from __future__ import annotations

import threading
from pathlib import Path

from rocekit import inject
from rocekit.endpoint import EndpointOptions, QpOptions, WaitWays
from rocekit.errors import RocekitError
from rocekit.inject import Outcome, Settings
from rocekit.scenarios.scenario import Plan
from rocekit.soft.backend import soft_backend
from rocekit.soft.wires.faults import Fault


def talk(
    plan: Plan,
    tmp_path: Path,
    *,
    device: str | None = None,
    server_ip: str,
    client_ip: str,
    faults: tuple[Fault, ...] = (),
    ways: WaitWays | None = None,
    qp: QpOptions | None = None,
    tcp: bool = False,
    timestamps: bool = True,
) -> Outcome:
    """Run a scenario; it writes the client's capture x.pcapng and both journals."""
    outcomes: dict[str, Outcome | RocekitError] = {}
    ready = threading.Event()

    def settings(role: str, ip: str) -> Settings:
        return Settings(
            endpoint=EndpointOptions(
                device=device, ip=ip, ways=ways or WaitWays(), tcp=tcp, timestamps=timestamps
            ),
            qp=qp or QpOptions(),
            timeout_s=60,
            journal=tmp_path / f"{role}.journal.jsonl",
            own_plan=plan,
        )

    def serve() -> None:
        try:
            outcomes["server"] = inject.serve(
                plan.scenario,
                settings("server", server_ip),
                ready=lambda ip: ready.set(),
                make=soft_backend(),
            )
        except RocekitError as error:
            outcomes["server"] = error
            ready.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(60)
    make = soft_backend(capture=tmp_path / "x.pcapng", faults=faults)
    try:
        outcome = inject.call(server_ip, plan, settings("client", client_ip), make=make)
    finally:
        thread.join(120)
    assert isinstance(outcomes["server"], Outcome), outcomes["server"]
    return outcome
