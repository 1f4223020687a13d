"""The device's side: what a drill may ask of the program that drives a device.

Arguments and results are what JSON has, so that an agent can do the calls on another host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any, Final

from rocekit.conform.drill import DeviceSetup
from rocekit.errors import VerbsError

#: What a device may lack, and what each is.
FEATURES: Final = {
    "RC": "reliable connections",
    "UC": "unreliable connections",
    "UD": "unreliable datagrams",
    "atomics": "FETCH_ADD and CMP_SWAP",
    "windows": "memory windows of type 2",
    "invalidate": "SEND WITH INVALIDATE",
    "srq": "shared receive queues",
    "cnp": "CNPs for packets that come with CE",
    "flush": "FLUSH",
    "atomic_write": "ATOMIC WRITE",
    "sqd": "the state SQD",
    "early_posts": "a library that refuses a request posted before RTS",
    "cm": "a connection manager",
    "listed_counters": "the counters that rxe has, under their names",
}

#: Events of a connection manager that a drill is not told: steps to a REQ, and the end of TIMEWAIT.
UNTOLD: Final = frozenset({"ADDR_RESOLVED", "ROUTE_RESOLVED", "CONNECT_RESPONSE", "TIMEWAIT_EXIT"})

#: The methods of a device that an agent does for its peer.
CALLS: Final = frozenset(
    {
        *("open", "post", "recv", "modify", "poll", "read", "fill", "state", "counters", "bind"),
        *("deregister", "listen", "accept", "reject", "disconnect", "connect", "events", "arm", "close"),
    }
)


class RefusedError(VerbsError):
    """The device, or the library before it, refused a call of a drill."""


class UnfitError(RefusedError):
    """What is around the device, and not the device, keeps a drill from being played."""


class ConformDevice(ABC):
    """A device and the program that drives it.

    Attributes:
        name: for people: ``rxe0, Linux 6.1.0-56-amd64``.
        ip: the address that it sends from.
        features: names of :data:`FEATURES`.
    """

    name: str
    ip: str
    features: frozenset[str]

    @abstractmethod
    def open(self, setup: dict[str, Any], peer_ip: str) -> dict[str, int]:
        """Make what a drill needs; see :func:`setup_document`. Whatever an earlier drill made is gone.

        Returns:
            qpn; rkey, lkey, addr and length of the region ``main``, and of each as ``NAME.rkey`` …

        Raises:
            RefusedError: the device cannot.
        """

    @abstractmethod
    def post(self, **wr: Any) -> None:
        """Post to the send queue; op is ``SEND``, ``RDMA_WRITE``, … as libibverbs names it."""

    @abstractmethod
    def recv(self, **wr: Any) -> None:
        """Post ``count`` receives of ``length`` bytes each."""

    @abstractmethod
    def modify(self, **attributes: Any) -> None:
        """Change the QP's state and attributes."""

    @abstractmethod
    def poll(self) -> list[dict[str, Any]]:
        """The completions that are there now."""

    @abstractmethod
    def read(self, region: str, offset: int, length: int) -> str:
        """Bytes of a region, in hexadecimal."""

    @abstractmethod
    def fill(self, region: str, offset: int, content: str) -> None:
        """Put bytes, in hexadecimal, into a region, as the program itself."""

    @abstractmethod
    def state(self) -> str:
        """The QP's state."""

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """What the device counted since it is there."""

    @abstractmethod
    def bind(self, region: str, offset: int, length: int, access: list[str]) -> int:
        """Bind a memory window of type 2 on the QP; its R_Key."""

    @abstractmethod
    def deregister(self, region: str) -> None:
        """Deregister a region."""

    def listen(self, port: int) -> None:
        """Let peers connect to a port of the connection manager."""
        raise RefusedError("no connection manager here")

    def accept(self, **param: Any) -> None:
        """Accept the next request to connect, with ``responder_resources`` and ``initiator_depth``."""
        raise RefusedError("no connection manager here")

    def reject(self) -> None:
        """Reject the next request to connect."""
        raise RefusedError("no connection manager here")

    def connect(self, port: int) -> None:
        """Ask the peer to connect to its port."""
        raise RefusedError("no connection manager here")

    def disconnect(self) -> None:
        """End the connection."""
        raise RefusedError("no connection manager here")

    @abstractmethod
    def arm(self, *, solicited: bool = False) -> None:
        """Request one event at the next completion; ``solicited``: at the next solicited one."""

    @abstractmethod
    def events(self) -> list[dict[str, Any]]:
        """The events since the last call: ``type`` and ``status`` of each.

        They are those of the connection manager, without :data:`UNTOLD`, and COMPLETION, which was armed for.
        """

    @abstractmethod
    def close(self) -> None:
        """Take down what the last drill made."""


def setup_document(setup: DeviceSetup) -> dict[str, Any]:
    """A setup as JSON has it."""
    document = asdict(setup)
    for region in document["memory"].values():
        region["content"] = region["content"].hex()
    return document
