"""The tables of `wire` and `wire.cm` beside what others wrote down: the IBA, tshark, Scapy."""

from __future__ import annotations

import subprocess
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocekit import wire
from rocekit.soft.engine.work import VERBS
from rocekit.wire import cm as wire_cm

ALL_HEADERS = [*wire.HEADERS.values(), *wire_cm.CM_MESSAGES.values(), wire_cm.MAD, wire_cm.IP_CM]

# Lengths as the IBA's chapter 9 draws them, in four-byte rows.
LENGTHS = {
    "BTH": 12,
    "GRH": 40,
    "RDETH": 4,
    "DETH": 8,
    "XRCETH": 4,
    "RETH": 16,
    "AtomicETH": 28,
    "AETH": 4,
    "AtomicAckETH": 8,
    "ImmDt": 4,
    "IETH": 4,
    "FETH": 4,
}

# (byte, bit, width) of fields that a slip in the layout would move; the kernel's tables say the same.
CM_PLACES = {
    "REQ": {
        "service_id": (8, 0, 64),
        "local_qpn": (32, 0, 24),
        "responder_resources": (35, 0, 8),
        "initiator_depth": (39, 0, 8),
        "transport_service_type": (43, 5, 2),
        "end_to_end_flow_control": (43, 7, 1),
        "starting_psn": (44, 0, 24),
        "retry_count": (47, 5, 3),
        "partition_key": (48, 0, 16),
        "path_mtu_code": (50, 0, 4),
        "rnr_retry_count": (50, 5, 3),
        "max_cm_retries": (51, 0, 4),
        "srq": (51, 4, 1),
        "primary_local_port_gid": (56, 0, 128),
        "primary_packet_rate": (91, 2, 6),
        "primary_sl": (94, 0, 4),
        "primary_subnet_local": (94, 4, 1),
        "primary_local_ack_timeout": (95, 0, 5),
        "alternate_local_port_lid": (96, 0, 16),
        "alternate_local_ack_timeout": (139, 0, 5),
        "sap_supported": (139, 5, 1),
        "private_data": (140, 0, 736),
    },
    "MRA": {"message_mraed": (8, 0, 2), "service_timeout": (9, 0, 5), "private_data": (10, 0, 1776)},
    "REJ": {
        "message_rejected": (8, 0, 2),
        "rejected_info_length": (9, 0, 7),
        "reason": (10, 0, 16),
        "additional_info": (12, 0, 576),
        "private_data": (84, 0, 1184),
    },
    "REP": {
        "local_qpn": (12, 0, 24),
        "starting_psn": (20, 0, 24),
        "responder_resources": (24, 0, 8),
        "target_ack_delay": (26, 0, 5),
        "failover_accepted": (26, 5, 2),
        "rnr_retry_count": (27, 0, 3),
        "srq": (27, 3, 1),
        "local_ca_guid": (28, 0, 64),
        "private_data": (36, 0, 1568),
    },
    "RTU": {"private_data": (8, 0, 1792)},
    "DREQ": {"remote_qpn": (8, 0, 24), "private_data": (12, 0, 1760)},
    "DREP": {"private_data": (8, 0, 1792)},
    "SIDR_REQ": {"partition_key": (4, 0, 16), "service_id": (8, 0, 64), "private_data": (16, 0, 1728)},
    "SIDR_REP": {
        "sidr_status": (4, 0, 8),
        "local_qpn": (8, 0, 24),
        "service_id": (12, 0, 64),
        "qkey": (20, 0, 32),
        "private_data": (96, 0, 1088),
    },
    "LAP": {
        "remote_qpn": (12, 0, 24),
        "alternate_local_port_gid": (24, 0, 128),
        "alternate_traffic_class": (59, 0, 8),
        "alternate_packet_rate": (61, 2, 6),
        "alternate_local_ack_timeout": (63, 0, 5),
        "private_data": (64, 0, 1344),
    },
    "APR": {"ap_status": (9, 0, 8), "additional_info": (12, 0, 576), "private_data": (84, 0, 1184)},
}


@pytest.mark.parametrize("header", ALL_HEADERS, ids=lambda h: h.name)
def test_a_header_is_whole_bytes_without_a_gap(header: wire.Header) -> None:
    assert sum(f.bits for f in header.fields) == header.length * 8
    at = 0
    for f in header.fields:
        assert f.offset == at
        at += f.bits
    assert len({f.name for f in header.fields}) == len(header.fields)


def test_headers_have_the_lengths_of_the_specification() -> None:
    assert {name: h.length for name, h in wire.HEADERS.items()} == LENGTHS


def test_a_mad_is_256_bytes_whatever_message_it_carries() -> None:
    assert {wire_cm.MAD.length + h.length for h in wire_cm.CM_MESSAGES.values()} == {wire_cm.MAD_BYTES}


def test_the_ip_cm_header_takes_36_bytes_of_private_data() -> None:
    assert wire_cm.IP_CM.length == 36


@pytest.mark.parametrize("name", wire_cm.CM_MESSAGES)
def test_cm_fields_stand_where_chapter_12_puts_them(name: str) -> None:
    fields = wire_cm.CM_MESSAGES[name].by_name
    found = {f: (fields[f].offset // 8, fields[f].offset % 8, fields[f].bits) for f in CM_PLACES[name]}
    assert found == CM_PLACES[name]


@pytest.mark.parametrize("header", ALL_HEADERS, ids=lambda h: h.name)
@given(data=st.data())
def test_what_is_packed_is_unpacked(header: wire.Header, data: st.DataObject) -> None:
    values: dict[str, Any] = {}
    for f in header.fields:
        if not f.reserved:
            size = f.bits // 8
            values[f.name] = data.draw(
                st.binary(min_size=size, max_size=size) if f.is_bytes else st.integers(0, 2**f.bits - 1)
            )
    packed = header.pack(**values)
    assert len(packed) == header.length
    assert header.unpack(packed) == values


def test_a_value_too_large_for_its_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r"BTH\.psn takes 24 bits"):
        wire.BTH.pack(psn=1 << 24)
    with pytest.raises(ValueError, match="RETH has no field psn"):
        wire.RETH.pack(psn=1)
    with pytest.raises(ValueError, match="AETH takes 4 bytes, got 3"):
        wire.AETH.unpack(b"abc")


# --- opcodes


def test_the_top_three_bits_of_an_opcode_name_its_transport() -> None:
    for value, opcode in wire.OPCODES.items():
        assert opcode.value == value
        assert wire.TRANSPORTS[value >> 5] == opcode.transport
        assert opcode.name == "CNP" or opcode.name.startswith(f"{opcode.transport}_")
    assert len(wire.OPCODE_NAMES) == len(wire.OPCODES)


def test_the_low_five_bits_mean_the_same_on_every_transport() -> None:
    by_low: dict[int, set[tuple[str, str]]] = {}
    for value, opcode in wire.OPCODES.items():
        if opcode.transport != "CNP":
            by_low.setdefault(value & 0x1F, set()).add((opcode.operation, opcode.position))
    assert all(len(meanings) == 1 for meanings in by_low.values())


def test_only_answers_carry_an_aeth_and_a_middle_read_response_does_not() -> None:
    for opcode in wire.OPCODES.values():
        carries = wire.AETH in opcode.headers
        assert carries == (
            opcode.response and opcode.transport != "CNP" and opcode.position != wire.MIDDLE
        ), opcode


def test_a_reth_opens_every_write_and_stands_in_no_later_packet() -> None:
    for opcode in wire.OPCODES.values():
        if opcode.operation == "WRITE":
            assert (wire.RETH in opcode.headers) == opcode.starts


def test_datagrams_name_their_source_queue_in_a_deth() -> None:
    for opcode in wire.OPCODES.values():
        datagram = opcode.transport == "UD" or (opcode.transport == "RD" and not opcode.response)
        assert (wire.DETH in opcode.headers) == datagram
        assert (wire.RDETH in opcode.headers) == (opcode.transport == "RD")
        assert (wire.XRCETH in opcode.headers) == (opcode.transport == "XRC" and not opcode.response)


def test_immediate_and_invalidate_end_a_message() -> None:
    for opcode in wire.OPCODES.values():
        if wire.IMMDT in opcode.headers or wire.IETH in opcode.headers:
            assert opcode.ends


def test_flush_and_atomic_write_are_where_annex_a19_puts_them() -> None:
    assert wire.OPCODES[0x1C].name == "RC_FLUSH"
    assert wire.OPCODES[0x1C].headers == (wire.FETH, wire.RETH)
    assert wire.OPCODES[0x1D].name == "RC_ATOMIC_WRITE"
    assert wire.OPCODES[0x1D].headers == (wire.RETH,)


def test_what_needs_a_response_of_its_own() -> None:
    """A SEND or WRITE is completed by an ACK of a later PSN (9.7.5.1.2), everything else of RC is not."""
    requests = {o.operation for o in wire.OPCODES.values() if o.transport == "RC" and not o.response}
    assert requests - wire.OWN_RESPONSE.keys() == {"SEND", "WRITE"}
    responses = {o.operation for o in wire.OPCODES.values() if o.transport == "RC" and o.response}
    assert set(wire.OWN_RESPONSE.values()) == responses - {"ACK"}
    assert {name for name, response in wire.OWN_RESPONSE.items() if response == "ATOMIC_ACK"} == wire.ATOMICS


def test_what_takes_read_depth() -> None:
    """READ and the atomics (9.4.4, 9.4.5), and those that annex A19 added with a response of their own."""
    assert sorted(wire.ATOMICS) == ["CMP_SWAP", "FETCH_ADD"]
    assert sorted(wire.READ_DEPTH) == ["ATOMIC_WRITE", "CMP_SWAP", "FETCH_ADD", "FLUSH", "READ"]


def test_the_soft_endpoint_counts_the_same_requests_as_outstanding() -> None:
    assert {verb.operation for verb in VERBS.values() if verb.has_response} == wire.READ_DEPTH


def test_scapy_and_we_call_an_opcode_by_the_same_name() -> None:
    contrib = pytest.importorskip("scapy.contrib.roce")
    theirs = contrib._bth_opcodes
    assert theirs
    for value, name in theirs.items():
        assert wire.OPCODES[value].name == name


# --- tshark's tables


@cache
def _tshark_table(tshark: str) -> str:
    """tshark's names of all fields' values."""
    return subprocess.run(
        [tshark, "-G", "values"], capture_output=True, text=True, timeout=240, check=True
    ).stdout


def _tshark_values(tshark: str, field: str) -> dict[int, str]:
    """tshark's names of a field's values."""
    rows = (line.split("\t") for line in _tshark_table(tshark).splitlines() if f"\t{field}\t" in line)
    return {int(r[2], 0): r[3] for r in rows if r[0] == "V" and r[1] == field}


def _plain(name: str) -> str:
    """An opcode's name reduced to what tshark's and ours have in common."""
    name = name.upper().replace("_", " ").replace("CMPSWAP", "COMPARE SWAP").replace("FETCHADD", "FETCH ADD")
    return " ".join(name.split())


def test_tshark_knows_the_same_opcodes(tshark: str) -> None:
    theirs = _tshark_values(tshark, "infiniband.bth.opcode")
    assert len(theirs) > 60
    for value, text in theirs.items():
        if "Reserved" in text or text == "CNP":  # 0x15 of RC; a CNP is 0x81 (A17.9.3), not tshark's 0x80
            continue
        transport, _, operation = text.partition(") - ")
        assert _plain(wire.OPCODES[value].name) == _plain(f"{transport.rpartition('(')[2]} {operation}")
    # What tshark 4.0 does not know is annex A19's and CNP.
    unknown = {o.operation for v, o in wire.OPCODES.items() if v not in theirs}
    assert unknown <= {"FLUSH", "ATOMIC_WRITE", "CNP"}


def test_tshark_waits_as_long_after_an_rnr_nak(tshark: str) -> None:
    theirs = _tshark_values(tshark, "infiniband.aeth.syndrome.timer")
    assert [round(float(theirs[code].split()[0]) * 1000) for code in range(32)] == list(wire.RNR_TIMER_US)


def test_tshark_knows_the_same_nak_codes(tshark: str) -> None:
    theirs = _tshark_values(tshark, "infiniband.aeth.syndrome.error_code")
    assert {code: text.lower().replace(" ", "_") for code, text in theirs.items()} == dict(wire.NAK_CODES)


# --- codes


def test_rnr_timers_grow_but_for_code_0_which_is_the_longest() -> None:
    assert len(wire.RNR_TIMER_US) == 32
    rest = wire.RNR_TIMER_US[1:]
    assert all(a < b for a, b in pairwise(rest))
    assert wire.RNR_TIMER_US[0] > rest[-1]


def test_credit_codes_grow_from_none_to_32768() -> None:
    assert len(wire.CREDITS) == wire.NO_CREDITS == 31
    assert all(a < b for a, b in pairwise(wire.CREDITS))
    assert (wire.CREDITS[0], wire.CREDITS[-1]) == (0, 32_768)


def test_the_local_ack_timeout_doubles_with_its_code_and_0_waits_for_ever() -> None:
    assert wire.local_ack_timeout_ns(0) is None
    assert wire.local_ack_timeout_ns(1) == 8_192
    assert wire.local_ack_timeout_ns(14) == 67_108_864  # the 67 ms of perftest's default
    assert wire.local_ack_timeout_ns(31) == 4_096 * 2**31  # 2.4 hours


def test_an_rnr_nak_asks_for_the_wait_of_its_timer_code() -> None:
    assert wire.rnr_wait_ns(0x2C) == 640_000
    assert wire.rnr_wait_ns(0x21) == 10_000
    assert wire.rnr_wait_ns(0x20) == 655_360_000


@given(st.integers(0, 3), st.integers(0, 31))
def test_a_syndrome_is_a_kind_and_a_value(kind: int, value: int) -> None:
    syndrome = wire.make_syndrome(kind, value)
    assert syndrome < 0x80, "the top bit is reserved"
    assert (wire.syndrome_kind(syndrome), wire.syndrome_value(syndrome)) == (kind, value)
    assert wire.syndrome_name(syndrome)


def test_syndromes_of_the_specification_in_words() -> None:
    assert wire.syndrome_name(0x1F) == "ACK"
    assert wire.syndrome_name(0x60) == "NAK psn_sequence_error"
    assert wire.syndrome_name(0x2C) == "RNR NAK 0.64 ms"


@pytest.mark.parametrize(
    ("length", "mtu", "psns"),
    [(0, 1024, 1), (1, 1024, 1), (1024, 1024, 1), (1025, 1024, 2), (2**31, 4096, 2**19)],
)
def test_a_message_takes_a_psn_for_every_path_mtu_begun_and_at_least_one(
    length: int, mtu: int, psns: int
) -> None:
    assert wire.psns_of(length, mtu) == psns


def test_path_mtu_codes_double_from_256() -> None:
    assert dict(wire.PATH_MTU_BYTES) == {code: 128 << code for code in range(1, 6)}


def test_the_sixteen_cm_events_and_the_statuses_have_the_numbers_of_the_c_headers() -> None:
    assert len(wire.CM_EVENTS) == 16
    assert [
        wire.CM_EVENTS.index(e) for e in ("CONNECT_REQUEST", "REJECTED", "ESTABLISHED", "TIMEWAIT_EXIT")
    ] == [
        4,
        8,
        9,
        15,
    ]
    assert {wire.WC_STATUSES[n] for n in (0, 5, 10, 12, 13)} == {
        "SUCCESS",
        "WR_FLUSH_ERR",
        "REM_ACCESS_ERR",
        "RETRY_EXC_ERR",
        "RNR_RETRY_EXC_ERR",
    }


def test_the_service_id_of_an_rdma_cm_port() -> None:
    assert wire_cm.ip_service(0x0000_0000_0106_4853) == (6, 18515)  # RDMA_PS_TCP, perftest's port
    assert wire_cm.ip_service(0x0000_0000_0111_0001) == (17, 1)  # RDMA_PS_UDP
    assert wire_cm.ip_service(0x1000_0000_0106_4853) is None


def test_attribute_ids_run_from_req_to_apr() -> None:
    assert [wire_cm.CM_ATTRIBUTES[a].name for a in range(0x10, 0x1B)] == (
        ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"]
    )
