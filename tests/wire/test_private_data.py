"""Private data in words: each application's from its specification, cut, changed and random bytes."""

from __future__ import annotations

import struct
from random import Random

import pytest
import ulp_bytes as ulp
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from rocekit.wire.applications import BY_NAME, ULPS, Application, in_message, in_private_data, in_words
from rocekit.wire.applications.said import HINT, FirstMessage
from rocekit.wire.build import build_ip_cm, build_mad
from rocekit.wire.mad import parse_mad
from rocekit.wire.memory_messages import NCCL_BYTES, RPING_TEXT

TCP = 0x0106_0000
REJECTED = 28


def words(message: str, data: bytes, port: int | None) -> str | None:
    said = in_private_data(message, data, port)
    return None if said is None else in_words(said, port)


@pytest.mark.parametrize(
    ("message", "data", "port", "expected"),
    [
        (
            *("REQ", ulp.nvme_request(3, controller=7), 4420),
            "NVMe-oF: queue 3, host receive queue 128, host send queue 127, controller 7",
        ),
        (
            "REQ",
            ulp.nvme_request(0, 32, 31),
            4420,
            "NVMe-oF: admin queue, host receive queue 32, host send queue 31",
        ),
        ("REQ", ulp.nvme_request(3), 5555, None),
        ("REP", struct.pack("<HH28s", 0, 128, b""), 4420, "NVMe-oF: controller receive queue 128"),
        ("REP", struct.pack("<HH28s", 0, 128, b""), None, None),
        ("REJ", struct.pack("<HH", 0, 6), 4420, "NVMe-oF: “no resources”"),
        ("REJ", struct.pack("<HH", 0, 9), 4420, "NVMe-oF: “invalid controller ID”"),
        ("REJ", struct.pack("<HH", 0, 10), 4420, None),
        ("REQ", b"\xc0\0\0\0", 3260, "iSER: no zero-based addresses and no SEND with invalidate"),
        ("REQ", b"\x40\0\0\0", 3260, "iSER: no SEND with invalidate"),
        ("REQ", b"\x20\0\0\0", 3260, None),
        (
            *("REQ", ulp.RPC_PRIVATE, 20049),
            "NFS/RDMA: inline up to 4,096 bytes sent, 4,096 received, remote invalidation",
        ),
        (
            *("REP", ulp.RPC_PRIVATE, None),
            "RPC-over-RDMA: inline up to 4,096 bytes sent, 4,096 received, remote invalidation",
        ),
        (
            *("REQ", ulp.lnet(0xC0), 988),
            "LNet: connection request 10.0.0.1@o2ib → 10.0.0.2@o2ib1, queue depth 8, 256 fragments, "
            "messages up to 4,096 bytes",
        ),
        ("REJ", struct.pack("<IHBB", 0x0BE91B91, 0x12, 5, 0), None, "LNet: “stale peer”"),
        ("REJ", struct.pack(">IHBB", 0x0BE91B91, 0x12, 1, 0), 988, "LNet: “connection race lost”"),
        (
            *("REQ", ulp.srp_login(), 5555),
            f"probably SRP: login of initiator {bytes(range(1, 17)).hex()}, IUs up to 2116 bytes",
        ),
        (
            *("REQ", ulp.srp_login_ib() + bytes(28), None),
            f"probably SRP: login of initiator {bytes(range(1, 17)).hex()}, IUs up to 2116 bytes",
        ),
        ("REP", ulp.SRP_RESPONSE, None, "probably SRP: login accepted, 63 credits, IUs up to 2116 bytes"),
        ("REJ", ulp.SRP_REJECT, None, "probably SRP: login rejected: “channel limit reached”"),
        ("REQ", ulp.RTRS_REQUEST, None, "RTRS: version 2.0, connection 1 of 5"),
        ("REP", ulp.RTRS_RESPONSE, 1234, "RTRS: version 2.0, queue depth 512, I/O up to 131,072 bytes"),
        ("REQ", ulp.RDS_REQUEST, 18634, "RDS: version 4.1, 16 credits"),
        ("REQ", ulp.RDS6_REQUEST, 16385, "RDS: version 4.1, no flow control"),
        ("REQ", ulp.RDS_REQUEST, 4420, None),
        ("REQ", ulp.rsocket(), 7000, "probably rsockets: 384 credits, buffer of 65,536 bytes"),
        ("REQ", ulp.ucx(), 7000, "probably UCX: worker address of 29 bytes"),
        ("REQ", ulp.ROCEKIT_PLAN, 7000, "rocekit: scenario ping-sr"),
        ("REP", b"rcki" + bytes(16), None, "rocekit: address of the server's memory"),
        ("REQ", b"hello", 4420, None),
        ("RTU", ulp.RPC_PRIVATE, 20049, None),
    ],
)
def test_private_data_in_words(message: str, data: bytes, port: int | None, expected: str | None) -> None:
    whole = data.ljust({"REQ": 92 if len(data) > 56 else 56, "REJ": 148}.get(message, 196), b"\0")
    assert words(message, whole, port) == expected


@given(
    st.sampled_from(["REQ", "REP", "REJ"]),
    st.binary(min_size=1, max_size=196),
    st.sampled_from([None, *range(1, 65536, 97)]),
)
def test_random_private_data_is_of_nobody(message: str, data: bytes, port: int | None) -> None:
    """Numbers from a seed: hypothesis would find the magics in the sources."""
    in_private_data(message, data, port)
    said = in_private_data(message, Random(len(data)).randbytes(len(data)), port)
    assert said is None


@given(
    st.binary(min_size=1, max_size=640), st.sampled_from(["SEND", "WRITE", "READ_RESPONSE"]), st.booleans()
)
def test_random_messages_are_of_nobody(data: bytes, operation: str, only: bool) -> None:
    in_message(FirstMessage(operation, data, len(data), only))
    noise = Random(len(data)).randbytes(len(data))
    assert in_message(FirstMessage(operation, noise, len(noise), only)) is None


SAMPLES = [s for s in (*ulp.CERTAIN, *ulp.PROBABLE) if s.request or s.message]


@given(st.sampled_from(SAMPLES), st.integers(0, 300))
def test_cut_bytes_raise_nothing_and_name_no_other(sample: ulp.Sample, length: int) -> None:
    for said in (
        in_private_data("REQ", sample.request[:length], sample.port),
        in_message(FirstMessage("SEND", sample.message[:length], len(sample.message), True), sample.port),
    ):
        assert said is None or said.application in (sample.name, "RPC-over-RDMA")


@given(st.sampled_from([s for s in SAMPLES if s.request]), st.integers(0, 55), st.integers(1, 255))
def test_a_changed_byte_names_no_other(sample: ulp.Sample, at: int, change: int) -> None:
    data = bytearray(sample.request.ljust(56, b"\0"))
    data[at] ^= change
    said = in_private_data("REQ", bytes(data), sample.port)
    # RDS's addresses, UCX's length and the like may take any value: such data is still theirs.
    assert said is None or said.application in (sample.name, "RPC-over-RDMA") or said.sure == HINT


@given(st.sampled_from([s for s in SAMPLES if s.message]), st.integers(0, 63), st.integers(1, 255))
def test_a_changed_message_names_no_other(sample: ulp.Sample, at: int, change: int) -> None:
    data = bytearray(sample.message)
    data[at % len(data)] ^= change
    said = in_message(FirstMessage("SEND", bytes(data), len(data), True), sample.port)
    rpc = {"RPC-over-RDMA", "NFS/RDMA", "Gluster"}
    assert said is None or said.application == sample.name or {said.application, sample.name} <= rpc


def test_a_subsystem_is_named_by_the_data_of_connect() -> None:
    message = ulp.nvme_connect(0, 31, b"nqn.2026-01.org.example:disk")[:640]
    said = in_message(FirstMessage("SEND", message, 1088, True))
    assert said is not None
    assert said.words == "Connect of admin queue, 32 entries, nqn.2026-01.org.example:disk"
    assert said.details["subsystem"] == "nqn.2026-01.org.example:disk"


def test_a_login_names_initiator_and_target() -> None:
    login = ulp.iser_login()
    said = in_message(FirstMessage("SEND", login, len(login), True))
    assert said is not None
    assert dict(said.details) == {
        "initiator": "iqn.2016-04.com.open-iscsi:1",
        "target": "iqn.2026-01.org.t:disk",
    }


def test_ports_belong_to_one_application_each() -> None:
    ports = [port for u in ULPS for port in u.ports]
    assert len(set(ports)) == len(ports)
    assert len(BY_NAME) == len(ULPS)


def test_an_application_in_words() -> None:
    assert str(Application("NVMe-oF", True, "its first messages", short="queue 3")) == "NVMe-oF, queue 3"
    assert str(Application("iSER", False, "port 3260")) == "probably iSER (port 3260)"


# --------------------------------------------------------------------------- inside CM messages


def request(data: bytes, port: int, **fields: int) -> bytes:
    private = build_ip_cm("10.9.0.1", "10.9.0.2", 40000, data)
    return build_mad("REQ", 1, local_comm_id=1, service_id=TCP | port, private_data=private, **fields)


def test_a_request_says_its_private_data_in_words() -> None:
    parsed = parse_mad(request(ulp.nvme_request(3), 4420))
    assert parsed is not None
    assert parsed.cm is not None
    told = "NVMe-oF: queue 3, host receive queue 128, host send queue 127"
    assert parsed.summary().endswith(f"private data of {told}")
    assert parsed.cm.to_dict()["private_data_text"] == told
    assert parsed.cm.to_dict()["private_data"] == "0000030080007f"


def test_a_reply_is_read_by_its_request_s_port() -> None:
    reply = parse_mad(build_mad("REP", 1, private_data=struct.pack("<HH", 0, 128)))
    assert reply is not None
    assert "private_data_text" not in reply.cm.to_dict()  # type: ignore[union-attr]
    assert "private data 00008" in reply.summary()
    assert reply.summary(4420).endswith("private data of NVMe-oF: controller receive queue 128")


def test_cut_private_data_says_only_what_has_a_magic() -> None:
    cut = parse_mad(request(ulp.nvme_request(3), 4420)[:-24])
    assert cut is not None
    assert cut.cm is not None
    assert cut.cm.truncated
    assert cut.cm.private_words() is None
    cut = parse_mad(request(ulp.lnet(0xC0), 988)[:-8])
    assert cut is not None
    assert cut.cm is not None
    assert str(cut.cm.private_words()).startswith("LNet: connection request")


def test_of_a_request_cut_inside_its_addresses_the_port_is_known_and_no_private_data() -> None:
    """tcpdump -s 256 cuts 6 bytes before the end of the addresses."""
    whole = request(ulp.nvme_request(3), 4420)
    frame = whole[: 256 - 14 - 20 - 8 - 12 - 8]
    cut = parse_mad(frame)
    assert cut is not None
    assert cut.cm is not None
    assert cut.cm.ip_cm is None
    assert cut.cm.private_data == cut.cm.fields.get("private_data", b"") == b""
    assert "CM REQ to port 4420 " in cut.summary()
    assert "private data" not in cut.summary()
    read = parse_mad(whole)
    assert read is not None
    assert read.cm is not None
    assert read.cm.private_data.startswith(ulp.nvme_request(3))
    other = parse_mad(build_mad("REQ", 1, service_id=0x1234_5678, private_data=b"own"))
    assert other is not None
    assert "CM REQ service ID 0x12345678 " in other.summary()
    assert other.summary().endswith("private data 6f776e")


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("REQ", {"vendor_id": 0x15B3}),
        ("REP", {"vendor_id_high": 0, "vendor_id_mid": 0x15, "vendor_id_low": 0xB3}),
    ],
)
def test_ece_is_vendor_and_options(message: str, fields: dict[str, int]) -> None:
    """The vendor ID is in the message, the options are the MAD's attribute modifier."""
    parsed = parse_mad(build_mad(message, 1, attribute_modifier=0x30000002, **fields))
    assert parsed is not None
    assert parsed.cm is not None
    assert parsed.cm.ece == (0x15B3, 0x30000002)
    assert parsed.cm.to_dict()["ece"] == {"vendor_id": 0x15B3, "options": 0x30000002}
    assert "ECE vendor 0x15b3 (NVIDIA, Mellanox) options 0x30000002" in parsed.summary()


@pytest.mark.parametrize("message", ["REQ", "REP", "REJ", "SIDR_REP"])
def test_without_a_vendor_there_is_no_ece(message: str) -> None:
    parsed = parse_mad(build_mad(message, 1, attribute_modifier=5))
    assert parsed is not None
    assert parsed.cm is not None
    assert parsed.cm.ece is None
    assert "ECE" not in parsed.summary()


def test_every_application_has_its_row_in_the_docs() -> None:
    """Its name and its ports, and no other row."""
    page = (ROOT / "docs" / "guide" / "applications.md").read_text()
    rows = {
        cells[1].strip(): cells[2].strip() for line in page.splitlines() if len(cells := line.split("|")) == 7
    }
    listed = {u.name: ", ".join(map(str, u.ports)) for u in ULPS}
    for name, ports in listed.items():
        assert sorted(rows[name].split(", ")) == sorted(ports.split(", ")), name
    assert rows.keys() - listed.keys() == {"application", "---", "libibverbs' examples"}


@given(
    st.one_of(
        st.binary(max_size=200),
        st.binary(min_size=NCCL_BYTES, max_size=NCCL_BYTES),
        st.builds(lambda n, rest: RPING_TEXT + b"%d: " % n + rest, st.integers(0, 9), st.binary(max_size=60)),
    ),
    st.sampled_from(["WRITE", "READ_RESPONSE"]),
)
def test_what_is_left_unread_of_messages_into_memory_says_nothing(data: bytes, operation: str) -> None:
    """First messages are read by length and first byte: nothing that a parser knows is left out by that."""
    said = in_message(FirstMessage(operation, data, len(data), True))
    assert said is None or len(data) == NCCL_BYTES or data[0] == RPING_TEXT[0]
    assert said is not None or not data.startswith(RPING_TEXT)
