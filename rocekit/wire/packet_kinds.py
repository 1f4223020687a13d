"""Kinds of packets, by their opcodes: request, response, datagram, CNP."""

from __future__ import annotations

from typing import Final

from rocekit import wire

IGNORED, REQUEST, RESPONSE, DATAGRAM, CNP = range(5)  # RD and unknown opcodes are ignored


def _kind(value: int) -> int:
    opcode = wire.OPCODES.get(value)
    if opcode is None or opcode.transport == "RD":
        return IGNORED
    if opcode.transport == "CNP":
        return CNP
    if opcode.transport == "UD":
        return DATAGRAM
    return RESPONSE if opcode.response else REQUEST


KINDS: Final = tuple(_kind(v) for v in range(256))
TRANSPORT: Final = tuple(wire.OPCODES[v].transport if v in wire.OPCODES else "" for v in range(256))
