"""What a program's own bytes say: in the private data of a CM message, or at the start of a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

Details = Mapping[str, int | str]

#: How surely bytes belong to an application. ``MAGIC``: a number or text of its own, so whatever the port.
#: ``SHAPE``: every byte fits its layout, which says much: certain on its port or when both ends' bytes fit,
#: else probable. ``LOOSE``: the layout is short, so it counts on the application's port only, and is certain
#: there. ``HINT``: never more than probable.
HINT: Final = 0
LOOSE: Final = 1
SHAPE: Final = 2
MAGIC: Final = 3

#: Bytes at the start of a message that parsers look at.
MOST_BYTES: Final = 640


class Said(NamedTuple):
    """What bytes say, and how surely.

    Attributes:
        words: for people, without the application's name; short: the few of them that tell connections apart.
        details: for JSON.
    """

    application: str
    sure: int
    words: str
    details: Details = MappingProxyType({})
    short: str = ""


class FirstMessage(NamedTuple):
    """The start of a message, as one packet has it.

    Attributes:
        operation: ``SEND``, ``WRITE`` or ``READ_RESPONSE``.
        data: at most ``MOST_BYTES`` of its payload; length: bytes of the packet's payload.
        only: whether the packet is the whole message.
    """

    operation: str
    data: bytes
    length: int
    only: bool


#: Private data without the IP addressing to what it says; None: it is not this application's.
OfPrivateData = Callable[[bytes], Said | None]
OfMessage = Callable[[FirstMessage], Said | None]


class Ulp(NamedTuple):
    """An application, and how it is known.

    Attributes:
        name: the name that people use; ports: of RDMA IP CM, where it listens unless told otherwise.
        private_data: parsers by the name of the CM message.
        message: the parser of a connection's first messages; operations: of these messages.
        always_asks: its REQ always has private data that the parser knows: other data is not its.
        never_asks: its REQ has no private data.
        opens: the first SEND of the REQ's sender is always known to the parser.
    """

    name: str
    ports: frozenset[int] = frozenset()
    private_data: Mapping[str, OfPrivateData] = MappingProxyType({})
    message: OfMessage | None = None
    operations: tuple[str, ...] = ("SEND",)
    always_asks: bool = False
    never_asks: bool = False
    opens: bool = False


def zeros(data: bytes, start: int, end: int | None = None) -> bool:
    """Whether all bytes of a part are zero; an empty part is."""
    return not any(data[start:end])


def text_of(data: bytes) -> str | None:
    """The printable text before the first zero; None if there is none."""
    text = data.split(b"\0", 1)[0]
    return text.decode("ascii") if text and all(32 <= byte < 127 for byte in text) else None
