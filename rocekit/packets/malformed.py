"""What can be wrong with the format of a packet: the codes in the column ``malformed``."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

#: The codes in words; 0 is a well-formed packet.
MALFORMED: Final = MappingProxyType(
    {
        1: "headers cut",
        2: "shorter than its headers",
        3: "IP length out of bounds",
        4: "UDP length disagrees with the IP length",
        5: "pad count exceeds the payload",
        6: "unknown opcode",
        7: "payload behind an opcode that carries none",
        8: "IPv4 header checksum wrong",
        9: "unknown transport version",
        10: "GRH version is not 6",
    }
)
CUT, SHORT, IP_LENGTH, UDP_LENGTH, PAD, UNKNOWN_OPCODE, PAYLOAD, CHECKSUM, VERSION, GRH_VERSION = MALFORMED
