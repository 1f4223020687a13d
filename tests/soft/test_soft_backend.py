"""The scenarios of ``rocekit inject`` over soft devices: two processes of one machine, or one interface."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from soft_pair import talk

from rocekit import cli, inject
from rocekit.analysis import analyze
from rocekit.endpoint import Completion, Deadline, EndpointOptions, QpOptions, WaitWays
from rocekit.errors import RocekitError, VerbsError
from rocekit.inject import Settings
from rocekit.scenarios.scenario import Plan
from rocekit.soft.backend import SoftEndpoint, soft_backend
from rocekit.soft.engine.packet import Datagram
from rocekit.soft.realtime import Shell
from rocekit.soft.wires.faults import Fault
from rocekit.soft.wires.interface import InterfaceLink
from rocekit.soft.wires.local import LocalLink


@pytest.fixture
def ips() -> tuple[str, str]:
    """Two addresses that no other test run has."""
    n = os.getpid() % 60_000
    return f"127.{n >> 8}.{n & 0xFF}.2", f"127.{n >> 8}.{n & 0xFF}.3"


def test_a_packet_dropped_on_purpose_is_found(tmp_path: Path, ips: tuple[str, str]) -> None:
    faults = (Fault("drop", psn=4),)
    talk(Plan("ping-write", 65536, 2), tmp_path, server_ip=ips[0], client_ip=ips[1], faults=faults)
    troubled = [t for t in analyze(tmp_path / "x.pcapng").transfers if t.naks]
    assert [t.operation for t in troubled] == ["WRITE"]


def test_a_server_that_is_not_there_is_named(ips: tuple[str, str]) -> None:
    settings = Settings(endpoint=EndpointOptions(ip=ips[1]), timeout_s=0.3)
    with pytest.raises(VerbsError, match=r"no answer within 0\.3 s"):
        inject.call(ips[0], Plan("ping-sr", 8, 1), settings, make=soft_backend())


def test_a_way_that_is_not_found_in_time_is_named(ips: tuple[str, str]) -> None:
    class Busy(SoftEndpoint):
        """A host so busy that nothing is received in time."""

        def hear(self, wait_s: float = 0.0) -> None:
            pass

    with (
        Busy(EndpointOptions(ip=ips[1])) as endpoint,
        pytest.raises(VerbsError, match=r"no ADDR_RESOLVED within 0\.01 s \(--timeout\)"),
    ):
        endpoint.dial(ips[0], 18515, QpOptions(), Deadline(0.01))


def test_nobody_listening_is_named(ips: tuple[str, str]) -> None:
    with SoftEndpoint(EndpointOptions(ip=ips[0])) as other:
        settings = Settings(endpoint=EndpointOptions(ip=ips[1]), timeout_s=5)
        found: list[RocekitError] = []

        def call() -> None:
            try:
                inject.call(ips[0], Plan("ping-sr", 8, 1), settings, make=soft_backend())
            except RocekitError as error:
                found.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        assert isinstance(other, SoftEndpoint)
        while thread.is_alive():
            other.turn()
        assert "is its server running?" in str(found[0])


def test_a_client_that_leaves_before_its_rtu_is_heard_was_connected(ips: tuple[str, str]) -> None:
    """As with the kernel: test_inject_lab."""
    with (
        SoftEndpoint(EndpointOptions(ip=ips[0])) as server,
        SoftEndpoint(EndpointOptions(ip=ips[1])) as client,
    ):
        assert isinstance(server, SoftEndpoint)
        server.adapter.device.cm.take_rtu = lambda *_: None  # type: ignore[method-assign]  # lost
        server.listen(18515, backlog=1)
        served: list[object] = []

        def serve() -> None:
            connection = server.request(Deadline(100)).connection(QpOptions())
            connection.accept(b"as you like", Deadline(100))
            served.append(connection.disconnected)
            connection.disconnect(Deadline(100))

        thread = threading.Thread(target=serve)
        thread.start()
        connection = client.dial(ips[0], 18515, QpOptions(), Deadline(100))
        said = connection.connect(b"", Deadline(100))
        connection.disconnect(Deadline(100))
        thread.join(120)
    assert said.rstrip(b"\0") == b"as you like"
    assert served == [True]
    assert [news.type for news in server.heard_of] == ["CONNECT_REQUEST", "DISCONNECTED"]


def test_an_address_has_one_device_unless_another_will_do(ips: tuple[str, str]) -> None:
    first = LocalLink(ips[0])
    try:
        with pytest.raises(VerbsError, match="there is already a soft device"):
            LocalLink(ips[0])
        other = LocalLink(ips[0], shift=True)
        assert other.address != ips[0]
        other.close()
        with (
            contextlib.closing(LocalLink("::1", shift=True)),
            contextlib.closing(LocalLink("::1", shift=True)) as second,
        ):
            assert ":" in second.address
    finally:
        first.close()


def test_a_reader_that_does_not_read_holds_the_sender_up_and_loses_nothing(ips: tuple[str, str]) -> None:
    a, b = LocalLink(ips[0]), LocalLink(ips[1])
    try:
        went = 0
        while a.send(Datagram(ips[0], ips[1], went.to_bytes(4, "big"), 0)):
            went += 1
        assert went > 0
        assert [int.from_bytes(data, "big") for data in b.receive()] == list(range(went))
        assert a.send(Datagram(ips[0], ips[1], b"more", 0))
    finally:
        a.close()
        b.close()


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(VerbsError, match=r"no interface nowhere0; there is .*lo"):
        InterfaceLink("nowhere0")


def test_without_privilege_the_line_that_grants_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("rocekit.soft.wires.interface.socket.socket", refuse)
    with pytest.raises(VerbsError, match=r"setcap cap_net_raw\+ep"):
        InterfaceLink("lo", "127.0.0.1")


@pytest.mark.usefixtures("root")
def test_loopback_is_an_interface_like_any_other(tmp_path: Path, ips: tuple[str, str]) -> None:
    outcome = talk(Plan("ping-read", 3000, 3), tmp_path, device="lo", server_ip=ips[0], client_ip=ips[1])
    assert outcome.device == f"soft@{ips[1]}"
    assert {t.status for t in analyze(tmp_path / "x.pcapng").transfers} == {"acked"}


@pytest.mark.usefixtures("root")
def test_an_address_that_the_machine_has_not_is_named() -> None:
    with pytest.raises(VerbsError, match=r"this machine has no address 192.0.2.77"):
        InterfaceLink("lo", "192.0.2.77")


def test_the_command_line_runs_both_sides_and_explains_the_packet_it_dropped(tmp_path: Path) -> None:
    capture, journal = tmp_path / "x.pcapng", tmp_path / "x.journal.jsonl"
    words = "inject ping-write --both --backend soft -n 2 -s 65536 --seed 1 --fault qpn=1,psn=4,type=drop"
    result = CliRunner().invoke(
        cli.rocekit,
        [*words.split(), "--capture", str(capture), "--journal", str(journal), "--format", "json"],
    )
    assert result.exit_code == 0, result.output
    analysis = analyze(capture)
    assert {t.status for t in analysis.transfers} == {"acked"}
    assert all(t.wr is not None for t in analysis.transfers)
    assert "loss" in [finding.rule for finding in analysis.findings]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--backend soft --fault qpn=1,type=drop", 1, "a fault has either psn or rate"),
        ("--backend soft --faults nowhere.yaml", 1, "nowhere.yaml: cannot be read"),
        ("--backend soft -d nowhere0 127.0.0.1", 1, "no interface nowhere0"),
        ("--fault drop=1%", 2, "--fault is for --backend soft"),
        ("--seed 0", 2, "--seed is for --backend soft"),
        ("--both --backend soft --seed -1", 2, "-1 is out of range: at least 0"),
        ("--both --backend soft -s 3000000000", 1, "at most 2,147,483,648 bytes, not 3,000,000,000 (-s)"),
    ],
)
def test_a_wrong_word_on_the_command_line_is_one_clear_line(words: str, code: int, said: str) -> None:
    result = CliRunner().invoke(cli.rocekit, ["inject", "ping-sr", *words.split()])
    assert result.exit_code == code
    assert said in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("cm", ["poll", "thread", "sync"])
def test_no_side_sleeps_while_an_event_of_its_connection_manager_is_unread(
    cm: str, ips: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each unread DREQ cost a tenth of a second once: a thousand QPs did not end in a hundred seconds.
    slept: list[bool] = []
    wait, poll = Shell.wait, SoftEndpoint._poll

    def watched(shell: Shell, seconds: float) -> None:
        slept.append(shell.device.cm.has_events())
        wait(shell, seconds)

    def poll_late(endpoint: SoftEndpoint, most: int) -> list[Completion]:
        assert isinstance(endpoint.adapter.shell, Shell)
        endpoint.adapter.shell.link.wait(
            0.05
        )  # so what comes is read while the program looks for completions
        return poll(endpoint, most)

    monkeypatch.setattr(Shell, "wait", watched)
    monkeypatch.setattr(SoftEndpoint, "_poll", poll_late)
    listens = threading.Event()
    ways = WaitWays(cm=cm)

    def serve() -> None:
        settings = Settings(endpoint=EndpointOptions(ip=ips[0], ways=ways), counters=False)
        inject.serve("ping-sr", settings, ready=lambda ip: listens.set(), make=soft_backend())

    server = threading.Thread(target=serve)
    server.start()
    assert listens.wait(120)
    settings = Settings(endpoint=EndpointOptions(ip=ips[1], ways=ways), counters=False)
    inject.call(ips[0], Plan("ping-sr", 8, 1, qps=4), settings, make=soft_backend())
    server.join(120)
    assert slept
    assert not any(slept)
