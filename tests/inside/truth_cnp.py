"""A notification point for the truth bench: answers marked packets with CNPs, which rxe does not send.

``truth_cnp.py INTERFACE PACE_US``: of each packet that arrives marked "congestion experienced", a CNP goes
back to the QP that its ACKs go to, one in so many microseconds for each QP. It uses nothing of rocekit.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
import zlib

_ETHERTYPE, _PORT, _CNP, _ACK = 0x0800, 4791, 0x81, 0x11
_OUTGOING = 4
#: DSCP 48, as notification points send.
_TOS = 48 << 2


def _checksum(header: bytes) -> int:
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def cnp(frame: bytes, qpn: int, identification: int) -> bytes:
    """The CNP (IBA Annex A17, 17.9.3) that answers a marked frame: to its sender's QP."""
    bth = struct.pack(">BBHII", _CNP, 0x40, 0xFFFF, qpn, 0)
    payload = bth + bytes(16)
    udp = struct.pack(">HHHH", _PORT + 57344 - 4791, _PORT, 8 + len(payload) + 4, 0)
    addresses = frame[30:34] + frame[26:30]

    def ip(tos: int, ttl: int, checksum: int) -> bytes:
        length = 20 + len(udp) + len(payload) + 4
        return struct.pack(">BBHHHBBH", 0x45, tos, length, identification, 0, ttl, 17, checksum) + addresses

    covered = bytes(b"\xff" * 8) + ip(0xFF, 0xFF, 0xFFFF) + udp[:6] + b"\xff\xff"
    covered += bth[:4] + b"\xff" + bth[5:] + bytes(16)
    icrc = struct.pack("<I", zlib.crc32(covered))
    header = ip(_TOS, 64, _checksum(ip(_TOS, 64, 0)))
    return frame[6:12] + frame[:6] + b"\x08\x00" + header + udp + payload + icrc


def main(interface: str, pace_us: float) -> None:
    """Answer marks until it is killed."""
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.bind((interface, 0))
    asked: dict[int, int] = {}  # PSN to the QP that its packet is for
    answers: dict[int, int] = {}  # that QP to the QP of its sender
    last: dict[int, float] = {}
    sent = 0
    while True:
        frame, (_, _, kind, *_) = wire.recvfrom(9000)
        if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[36:38] != _PORT.to_bytes(2):
            continue
        opcode, qpn = frame[42], int.from_bytes(frame[47:50])
        psn = int.from_bytes(frame[51:54])
        if qpn == 1:
            continue
        if kind == _OUTGOING:
            if opcode != _CNP and psn in asked:
                answers[asked[psn]] = qpn
            continue
        asked[psn] = qpn
        now = time.monotonic()
        if frame[15] & 3 != 3 or qpn not in answers or now - last.get(qpn, 0.0) < pace_us / 1e6:
            continue
        last[qpn] = now
        sent += 1
        wire.send(cnp(frame, answers[qpn], sent))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
