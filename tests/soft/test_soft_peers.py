"""The soft counterparts of rping, the ping-pongs and perftest work with each other in both roles.

test_soft_lab.py runs them with the real programs.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from subprocess import PIPE, STDOUT

import pytest
from lab_forks import Forks

from rocekit.errors import RocekitError
from rocekit.soft.cm.ids import CmEvent
from rocekit.soft.peers import rping
from rocekit.soft.peers.party import Party
from rocekit.soft.peers.perftest import TESTS
from rocekit.soft.realtime import Shell
from rocekit.soft.wires.fault_file import fault_from_words

BY_TCP = "--no-rdma_cm"
CONVERSATIONS = [
    ("rping", "-s", "5000"),
    *((f"{transport}_pingpong", "-s", "1000") for transport in ("rc", "uc", "ud")),
    *((test, "-s", "3000", "-R") for test in TESTS),
    ("read_bw", "-s", "3000", BY_TCP),
    ("read_bw", "-s", str(ord(":") << 8), BY_TCP),  # a number with the byte that parts the words of a place
    ("send_bw", "-s", "3000", BY_TCP, "-c", "UC"),
    ("send_bw", "-s", "1000", BY_TCP, "-c", "UD"),
]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks("rocekit.commands.inject_peer", "rocekit.soft.peers.party") as made:
        yield made


def free_port() -> str:
    """A TCP port that no other test listens on."""
    with socket.create_server(("", 0)) as free:
        return str(free.getsockname()[1])


@pytest.mark.parametrize("words", CONVERSATIONS, ids=" ".join)
def test_a_server_and_a_client_come_to_a_good_end(forks: Forks, words: tuple[str, ...]) -> None:
    command = ["inject", *words, "--backend", "soft", "--timeout", "120", "-n", "20", "-p", free_port()]
    server = forks.start(*command, stdout=PIPE, stderr=STDOUT)
    assert server.stdout is not None
    host = server.stdout.readline().split()[-1]
    client = forks.start(*command, host, stdout=PIPE, stderr=STDOUT)
    assert f"→ {host}, 20 rounds" in client.communicate(240)[0]
    said, _ = server.communicate(240)
    assert (client.returncode, server.returncode) == (0, 0), said


def test_both_sides_are_of_one_ip_version(forks: Forks) -> None:
    """On the wire within this machine, a side takes an address of the peer's IP version."""
    soft = ("--backend", "soft", "-n", "3", "--timeout", "100")
    both = forks.start(
        "inject", "ping-sr", "--both", "--bind", "fd00:7::5", *soft, stdout=PIPE, stderr=STDOUT
    )
    said, _ = both.communicate(240)
    assert "fd00:7::5 → fd00:7::4" in said, said
    server = forks.start("inject", "rping", "--bind", "fd00:7::8", *soft, stdout=PIPE, stderr=STDOUT)
    assert server.stdout is not None
    assert server.stdout.readline().split()[-1] == "fd00:7::8"
    client = forks.start("inject", "rping", *soft, "fd00:7::8", stdout=PIPE, stderr=STDOUT)
    assert "fd00:7::9 → fd00:7::8, 3 rounds" in client.communicate(240)[0]
    assert server.communicate(240)[0].startswith("rping server: fd00:7::8, 3 rounds")


def test_what_a_peer_cannot_do_is_a_wrong_command_line(forks: Forks) -> None:
    for words, said in (
        (("rping",), "--backend soft runs one side of it"),
        (("rping", "--backend", "soft", "--both"), "--both is for scenarios"),
        (("nothing", "--backend", "soft"), "one side of rping"),
    ):
        run = forks.start("inject", *words, stdout=PIPE, stderr=PIPE)
        assert said in " ".join(run.communicate(240)[1].split())
        assert run.returncode == 2


def test_a_transport_that_cannot_do_it_is_said_in_one_line(forks: Forks) -> None:
    for words, said in (
        (("read_bw", "-c", "UC"), "UC has no read_bw: send_bw, write_bw"),
        (("send_bw", "-c", "UD"), "perftest over UD works only over TCP here"),
        (
            ("send_bw", "127.0.0.1", "-c", "UD", BY_TCP, "-s", "5000"),
            "a datagram is one packet: 4096 bytes, not 5000 (-s)",
        ),
        (("ud_pingpong", "127.0.0.1", "-s", "5000"), "a datagram is one packet: 4096 bytes, not 5000 (-s)"),
    ):
        run = forks.start("inject", *words, "--backend", "soft", stdout=PIPE, stderr=PIPE)
        out, error = run.communicate(240)
        assert (run.returncode, out) == (1, "")
        assert error.startswith(f"rocekit: error: {said}")


@pytest.mark.parametrize(
    ("words", "timeout", "said"),
    [
        (("rping",), "0.2", "no client connected within 0.2 s (--timeout)"),
        (("send_bw", BY_TCP), "0.2", "no client within 0.2 s (--timeout)"),
        # the peer answers: it gets the time that a busy machine may need for that
        (("rping", "127.0.0.1"), "20", "rejected the connection: invalid service ID (nobody listens on it)"),
        (("rping", "127.0.0.99"), "0.2", "the connection was not established within 0.2 s"),
        (("rping", "no.such.host.invalid"), "0.2", "no route to no.such.host.invalid"),
    ],
)
def test_who_is_not_there_is_said_in_one_line(
    forks: Forks, words: tuple[str, ...], timeout: str, said: str
) -> None:
    other = forks.start("inject", "rping", "--backend", "soft", "--port", "9999", stderr=PIPE)
    assert other.stderr is not None
    other.stderr.readline()  # a device to be rejected by: it listens, but elsewhere
    try:
        words = (*words, "--backend", "soft", "--timeout", timeout, "-p", free_port())
        run = forks.start("inject", *words, stdout=PIPE, stderr=PIPE)
        out, error = run.communicate(240)
        (line,) = [text for text in error.splitlines() if not text.startswith("listening")]
        assert line.startswith("rocekit: error: ")
        assert said in line
        assert (run.returncode, out) == (1, "")
    finally:
        other.kill()
        other.wait()


class Leaving(Party):
    """A client whose DREQ does not arrive, and which does not wait for a DREP."""

    def event(self, *types: str) -> CmEvent:
        if types != ("DISCONNECTED",):
            return super().event(*types)
        raise KeyboardInterrupt


def serve_rping(told: list[object], ready: threading.Event, address: list[str]) -> None:
    with Party(None, None, timeout_s=12, listening=ready.set) as party:
        address.append(party.ip)
        try:
            told += [rping.serve(party), party.vanished]
        except RocekitError as error:
            told.append(error)


@pytest.mark.parametrize(
    "fault", [None, "type=drop,of=mad,rate=1", "qpn=1,psn=12,iter=0,type=drop,of=ack,from=server"]
)
def test_a_client_that_leaves_without_a_word_after_a_round_is_served(
    fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's CM does not send a lost DREQ again after its program ended (cm_destroy_id cancels it); and
    a client may leave before it sends its last ACK again.
    """
    told: list[object] = []
    ready, address = threading.Event(), list[str]()
    server = threading.Thread(target=serve_rping, args=(told, ready, address))
    server.start()
    assert ready.wait(120)
    kind = Leaving if fault is not None and "mad" in fault else Party
    with kind(None, None, timeout_s=10) as client:
        if fault is not None and "mad" not in fault:
            client.shell = Shell(client.device, client.shell.link, faults=[fault_from_words(fault)])
        elif fault is not None:
            monkeypatch.setattr(client.device.cm, "disconnect", lambda *_: None)
        with suppress(KeyboardInterrupt):
            # The server uses four PSNs a round: READ, SEND, WRITE, SEND.
            assert rping.call(client, address[0], count=3, size=3000) == 3
    server.join(120)
    assert told == [3, kind is Leaving]
