"""Opcodes that the specification leaves to vendors are no fault; those that it reserves are, and say so."""

from __future__ import annotations

from typing import Any

import pytest
from alike import analyzed, foreign
from talk import Talk

from rocekit import wire


@pytest.mark.parametrize("opcode", [0xC0, 0xC5, 0xFF, 0x80, 0x9F])
def test_a_vendor_opcode_with_a_right_icrc_is_info(opcode: int) -> None:
    analysis = analyzed(foreign(opcode))
    (found,) = analysis.findings
    assert (found.rule, found.severity) == ("vendor-opcode", "info")
    assert found.title == f"5 packets with a vendor opcode ({opcode:#04x}) and right ICRCs"
    assert found.frames == (3, 4, 5, 6, 7)
    assert analysis.capture.counts.malformed_packets == 0
    assert (len(analysis.connections), len(analysis.transfers)) == (1, 1)
    assert "malformed" not in str(analysis)


def test_with_a_wrong_icrc_it_stays_corruption() -> None:
    analysis = analyzed(foreign(0xC5, icrc=1))
    assert [f.rule for f in analysis.findings] == ["icrc-bad"]
    assert analysis.capture.counts.malformed_packets == 5


@pytest.mark.parametrize("opcode", [0x1E, 0x1F, 0x18, 0x3F])
def test_a_reserved_opcode_stays_malformed(opcode: int) -> None:
    analysis = analyzed(foreign(opcode))
    assert [f.rule for f in analysis.findings] == ["malformed"]
    assert "unknown opcode" in analysis.findings[0].title
    assert analysis.capture.counts.malformed_packets == 5


def test_where_icrcs_are_cut_off_it_says_so() -> None:
    talk = foreign(0xC5)
    (found,) = [f for f in talk.findings(snaplen=80) if f.rule == "vendor-opcode"]
    assert found.title == "5 packets with a vendor opcode (0xc5) and ICRCs that could not all be checked"
    assert found.evidence["icrcs_right"] is False


def test_vendor_opcodes_are_none_that_is_defined() -> None:
    assert not any(wire.VENDOR[value] for value in wire.OPCODES)
    assert sum(wire.VENDOR) == 64 + 31


def test_flush_and_atomic_write_are_where_the_kernel_has_them() -> None:
    """IB_OPCODE_FLUSH and IB_OPCODE_ATOMIC_WRITE of ib_pack.h; the headers in the order of rdma_rxe."""
    flush, write = wire.OPCODES[0x1C], wire.OPCODES[0x1D]
    assert (flush.name, [h.name for h in flush.headers]) == ("RC_FLUSH", ["FETH", "RETH"])
    assert (write.name, [h.name for h in write.headers]) == ("RC_ATOMIC_WRITE", ["RETH"])
    assert (flush.payload, write.payload) == (False, True)
    assert wire.OPCODES[0xBC].name == "XRC_FLUSH"


def test_flush_and_atomic_write_are_answered_by_an_empty_read_response() -> None:
    talk = Talk()
    talk.write(1)
    talk.ack(1)
    memory: dict[str, Any] = {"rkey": 7, "remote_va": 0x1000}
    talk.packet("RC_FLUSH", 2, **memory, dma_length=1024, placement_type=3, selectivity=0)
    answer: dict[str, Any] = {"syndrome": wire.make_syndrome(wire.ACK)}
    talk.packet("RC_RDMA_READ_RESPONSE_ONLY", 2, by="b", **answer, msn=2)
    talk.packet("RC_ATOMIC_WRITE", 3, bytes(8), **memory, dma_length=8)
    talk.packet("RC_RDMA_READ_RESPONSE_ONLY", 3, by="b", **answer, msn=3)
    analysis = analyzed(talk)
    assert [(t.operation, t.status) for t in analysis.transfers] == [
        ("WRITE", "acked"),
        ("FLUSH", "acked"),
        ("ATOMIC_WRITE", "acked"),
    ]
    assert not analysis.findings
