"""What the clean lane makes of an opcode: the bits of one number; 0 where it takes no such packet."""

from __future__ import annotations

from typing import Final

from rocekit import wire
from rocekit.wire import ENDS, OPERATION, STARTS
from rocekit.wire.packet_kinds import KINDS, REQUEST

#: The operation, in the bits of IS_OF.
IS_SEND, IS_WRITE, IS_ACK = 1, 2, 3
IS_OF: Final = 3
BEGINS_MESSAGE: Final = 1 << 2
ENDS_MESSAGE: Final = 1 << 3
HAS_RETH: Final = 1 << 4
HAS_IMMDT: Final = 1 << 5
HAS_IETH: Final = 1 << 6
#: The first READ response of several, which is followed by such in the middle, which the lane takes.
READ_BEGINS: Final = 1 << 7
READ_GOES_ON: Final = 1 << 8


def meaning(value: int) -> int:
    """What an opcode is."""
    opcode, operation = wire.OPCODES.get(value), OPERATION[value]
    if opcode is None:
        return 0
    if operation == "ACK":
        return IS_ACK
    if operation == "READ_RESPONSE" and not ENDS[value]:
        return READ_BEGINS if STARTS[value] else READ_GOES_ON
    if KINDS[value] != REQUEST or operation not in ("SEND", "WRITE"):
        return 0
    headers = opcode.headers
    return (
        (IS_SEND if operation == "SEND" else IS_WRITE)
        + BEGINS_MESSAGE * STARTS[value]
        + ENDS_MESSAGE * ENDS[value]
        + HAS_RETH * (wire.RETH in headers)
        + HAS_IMMDT * (wire.IMMDT in headers)
        + HAS_IETH * (wire.IETH in headers)
    )
