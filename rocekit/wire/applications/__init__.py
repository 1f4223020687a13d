"""Applications by name: what private data and first messages say of the program that uses a connection.

A new application is a row (:class:`~rocekit.wire.applications.said.Ulp`) in one of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from rocekit.wire.applications.files import FILES, NFS, RPC
from rocekit.wire.applications.programs import PROGRAMS
from rocekit.wire.applications.said import HINT, LOOSE, MAGIC, Details, FirstMessage, Said, Ulp
from rocekit.wire.applications.storage import STORAGE

ULPS: Final = (*STORAGE, *FILES, *PROGRAMS)
BY_NAME: Final = MappingProxyType({ulp.name: ulp for ulp in ULPS})
BY_PORT: Final = MappingProxyType({port: ulp for ulp in ULPS for port in ulp.ports})
_TCP: Final = 6
#: The parsers of first messages by the messages' operation, each once.
OF_MESSAGES: Final = MappingProxyType(
    {
        operation: tuple(
            dict.fromkeys(u.message for u in ULPS if u.message is not None and operation in u.operations)
        )
        for operation in ("SEND", "WRITE", "READ_RESPONSE")
    }
)


class Application(NamedTuple):
    """The application that uses a connection.

    Attributes:
        certain: whether its own bytes say it; else it is probable.
        ground: what says it, in words.
        details: what the bytes say, by the names of the specification.
        short: the few words of it that tell connections apart.
    """

    name: str
    certain: bool
    ground: str
    details: Details = MappingProxyType({})
    short: str = ""

    def __str__(self) -> str:
        """``NVMe-oF, queue 3``; ``probably iSER (port 3260)``."""
        name = f"{self.name}, {self.short}" if self.short else self.name
        return name if self.certain else f"probably {name} ({self.ground})"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "certain": self.certain,
            "ground": self.ground,
            "details": dict(self.details),
        }


def in_private_data(message: str, data: bytes, port: int | None) -> Said | None:
    """What the private data of a CM message says; the application of its port is asked first.

    Args:
        message: the CM message's name.
        data: its whole private data, without the IP addressing.
        port: of the REQ's service ID, None where it has none or is unknown.
    """
    if not any(data):
        return None
    found = [
        said for ulp in _asked(port) if (parse := ulp.private_data.get(message)) and (said := parse(data))
    ]
    return _best(found, port)


def in_message(message: FirstMessage, port: int | None = None) -> Said | None:
    """What the start of a message says; short layouts count on their application's port only."""
    return _best([said for parse in OF_MESSAGES[message.operation] if (said := parse(message))], port)


def port_of(service: tuple[int, int] | None) -> int | None:
    """The port of an RDMA IP CM service ID of TCP's port space; None for others."""
    return service[1] if service is not None and service[0] == _TCP else None


def _asked(port: int | None) -> Iterator[Ulp]:
    own = None if port is None else BY_PORT.get(port)
    if own is not None:
        yield own
    yield from (ulp for ulp in ULPS if ulp is not own)


def _best(found: list[Said], port: int | None) -> Said | None:
    """Magic before the application of the port before what fits alone; None if several others fit."""
    usable = [said for said in found if said.sure != LOOSE or on_its_port(said, port)]
    for chosen in (
        [said for said in usable if said.sure == MAGIC],
        [said for said in usable if on_its_port(said, port)],
    ):
        if chosen:
            return chosen[0]
    return usable[0] if len({said.application for said in usable}) == 1 else None


def on_its_port(said: Said, port: int | None) -> bool:
    """Whether the application that bytes speak of listens on this port."""
    name = NFS if said.application == RPC else said.application
    ulp = BY_NAME.get(name)
    return port is not None and ulp is not None and port in ulp.ports


def named(said: Said, port: int | None) -> str:
    """The application's name: RPC-over-RDMA on the port of NFS/RDMA is NFS/RDMA."""
    return NFS if said.application == RPC and on_its_port(said, port) else said.application


def in_words(said: Said, port: int | None) -> str:
    """For one line: ``NVMe-oF: queue 3 …``, with "probably" where bytes alone do not prove it."""
    sure = said.sure == MAGIC or (said.sure > HINT and on_its_port(said, port))
    return f"{'' if sure else 'probably '}{named(said, port)}: {said.words}"
