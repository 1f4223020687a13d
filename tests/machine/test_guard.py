"""Nothing leaves this machine unless somebody named where it goes."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
from memory_endpoint import Fabric, MemoryEndpoint

from rocekit.endpoint import EndpointOptions
from rocekit.errors import ScenarioError, VerbsError
from rocekit.inject import Settings
from rocekit.journal import JournalWriter
from rocekit.machine import guard
from rocekit.machine.iproute import ip
from rocekit.scenarios import client_server
from rocekit.scenarios.scenario import Plan

#: Kept for documentation (RFC 5737, RFC 3849): nobody's.
NOBODY = ("192.0.2.7", "2001:db8::7", "224.0.0.1", "255.255.255.255")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"])
def test_loopback_is_always_ours(address: str) -> None:
    guard.check([address])


@pytest.mark.parametrize("address", NOBODY)
def test_others_are_refused_in_one_line_that_says_what_lets_them_in(address: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        guard.check(["127.0.0.1", address])
    assert str(raised.value) == (
        f"{address} is no address of this machine or its namespaces, nothing was sent; "
        f"--allow-remote {address} sends there"
    )


@pytest.mark.parametrize("address", NOBODY)
def test_who_is_named_is_let_in_and_nobody_else(address: str) -> None:
    guard.check([address, "::1"], allowed=[address])
    with pytest.raises(ScenarioError):
        guard.check([address, "198.51.100.1"], allowed=[address])


def test_an_address_is_the_same_however_it_is_written() -> None:
    guard.check(["2001:db8::7", "::ffff:192.0.2.7"], allowed=["2001:DB8:0::0:7", "192.0.2.7"])


def test_this_machine_s_addresses_are_ours() -> None:
    own = [entry["local"] for link in ip("addr") for entry in link["addr_info"]]
    if not own:
        pytest.skip("no iproute2, or no address at all")
    guard.check(own)


def test_a_name_that_nobody_knows_is_left_to_who_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    guard.check(["nobody.invalid"])


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7"])
def test_no_scenario_is_run_with_another_machine_unasked(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether this machine has a route there is not the question.
    monkeypatch.setattr(client_server, "source_address", lambda host, port: ("127.0.0.2", host))

    def make(options: EndpointOptions, journal: JournalWriter | None) -> MemoryEndpoint:
        return MemoryEndpoint(Fabric(), "127.0.0.2", journal)

    ours = Settings(endpoint=EndpointOptions(ip="127.0.0.2"))
    with pytest.raises(ScenarioError, match=f"--allow-remote {host} sends there"):
        client_server.call(host, Plan("ping-sr", 64, 1), ours, make=make)
    with pytest.raises(VerbsError, match="nobody listens"):
        client_server.call(host, Plan("ping-sr", 64, 1), replace(ours, allow_remote=(host,)), make=make)


#: For benchmarks (RFC 2544), nobody's, and no other run's of these tests.
OURS = f"198.18.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF}"


@pytest.fixture
def namespace(root: None) -> Iterator[str]:
    """A network namespace with a name and an address of its own."""
    name = f"rk-guard-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no network namespace here: {made.stderr.strip()}")
    try:
        run = ["ip", "-n", name]
        subprocess.run([*run, "addr", "add", f"{OURS}/32", "dev", "lo"], check=True)
        subprocess.run([*run, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_addresses_of_this_machine_s_namespaces_are_ours_as_long_as_they_are_there(namespace: str) -> None:
    guard.check([OURS])
    subprocess.run(["ip", "-n", namespace, "addr", "flush", "dev", "lo"], check=True)
    with pytest.raises(ScenarioError):
        guard.check([OURS])


def test_so_are_those_of_a_namespace_without_a_name(root: None) -> None:
    shell = f"ip addr add {OURS}/32 dev lo && echo there && read -r end"
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "there\n":
            pytest.skip("no network namespace here")
        try:
            guard.check([OURS])
        finally:
            process.stdin.write("\n")
            process.stdin.close()
