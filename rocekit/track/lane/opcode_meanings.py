"""What the clean lane makes of an opcode: the bits of one number; 0 where it takes no such packet."""

from __future__ import annotations

from typing import Final

from rocekit import wire
from rocekit.wire import ENDS, OPERATION, STARTS
from rocekit.wire.packet_kinds import KINDS, REQUEST

#: The operation, in the bits of IS_OF; IS_DATA is a READ response.
IS_SEND, IS_WRITE, IS_READ, IS_ACK, IS_DATA = 1, 2, 3, 4, 5
IS_OF: Final = 7
BEGINS_MESSAGE: Final = 1 << 3
ENDS_MESSAGE: Final = 1 << 4
HAS_RETH: Final = 1 << 5
HAS_IMMDT: Final = 1 << 6
HAS_IETH: Final = 1 << 7
_OF: Final = {"SEND": IS_SEND, "WRITE": IS_WRITE, "READ": IS_READ, "READ_RESPONSE": IS_DATA}


def meaning(value: int) -> int:
    """What an opcode is."""
    opcode, operation = wire.OPCODES.get(value), OPERATION[value]
    if opcode is None:
        return 0
    if operation == "ACK":
        return IS_ACK
    if operation not in _OF or (KINDS[value] != REQUEST and operation != "READ_RESPONSE"):
        return 0
    headers = opcode.headers
    return (
        _OF[operation]
        + BEGINS_MESSAGE * STARTS[value]
        + ENDS_MESSAGE * ENDS[value]
        + HAS_RETH * (wire.RETH in headers)
        + HAS_IMMDT * (wire.IMMDT in headers)
        + HAS_IETH * (wire.IETH in headers)
    )
