"""Soft endpoints that end badly: one clear line, everything taken down, the journal kept."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from click.testing import CliRunner

from rocekit import cli
from rocekit.journal import read_journal

#: Its journal is written out 4 KiB at a time, and not a megabyte, so that a run is in its middle soon.
ROCEKIT = [
    sys.executable,
    "-c",
    "import sys; from rocekit.files import new_file; new_file._BUFFER = 4096\n"
    "from rocekit.cli import main; sys.exit(main())",
    "inject",
]
SOFT = ("--backend", "soft")
#: Gives up after four transmissions, 268 ms and more apart: a busy machine may not run a side for 100 ms.
HASTY = ("-u", "16", "--retry", "3")
#: Small messages fill a journal with a tenth of the work.
SMALL = ("-s", "8")
LIMIT_S = 240.0


class Sides:
    """Server and client of one test, each a process; ended with it."""

    def __init__(self, tmp: Path) -> None:
        n = os.getpid() % 60_000
        self.server_ip, self.client_ip = f"127.{n >> 8}.{n & 0xFF}.8", f"127.{n >> 8}.{n & 0xFF}.9"
        self.tmp = tmp
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([*ROCEKIT, *arguments, *SOFT], stdout=PIPE, stderr=PIPE, text=True)
        self.running.append(process)
        return process

    def server(self, scenario: str, *arguments: str) -> subprocess.Popen[str]:
        """A server that listens."""
        process = self.start(scenario, "--bind", self.server_ip, *arguments)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("listening on")
        return process

    def client(self, scenario: str, *arguments: str) -> subprocess.Popen[str]:
        return self.start(scenario, self.server_ip, "--bind", self.client_ip, *arguments)

    def talking(
        self, *arguments: str, scenario: str = "ping-sr"
    ) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        """A server and a client that do not end by themselves, in the middle of it."""
        journal = self.tmp / "client.journal.jsonl"
        server = self.server(scenario, *HASTY, *SMALL, *arguments)
        client = self.client(scenario, "-n", "1000000", *HASTY, *SMALL, *arguments, "--journal", str(journal))
        end = time.monotonic() + LIMIT_S
        while not (journal.exists() and journal.stat().st_size > 20_000):
            assert time.monotonic() < end
            time.sleep(0.02)
        return server, client


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    made = Sides(tmp_path)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    """The one line that a failed side ends with."""
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    *before, line = said.splitlines()
    assert not [text for text in before if not text.startswith("listening on")]
    assert line.startswith("rocekit: error: ")
    return line


#: What ends a run in the middle, by how the peers met: what is done, and what the client says then. One that
#: is killed says nothing itself, but its TCP connection ends.
ENDINGS: dict[str, tuple[tuple[str, ...], Callable[[subprocess.Popen[str]], None], str]] = {
    "killed, met over TCP": (("--no-rdma_cm",), lambda server: server.kill(), "disconnected"),
    "terminated": ((), lambda server: server.terminate(), "disconnected"),
    "interrupted": ((), lambda server: server.send_signal(signal.SIGINT), "disconnected"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_server_that_ends_in_the_middle_is_told_and_the_journal_is_kept(
    ending: str, sides: Sides, tmp_path: Path
) -> None:
    arguments, end, said = ENDINGS[ending]
    server, client = sides.talking(*arguments)
    end(server)
    line = line_of(client)
    assert said in line
    assert "ping-sr, after " in line
    journal = read_journal(tmp_path / "client.journal.jsonl")
    assert journal.problems == []
    assert journal.of("wc_polled")


def test_a_request_to_a_server_that_was_killed_runs_out_of_retries(sides: Sides, tmp_path: Path) -> None:
    """One that is acknowledged is not sent again: then the client waits in vain for the answer."""
    server, client = sides.talking("--timeout", "8")
    server.kill()
    line = line_of(client)
    assert "ping-sr, after " in line
    journal = read_journal(tmp_path / "client.journal.jsonl")
    assert journal.problems == []
    last = journal.of("wr_posted")[-1]
    acknowledged = any(
        (event.get("opcode"), event["wr_id"]) == ("SEND", last["wr_id"]) and event.time_ns > last.time_ns
        for event in journal.of("wc_polled")
    )
    assert ("nothing completed within 8 s" if acknowledged else "RETRY_EXC_ERR") in line


def test_a_stream_to_a_server_that_was_killed_runs_out_of_retries(sides: Sides) -> None:
    """There is always a SEND that waits for its acknowledgement."""
    server, client = sides.talking(scenario="blast-sr")
    server.kill()
    line = line_of(client)
    assert "RETRY_EXC_ERR" in line
    assert "blast-sr, after " in line


def test_a_thread_that_hears_of_the_end_ends_the_wait(sides: Sides) -> None:
    server, client = sides.talking("--cm", "thread", "--cq", "channel")
    server.terminate()
    assert "disconnected" in line_of(client)


@pytest.mark.parametrize("scenario", ["blast-write", "atomic"])
def test_a_server_that_sees_only_the_end_does_not_claim_to_know_why_it_is_wrong(
    sides: Sides, scenario: str
) -> None:
    # A busy machine is not to end it before it is interrupted.
    server, client = sides.talking("-u", "18", "--retry", "6", scenario=scenario)
    client.send_signal(signal.SIGINT)
    _, said = client.communicate(timeout=LIMIT_S)
    assert client.returncode == 130, said
    line = line_of(server)
    assert line.startswith(f"rocekit: error: {scenario}: ")
    assert line.endswith("; or the client ended before it was done")


def test_a_server_that_sees_nothing_does_not_say_that_it_verified(sides: Sides) -> None:
    server = sides.server("ping-read")
    client = sides.client("ping-read", "-n", "3")
    assert "data verified" in client.communicate(timeout=LIMIT_S)[0]
    said, _ = server.communicate(timeout=LIMIT_S)
    assert "the client verifies the data" in said
    assert "verified" not in said


def test_a_second_server_at_an_address_is_refused(sides: Sides) -> None:
    sides.server("ping-sr")
    second = sides.start("ping-sr", "--bind", sides.server_ip)
    assert f"there is already a soft device at {sides.server_ip}" in line_of(second)


def test_a_second_server_at_a_port_is_refused(sides: Sides) -> None:
    sides.server("uc", "-p", "18777")
    # Another device, but the same TCP port: the machine has one of it at an address.
    with socket.create_server((sides.client_ip, 18778)):
        second = sides.start("uc", "--bind", sides.client_ip, "-p", "18778")
        assert f"port 18778 of {sides.client_ip} is taken" in line_of(second)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ping-sr", "--timeout", "0.5"), "nobody asked to connect within 0.5 s"),
        (("uc", "--timeout", "0.5"), "nobody asked to connect within 0.5 s"),
        (("ping-sr", "--both", "-d", "nowhere0"), "no interface nowhere0"),
        (("ping-sr", "-x", "7"), "no GID index 7 (-x); a soft device has only 0"),
        (("mesh", "-x", "7"), "no GID index 7 (-x); a soft device has only 0"),
        (("rping", "-x", "7"), "no GID index 7 (-x); a soft device has only 0"),
        (("ping-sr", "--both", "-i", "2"), "no port 2 (-i); a soft device has only port 1"),
        (
            ("ping-sr", "127.0.0.1", "--bind", "127.9.9.9", "-p", "18779", "--no-rdma_cm"),
            "no TCP connection to 127.0.0.1 port 18779: Connection refused; is its server running?",
        ),
        (
            ("ping-sr", "192.0.2.77", "--timeout", "0.5"),
            "this machine has no soft device at 192.0.2.77; is its server running?",
        ),
        (
            ("ping-sr", "192.0.2.77", "--no-rdma_cm"),
            "nothing was sent; --allow-remote 192.0.2.77 sends there",
        ),
        (("rc_pingpong", "192.0.2.77"), "nothing was sent; --allow-remote 192.0.2.77 sends there"),
        (
            ("write_bw", "192.0.2.77", "--no-rdma_cm"),
            "nothing was sent; --allow-remote 192.0.2.77 sends there",
        ),
        (("ud", "--both", "-s", "5000"), "a datagram is one packet: 4096 bytes, not 5000 (-s)"),
        (("ping-sr-2", "--both", "-q", "2"), "ping-sr-2 has one QP"),
        (("wr-list", "--both", "-n", "5"), "-n 5 is no multiple"),
        (("blast-sr", "--both", "--compare", "-n", "5"), "blast-sr measures no round trip to compare"),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(cli.rocekit, ["inject", *words, *SOFT])
    assert result.exit_code == 1
    *before, line = result.stderr.splitlines()
    assert not [text for text in before if not text.startswith("listening on")]
    assert line.startswith("rocekit: error: ")
    assert said in line


def test_addresses_of_two_ip_versions_are_named() -> None:
    words = ["inject", "ping-sr", "::1", "--bind", "127.9.9.9", *SOFT]
    result = CliRunner().invoke(cli.rocekit, words)
    assert result.exit_code == 1
    assert "::1 and 127.9.9.9 of soft@127.9.9.9 are not of the same IP version" in result.stderr


def test_two_sides_on_one_real_interface_are_told_that_they_do_not_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rocekit.machine.iproute.ip", lambda *words: [{"ifname": words[-1], "flags": ["UP"]}])
    result = CliRunner().invoke(cli.rocekit, ["inject", "ping-sr", "--both", "-d", "eth9", *SOFT])
    assert result.exit_code == 1
    assert "packets sent on eth9 leave this machine" in result.stderr


def test_of_both_sides_the_client_has_the_address_that_was_asked_for(sides: Sides) -> None:
    run = sides.start("ping-sr", "--both", "--bind", sides.client_ip, "-n", "2")
    said, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0
    assert f"soft@{sides.client_ip}" in said


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("rc_pingpong", "the peer is not a ping-pong of libibverbs: it sent b'GET / HTTP/1.1"),
        ("write_bw", "the peer is not perftest: its path MTU is "),
    ],
)
def test_a_stranger_at_a_program_s_port_is_one_line(sides: Sides, program: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = sides.start(program, "-p", str(port), "--no-rdma_cm", "--bind", sides.server_ip)
    assert server.stderr is not None
    server.stderr.readline()
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nConnection: close\r\n\r\n")
        assert said in line_of(server)


def test_a_program_s_port_that_is_taken_is_named(sides: Sides) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        server = sides.start("rc_pingpong", "-p", str(port), "--bind", sides.server_ip)
        assert f"port {port} of this machine is taken" in line_of(server)


def test_nobody_at_the_tcp_port_is_named(sides: Sides) -> None:
    assert "Connection refused; is its server running?" in line_of(sides.client("uc"))


def test_a_stranger_at_the_tcp_port_is_hung_up_on(sides: Sides) -> None:
    server = sides.server("ud", "--timeout", "100")
    with socket.create_connection((sides.server_ip, 18515)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(30_000))
    client = sides.client("ud", "-n", "3")
    assert client.communicate(timeout=LIMIT_S)[0]
    assert (client.returncode, server.wait(LIMIT_S)) == (0, 0)


def test_a_server_told_otherwise_fails_where_nothing_is_told(sides: Sides) -> None:
    """ping-sr-0: both were told the same, or it goes wrong."""
    server = sides.server("ping-sr-0", "-s", "64", *HASTY)
    client = sides.client("ping-sr-0", "-s", "128", *HASTY)
    assert "REM_INV_REQ_ERR" in line_of(client)
    assert "LOC_LEN_ERR" in line_of(server) or server.returncode
