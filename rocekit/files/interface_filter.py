"""The filter that the kernel runs on every frame of a live interface: it passes frames that may be RoCE.

It is a classic BPF program, assembled from a list with labels. It passes UDP to port 4791 over IPv4 (any
header length) and IPv6; later fragments of UDP datagrams over IPv4, which have no port; IPv6 with extension
headers (those with more than one may be anything: the decoder decides); RoCE v1; MAC control (pause) frames.
It skips up to two VLAN tags inside the frame; the kernel keeps one more outside it. Frames are cut to a
snaplen. Management datagrams, whose payload matters, and IPv6 packets with extension headers may have a
larger one. On request it also passes tunnels and labels, whatever is in them: the decoder decides.

Sources: McCanne & Jacobson, "The BSD Packet Filter" (USENIX 1993); Linux Documentation/networking/filter.rst.
"""

from __future__ import annotations

from struct import Struct

from rocekit.errors import CaptureError
from rocekit.wire import BTH, GRH, MAD_QPNS, QPN_BITS, ROCE_UDP_PORT, ROCE_V1_ETHERTYPE
from rocekit.wire.encapsulations import TUNNEL_ETHERTYPES, TUNNEL_PORTS, TUNNEL_PROTOCOLS
from rocekit.wire.network import (
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_MAC_CONTROL,
    IPV6_BYTES,
    UDP_BYTES,
    UDP_PROTOCOL,
    VLAN_ETHERTYPES,
)

# Opcodes: class, size and mode in one number.
LD_H_ABS, LD_B_IND, LD_H_IND = 0x28, 0x50, 0x48
LD_W_IND, LD_LENGTH = 0x40, 0x80
LDX_IMM, JEQ, JSET, JGE, JGE_X, RET = 0x01, 0x15, 0x45, 0x35, 0x3D, 0x06
AND, LSH, ADD, ADD_X, SUB_X, TAX, TXA = 0x54, 0x64, 0x04, 0x0C, 0x1C, 0x07, 0x87

_JUMP = 0x05  # BPF_JMP | BPF_JA
#: The most that the kernel takes (BPF_MAXINSNS).
_MOST_INSTRUCTIONS = 4096
_INSTRUCTION = Struct("=HBBI")

_ETHERTYPE = 12  # where the first EtherType of a frame stands
_VLAN_TAG = 4
# Hop-by-hop, routing, fragment, AH, destination options, mobility, HIP, shim6 (IANA).
_IPV6_EXTENSIONS = (0, 43, 44, 51, 60, 135, 139, 140)

# The BTH's word with the destination QPN, its low 24 bits (9.2), counted from a UDP header before the BTH.
_QPN_AT = UDP_BYTES + (BTH.by_name["dest_qpn"].offset - 8) // 8
_QPN_MASK = ((1 << QPN_BITS) - 1) & ~max(MAD_QPNS)  # with QP0 and QP1 alone these bits are all zero

#: Bytes of a frame with a tunnel in which a management datagram, of 256 bytes and headers, is whole.
IN_TUNNEL = 512

Instruction = tuple[int, int, int, int]
"""Opcode, jump if true, jump if false (instructions to skip), constant."""

_Line = str | tuple[int, int] | tuple[int, int, str | None, str | None]


def roce_filter(
    snaplen: int, *, ethernet: bool = True, management: int | None = None, tunnels: bool = False
) -> list[Instruction]:
    """The filter that passes frames that may be RoCE, cut to ``snaplen`` bytes.

    Args:
        snaplen: bytes to keep of each frame.
        ethernet: frames begin with an Ethernet header; else with the IP header (a tunnel interface).
        management: bytes to keep of packets that go, or may go, to QP0 or QP1; None: ``snaplen``. In a tunnel
            at most ``IN_TUNNEL``.
        tunnels: also pass what may have RoCE inside: tunnels, labels, a third tag.
    """
    ports, protocols = (TUNNEL_PORTS, TUNNEL_PROTOCOLS) if tunnels else ((), ())
    lines: list[_Line] = []
    if ethernet:
        for depth in range(3):
            at = _ETHERTYPE + depth * _VLAN_TAG
            tagged = f"tag {depth + 1}" if depth < 2 else "no"
            lines += [
                f"tag {depth}",
                (LD_H_ABS, at),
                *(
                    (JEQ, tpid, "tunnel" if tunnels and depth == 2 else tagged, None)
                    for tpid in VLAN_ETHERTYPES
                ),
            ]
            lines += [(JEQ, kind, "tunnel", None) for kind in (TUNNEL_ETHERTYPES if tunnels else ())]
            lines += [(LDX_IMM, at + 2), *_by_ethertype()]
    else:
        lines += [(LDX_IMM, 0), (LD_B_IND, 0), (AND, 0xF0), (JEQ, 0x40, "v4", None), (JEQ, 0x60, "v6", "no")]
    lines += ["v4", (LD_B_IND, 9), *_to_tunnels(protocols), (JEQ, UDP_PROTOCOL, None, "no")]
    lines += [(LD_H_IND, 6), (JSET, 0x1FFF, "cut", None)]  # not the first fragment
    # The UDP header starts after four times the low half of the first byte.
    lines += [(LD_B_IND, 0), (AND, 0x0F), (LSH, 2), (ADD_X, 0), (TAX, 0)]
    lines += [(LD_H_IND, 2), *_to_tunnels(ports), (JEQ, ROCE_UDP_PORT, "roce", "no")]
    lines += ["v6", (LD_B_IND, 6), *((JEQ, header, "extended", None) for header in _IPV6_EXTENSIONS)]
    lines += [*_to_tunnels(protocols), (JEQ, UDP_PROTOCOL, None, "no")]
    lines += [(LD_H_IND, 42), *_to_tunnels(ports), (JEQ, ROCE_UDP_PORT, None, "no")]
    lines += [(TXA, 0), (ADD, IPV6_BYTES), (TAX, 0), (JEQ, 0, "roce", "roce")]
    lines += ["v1", (TXA, 0), (ADD, GRH.length - UDP_BYTES), (TAX, 0)]
    # From here on the index is the UDP header's; in RoCE v1, which has none, eight bytes before the BTH.
    lines += ["roce"]
    if management is not None:
        # A load behind the frame's end would reject it: check first that there is a BTH.
        lines += [(LD_LENGTH, 0), (JGE_X, 0, None, "cut"), (SUB_X, 0), (JGE, _QPN_AT + 4, None, "cut")]
        lines += [(LD_W_IND, _QPN_AT), (AND, _QPN_MASK), (JEQ, 0, "whole", "cut")]
    lines += ["cut", (RET, snaplen)]
    # The first byte of an extension header says what follows it: UDP, or one more.
    lines += ["extended", (LD_B_IND, 40), *((JEQ, header, "whole", None) for header in _IPV6_EXTENSIONS)]
    lines += [*_to_tunnels(protocols), (JEQ, UDP_PROTOCOL, "whole", "no")]
    lines += ["tunnel", (RET, max(snaplen, 0 if management is None else min(management, IN_TUNNEL)))]
    lines += ["whole", (RET, snaplen if management is None else management), "no", (RET, 0)]
    return _assemble(lines)


def every_frame(snaplen: int) -> list[Instruction]:
    """The filter that passes every frame, cut to ``snaplen`` bytes."""
    return [(RET, 0, 0, snaplen)]


def both(first: list[Instruction], second: list[Instruction]) -> list[Instruction]:
    """A program that returns what ``second`` does for frames that ``first`` passes, and 0 for others.

    Raises:
        CaptureError: it is longer than the kernel takes.
    """
    joined: list[Instruction] = []
    for place, (code, jt, jf, k) in enumerate(first):
        if code == RET and k:
            joined.append((_JUMP, 0, 0, len(first) - place - 1))
        else:
            joined.append((code, jt, jf, k))
    joined += second
    if len(joined) > _MOST_INSTRUCTIONS:
        most = f"at most {_MOST_INSTRUCTIONS:,} instructions"
        raise CaptureError(f"the capture filter is too long: {len(joined):,} of {most}")
    return joined


def pack(program: list[Instruction]) -> bytes:
    """The program as the kernel's ``struct sock_filter`` array."""
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)


def _to_tunnels(numbers: tuple[int, ...]) -> list[_Line]:
    return [(JEQ, number, "tunnel", None) for number in numbers]


def _by_ethertype() -> list[_Line]:
    return [
        (JEQ, ROCE_V1_ETHERTYPE, "v1", None),
        (JEQ, ETHERTYPE_MAC_CONTROL, "cut", None),
        (JEQ, ETHERTYPE_IPV4, "v4", None),
        (JEQ, ETHERTYPE_IPV6, "v6", "no"),
    ]


def _assemble(lines: list[_Line]) -> list[Instruction]:
    """Replace labels, which are lines of their own, by distances; jumps go forward only."""
    labels: dict[str, int] = {}
    count = 0
    for line in lines:
        if isinstance(line, str):
            labels[line] = count
        else:
            count += 1
    program: list[Instruction] = []
    for line in lines:
        if isinstance(line, str):
            continue
        opcode, constant = line[0], line[1]
        targets = line[2:] if len(line) == 4 else (None, None)
        here = len(program) + 1
        true, false = (0 if target is None else labels[target] - here for target in targets)
        program.append((opcode, true, false, constant))
    return program
