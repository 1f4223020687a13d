"""An agent does a drill's calls for a packet side elsewhere."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from rocekit.conform.agent import RemoteDevice, serve
from rocekit.conform.device import RefusedError, UnfitError, setup_document
from rocekit.conform.drill import DeviceSetup
from rocekit.conform.soft_device import SoftConformDevice
from rocekit.errors import VerbsError


@pytest.fixture
def agent() -> Iterator[tuple[str, int]]:
    """An agent with a soft device, and where it listens."""
    where: list[tuple[str, int]] = []
    ready = threading.Event()

    def told(host: str, port: int) -> None:
        where.append((host, port))
        ready.set()

    device = SoftConformDevice("10.9.0.1", lambda: 0)
    thread = threading.Thread(
        target=serve, args=(device,), kwargs={"port": 0, "ready": told, "once": True}, daemon=True
    )
    thread.start()
    assert ready.wait(60)
    yield where[0]
    thread.join(60)


def test_it_listens_on_loopback_and_does_what_it_is_asked(agent: tuple[str, int]) -> None:
    assert agent[0] == "127.0.0.1"
    device = RemoteDevice(*agent)
    assert (device.name, device.ip) == ("soft", "10.9.0.1")
    assert "atomics" in device.features
    names = device.open(setup_document(DeviceSetup()), "10.9.0.2")
    assert names["length"] == 65_536
    device.fill("main", 4, "0102")
    assert device.read("main", 3, 4) == "00010200"
    assert device.state() == "RTS"
    device.recv(wr_id=3, length=64)
    device.modify(state="ERR")
    (completion,) = device.poll()
    assert (completion["wr_id"], completion["status"]) == (3, "WR_FLUSH_ERR")
    with pytest.raises(RefusedError):
        device.modify(state="RTS")
    with pytest.raises(VerbsError, match="no_such"):
        device.read("no_such", 0, 1)
    device.close()
    device.shut()


def test_what_is_no_call_ends_the_conversation_and_does_nothing(agent: tuple[str, int]) -> None:
    with socket.create_connection(agent, timeout=240) as peer, peer.makefile("rwb") as stream:
        assert json.loads(stream.readline())["name"] == "soft"
        stream.write(b'{"call": "__init__"}\n')
        stream.flush()
        assert stream.readline() == b""


def test_without_an_agent_the_error_says_what_to_start() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(VerbsError, match=r"does not answer .*rocekit conform-agent"):
            RemoteDevice("127.0.0.1", port)


def test_events_and_what_keeps_a_drill_from_being_played_come_through(
    agent: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit(self: SoftConformDevice, port: int) -> None:
        raise UnfitError("another device answers, too")

    monkeypatch.setattr(SoftConformDevice, "connect", unfit)
    device = RemoteDevice(*agent)
    device.open(setup_document(DeviceSetup()), "10.9.0.2")
    device.arm(solicited=True)
    device.listen(7000)
    assert device.events() == []
    with pytest.raises(RefusedError, match="no peer has asked"):
        device.accept(responder_resources=1)
    with pytest.raises(UnfitError, match="another device answers, too"):
        device.connect(7001)
    device.close()
    device.shut()
