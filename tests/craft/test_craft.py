"""Crafted packets are what was asked for, and in all else what a good sender would send."""

from __future__ import annotations

import io
import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from amount import examples
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT

import rocekit
from rocekit import cli, wire
from rocekit.capture import open_capture
from rocekit.craft import Wrong, craft
from rocekit.craft.keys import FIELDS, NETWORK, PACKET
from rocekit.craft.pace import Pacer, Rate, parse_rate
from rocekit.craft.yaml_file import parse_packets, read_packets
from rocekit.decode import Decoder, Packets, Row
from rocekit.errors import ScenarioError
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.packets.mads import find_mads
from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.memory import Sge
from rocekit.soft.engine.work import RecvWR
from rocekit.wire import cm as wire_cm

EVERY = [*wire.OPCODE_NAMES, *(f"CM_{name}" for name in wire_cm.CM_MESSAGES)]


def packets_of(*packets: Mapping[str, Any], **common: Any) -> Packets:
    """The packets of a description as a capture would show them."""
    file = io.BytesIO()
    with PcapngWriter(file) as writer:
        for made in craft(packets, common):
            writer.write(made.frame, made.at_ns)
    file.seek(0)
    decoder = Decoder()
    with open_capture(file) as reader:
        (decoded,) = [decoder.decode(batch) for batch in reader]
    return decoded


def rows_of(*packets: Mapping[str, Any], **common: Any) -> list[Row]:
    return list(packets_of(*packets, **common).rows())


# ---------------------------------------------------------------------- defaults


@pytest.mark.parametrize("op", EVERY)
@pytest.mark.parametrize("net", [{}, {"dst": "fd00::7"}, {"roce_version": 1}, {"vlan": 7, "priority": 3}])
def test_every_opcode_makes_a_valid_packet_without_another_word(op: str, net: dict[str, Any]) -> None:
    (row,) = rows_of({"op": op, **net})
    assert row["icrc_state"] == "valid"
    assert not row["malformed"]
    assert row["opcode"] == ("UD_SEND_ONLY" if op.startswith("CM_") else op)
    known = wire.OPCODES[wire.OPCODE_NAMES[str(row["opcode"])]]
    for header in known.headers:
        for f in header.fields:
            assert f.reserved or f.name in row, f.name


def test_tshark_reads_what_was_made_as_it_was_meant(tmp_path: Path, tshark: str) -> None:
    path = tmp_path / "every.pcap"
    from rocekit.files.write import frame_file
    from rocekit.verify import verify

    with frame_file(path) as file:
        # tshark 4.0 knows no other transports, and not the memory placement extensions.
        ops = [op for op in EVERY if op.startswith(("RC_", "UC_", "UD_", "CM_"))]
        for made in craft([{"op": op} for op in ops if "FLUSH" not in op and "ATOMIC_WRITE" not in op]):
            file.write(made.frame, made.at_ns)
    compared = verify(path)
    assert compared.packets == len(ops) - 2
    assert compared.agrees, str(compared)


@given(st.data())
def test_a_field_that_is_said_goes_as_it_is(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from([o for o in wire.OPCODES.values() if o.value != wire.CNP_OPCODE]))
    fields = [f for h in (wire.BTH, *op.headers) for f in h.fields if f.name in FIELDS and not f.reserved]
    said = {
        f.name: data.draw(st.integers(0, (1 << f.bits) - 1), label=f.name)
        for f in fields
        # A MAD's destination, a pad that is not there and an unknown version make other packets of it.
        if f.name not in ("padcount", "version", "dest_qpn") and data.draw(st.booleans())
    }
    (row,) = rows_of({"op": op.name, **said})
    assert {name: row[name] for name in said} == said
    assert row["icrc_state"] == "valid"


def test_reserved_bits_of_the_bth_may_be_set() -> None:
    plain, said = (
        next(craft([{"op": "RC_SEND_ONLY", **more}])).frame for more in ({}, {"resv6": 0x3F, "resv7": 0x7F})
    )
    bth = 14 + 20 + 8
    assert (plain[bth + 4], plain[bth + 8]) == (0, 0x80)
    assert (said[bth + 4], said[bth + 8]) == (0x3F, 0xFF)


@given(st.binary(max_size=1500))
def test_the_payload_is_padded_and_told_apart_from_its_pad(payload: bytes) -> None:
    packets = packets_of({"op": "RC_SEND_ONLY", "payload": f"hex:{payload.hex()}"})
    assert packets.payload(0) == payload
    assert packets.padcount[0] == -len(payload) % 4


@pytest.mark.parametrize("icrc", ["bad", 0, "0x12345678"])
def test_a_bad_icrc_is_bad(icrc: str | int) -> None:
    (row,) = rows_of({"op": "RC_SEND_ONLY", "icrc": icrc})
    assert row["icrc_state"] == "invalid"


# ---------------------------------------------------------------------- PSNs


def psns(*packets: Mapping[str, Any], **common: Any) -> list[int]:
    return packets_of(*packets, **common).psn.tolist()


def test_requests_of_a_flow_take_one_psn_after_the_other() -> None:
    send = {"op": "RC_SEND_ONLY"}
    assert psns(send, send, {**send, "dest_qpn": 99}, send, psn=0xFFFFFF) == [0xFFFFFF, 0, 0xFFFFFF, 1]


def test_a_read_request_takes_the_psns_of_its_responses() -> None:
    read = {"op": "RC_RDMA_READ_REQUEST", "dma_length": 4000}
    assert psns(read, read, {"op": "RC_SEND_ONLY"}, psn=5) == [5, 9, 13]
    assert psns({**read, "count": 3, "psn": 5}) == [5, 9, 13]


def test_an_answer_takes_the_psn_of_the_last_request_from_there() -> None:
    back = {"src": "10.9.0.2", "dst": "10.9.0.1", "dest_qpn": 0x22}
    found = psns(
        {"op": "RC_SEND_FIRST"},
        {"op": "RC_SEND_LAST"},
        {"op": "RC_ACKNOWLEDGE", **back},
        {"op": "RC_RDMA_READ_REQUEST", "dma_length": 3000},
        {"op": "RC_RDMA_READ_RESPONSE_FIRST", **back},
        {"op": "RC_RDMA_READ_RESPONSE_MIDDLE", **back},
        {"op": "RC_RDMA_READ_RESPONSE_LAST", **back},
        {"op": "RC_SEND_ONLY", **back},
        psn=40,
    )
    assert found == [40, 41, 41, 42, 42, 43, 44, 40]


@given(st.integers(0, 0xFFFFFF), st.integers(0, 5), st.integers(1, 40))
def test_a_psn_is_stepped_and_wraps(first: int, step: int, count: int) -> None:
    found = psns({"op": "RC_SEND_ONLY", "psn": first, "count": count, "step": {"psn": step}, "payload": 0})
    assert found == [(first + i * step) & 0xFFFFFF for i in range(count)]


def test_any_field_may_be_stepped() -> None:
    write = {"op": "RC_RDMA_WRITE_ONLY", "remote_va": 0x1000, "count": 3, "step": {"remote_va": 64}}
    assert packets_of(write).remote_va.tolist() == [0x1000, 0x1040, 0x1080]


def test_a_conversation_is_one_to_the_analysis(tmp_path: Path) -> None:
    path = tmp_path / "talk.pcapng"
    back = "src: 10.9.0.2, dst: 10.9.0.1, dest_qpn: 0x12"
    text = f"""
    dest_qpn: 0x11
    psn: 100
    packets:
      - {{op: CM_REQ, local_qpn: 0x12, starting_psn: 500}}
      - {{op: CM_REP, local_qpn: 0x11, starting_psn: 100, local_comm_id: 2, remote_comm_id: 1, {back[:30]}}}
      - op: RC_RDMA_WRITE_FIRST
      - {{op: RC_RDMA_WRITE_MIDDLE, count: 3}}
      - {{op: RC_RDMA_WRITE_LAST, payload: 100}}
      - {{op: RC_ACKNOWLEDGE, {back}}}
      - op: RC_RDMA_READ_REQUEST
      - {{op: RC_RDMA_READ_RESPONSE_ONLY, payload: 1024, {back}}}
      - op: RC_FETCH_ADD
      - {{op: RC_ATOMIC_ACKNOWLEDGE, original: 41, {back}}}
    """
    described = parse_packets(text)
    with PcapngWriter(path) as writer:
        for made in craft(described.packets, described.common):
            writer.write(made.frame, made.at_ns)
    analysis = rocekit.analyze(path)
    assert [f.rule for f in analysis.findings if f.severity != "info"] == []
    assert [(t.operation, t.bytes, t.packets, t.status) for t in analysis.transfers] == [
        ("WRITE", 4 * 1024 + 100, 5, "acked"),
        ("READ", 1024, 1, "acked"),
        ("FETCH_ADD", 8, 1, "acked"),
    ]
    (connection,) = analysis.connections
    assert (connection.paired_by, connection.qpns) == ("cm", [0x12, 0x11])
    assert analysis.transfers[0].length == 4 * 1024 + 100


def test_a_cm_message_has_the_fields_that_were_said() -> None:
    packets = packets_of(
        {"op": "CM_REP", "local_qpn": 0x77, "private_data": "text:hello", "transaction_id": 9}
    )
    ((_, mad),) = find_mads(packets)
    assert mad.cm is not None
    assert mad.cm.fields["local_qpn"] == 0x77
    assert mad.fields["transaction_id"] == 9
    assert bytes(mad.cm.fields["private_data"]).startswith(b"hello")  # type: ignore[arg-type]


def test_a_responder_takes_what_was_crafted_and_drops_what_has_a_bad_icrc() -> None:
    device = SoftDevice("soft", ["10.9.0.2"])
    pd, cq = device.alloc_pd(), device.create_cq(16)
    memory = device.memory.alloc(4096)
    region = device.reg_mr(pd, memory, 4096, ("LOCAL_WRITE", "REMOTE_WRITE"))
    qp = device.create_qp(pd, "RC", cq, max_send_wr=1, max_recv_wr=4)
    device.modify_qp(qp, 0, state="INIT", access=("REMOTE_WRITE",))
    ready = {"dest_ip": "10.9.0.1", "dest_qpn": 0x99, "path_mtu": 1024, "rq_psn": 100}
    device.modify_qp(qp, 0, state="RTR", **ready, max_dest_rd_atomic=1, min_rnr_timer=12)
    for number in range(2):
        device.post_recv(qp, RecvWR(number, (Sge(memory + 64 * number, 64, region.lkey),)), 0)
    described = parse_packets(
        f"""
        dest_qpn: {qp.qpn}
        packets:
          - {{op: RC_SEND_ONLY, payload: "text:wrong", psn: 100, icrc: bad}}
          - {{op: RC_SEND_ONLY, payload: "text:right", psn: 100}}
          - {{op: RC_RDMA_WRITE_FIRST, rkey: {region.rkey}, remote_va: {memory + 1024}}}
          - {{op: RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, payload: 5, immediate: 77}}
        """
    )
    for made in craft(described.packets, described.common):
        device.receive(made.frame[14:], made.at_ns)
    done = [(wc.wr_id, wc.status, wc.opcode, wc.byte_len) for wc in cq.poll(16)]
    assert done == [(0, "SUCCESS", "RECV", 5), (1, "SUCCESS", "RECV_RDMA_WITH_IMM", 1029)]
    assert bytes(region.view[:5]) == b"right"
    assert bytes(region.view[1024 : 1024 + 1029]) == bytes(range(256)) * 4 + bytes(range(5))
    assert device.counters["drop_icrc"] == 1


# ---------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        ({}, "a packet has op"),
        ({"op": "RC_SEND_ONYL"}, "no opcode is called RC_SEND_ONYL; do you mean RC_SEND_ONLY"),
        ({"op": "CM_REK"}, "no CM message is called CM_REK; there is CM_REQ"),
        ({"op": 256}, "an opcode is one byte"),
        ({"op": "RC_SEND_ONLY", "rkey": 1}, "RC_SEND_ONLY has no key 'rkey'; it has op, payload"),
        ({"op": "RC_SEND_ONLY", "pyload": 1}, "ackreq, resv7, psn; do you mean payload?"),
        ({"op": "RC_SEND_ONLY", "psn": 1 << 24}, "psn takes values under 0x1000000"),
        ({"op": "RC_SEND_ONLY", "dest_qpn": 1 << 24}, "dest_qpn takes values under 0x1000000"),
        ({"op": "RC_SEND_ONLY", "psn": "five"}, "psn is a whole number from 0 on, not 'five'"),
        ({"op": "RC_SEND_ONLY", "count": 0}, "count is a whole number from 1 on"),
        ({"op": "RC_SEND_ONLY", "src": "10.9.0"}, "src is an IP address"),
        ({"op": "RC_SEND_ONLY", "src": "::1", "dst": "10.0.0.1"}, "not of one IP version"),
        ({"op": "RC_SEND_ONLY", "src_mac": "02:00"}, "src_mac is a MAC address"),
        ({"op": "RC_SEND_ONLY", "dscp": 64}, "dscp takes values under 64"),
        ({"op": "RC_SEND_ONLY", "roce_version": 3}, "roce_version is 1 or 2"),
        ({"op": "RC_SEND_ONLY", "payload": "hello"}, "payload is so many bytes"),
        ({"op": "RC_SEND_ONLY", "payload": "hex:1"}, "no bytes in hexadecimal"),
        ({"op": "RC_SEND_ONLY", "payload": 65535}, ""),
        ({"op": "RC_SEND_ONLY", "icrc": "wrong"}, "icrc is a whole number"),
        ({"op": "RC_SEND_ONLY", "icrc": 1 << 32}, "takes 32 bits"),
        ({"op": "RC_SEND_ONLY", "step": {"rkey": 1}}, "rkey cannot be stepped"),
        ({"op": "RC_SEND_ONLY", "step": 1}, "step is written as"),
        ({"op": "RC_SEND_ONLY", "wait_us": -1}, "wait_us is a number from 0 on"),
        ({"op": "CM_REQ", "payload": 3}, "the payload of a CM message is its MAD"),
        ({"op": "CM_REQ", "private_data": "text:" + "x" * 93}, "takes 92 bytes"),
        ({"op": "CM_REQ", "primary_local_port_gid": "here"}, "is an address"),
    ],
)
def test_a_wrong_description_is_named(packet: dict[str, Any], words: str) -> None:
    with pytest.raises(Wrong) as raised:
        list(craft([{"op": "RC_SEND_ONLY"}, packet]))
    assert words in str(raised.value)
    assert raised.value.place == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "psn: 4\npackets:\n- op: RC_SEND_ONLY\n- op: RC_SEND_ONLY\n  pns: 3\n",
            "line 5: RC_SEND_ONLY has no key",
        ),
        ("pns: 4\npackets:\n- op: RC_SEND_ONLY\n", "line 1: no key 'pns'; there is packets, and for all"),
        ("psn: 4\nsrc: 10.9.0\npackets:\n- op: RC_SEND_ONLY\n", "line 2: src is an IP address"),
        ("psn: 4\n", "line 1: there is no packets"),
        ("- 4\n", "line 1: a packet is written as {op:"),
        ("- op: [\n", "line 2: no YAML"),
        ("- {op: RC_SEND_ONLY, psn: 1, psn: 2}\n", "line 1: psn is there twice"),
        ("packets: []\n", "line 1: there are no packets"),
        ("", "no packets; one is"),
    ],
)
def test_what_is_wrong_in_a_file_has_its_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "packets.yaml"
    path.write_text(text)
    done = run("craft", path, status=1)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rocekit: error: {path}: {words}"), line


def test_a_file_may_name_a_mapping_and_use_it_again() -> None:
    described = parse_packets("- &w {op: RC_SEND_ONLY, dest_qpn: 7}\n- {<<: *w, payload: 3}\n")
    assert described.packets[1] == {"op": "RC_SEND_ONLY", "dest_qpn": 7, "payload": 3}


def test_the_docs_name_every_key_and_their_example_is_one() -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    section = page.partition("## Packets, for craft\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|(.*?)\|", section, re.MULTILINE))))
    assert named == {*PACKET, *NETWORK}
    example = parse_packets(section.partition("```yaml\n")[2].partition("```")[0])
    made = rows_of(*example.packets, **example.common)
    assert [row["psn"] for row in made] == [100, 100, 101, 102, 103, 104, 104]
    assert [row["icrc_state"] for row in made] == ["valid"] * 5 + ["invalid", "valid"]


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"nowhere.yaml: cannot be read"):
        read_packets("nowhere.yaml")


# ---------------------------------------------------------------------- the command


def run(*words: object, status: int = 0) -> Result:
    done = CliRunner().invoke(cli.rocekit, [str(word) for word in words])
    assert done.exit_code == status, done.output
    return done


def test_without_a_word_more_nothing_is_sent() -> None:
    done = run("craft", "--op", "RC_SEND_ONLY", "--qpn", "0x11", "--psn", 7, "--count", 30)
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + 20 + 1
    assert lines[1].split()[5:8] == ["RC_SEND_ONLY", "0x11", "7"]
    assert lines[-1] == "… and 10 more"
    assert done.stderr == "30 packets to 10.9.0.2, not sent: --send IFACE sends, -w FILE writes.\n"


@pytest.mark.parametrize("name", ["x.pcap", "x.pcapng"])
def test_packets_are_written_at_their_rate(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    run("craft", "--op", "RC_SEND_ONLY", "--count", 4, "--rate", "2k", "-w", path)
    with open_capture(path) as reader:
        assert reader.format == name.partition(".")[2]
        (batch,) = reader
    assert [int(t - batch.time_ns[0]) for t in batch.time_ns] == [0, 500_000, 1_000_000, 1_500_000]


def test_a_file_as_often_as_asked_with_psns_that_run_on(tmp_path: Path) -> None:
    path, out = tmp_path / "p.yaml", tmp_path / "x.pcap"
    path.write_text("- op: RC_SEND_FIRST\n- op: RC_SEND_LAST\n")
    run("craft", path, "--count", 2, "--psn", 9, "--set", "dscp=26", "-w", out)
    packets = rocekit.analyze(out).packets
    assert packets.psn.tolist() == [9, 10, 11, 12]
    assert set(packets.dscp.tolist()) == {26}


@pytest.mark.parametrize(
    "words",
    [(), ("x.yaml", "--op", "CNP"), ("--op", "CNP", "--set", "psn"), ("--op", "CNP", "--rate", "fast")],
)
def test_a_wrong_command_line_is_one(words: Sequence[str]) -> None:
    run("craft", *words, status=2)


@pytest.mark.parametrize("words", [("-w", "x.pcap", "--send", "lo"), ()])
def test_either_written_or_sent(words: Sequence[str]) -> None:
    run("craft", *([] if not words else ["--op", "CNP"]), *words, status=2)


def test_opcodes_have_their_names_and_headers_listed() -> None:
    listed = run("craft", "--list").stdout
    assert "0x0a  RC_RDMA_WRITE_ONLY" in listed
    assert "BTH DETH ImmDt" in listed
    assert "CM_REQ" in listed


@pytest.fixture
def loopback(root: None) -> Iterator[socket.socket]:
    """What comes in on loopback."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as tap:
        tap.bind(("lo", 0x0800))
        tap.settimeout(10)
        yield tap


def received(tap: socket.socket, sport: int, count: int) -> list[bytes]:
    """The next frames from a port that no kernel hands out; loopback shows each going and coming."""
    found: list[bytes] = []
    while len(found) < count:
        frame, address = tap.recvfrom(1 << 16)
        if frame[34:38] == struct.pack("!HH", sport, 4791) and address[2] == 0:  # PACKET_HOST: it came
            found.append(frame)
    return found


def test_what_is_sent_arrives(loopback: socket.socket) -> None:
    done = run(
        "craft", "--op", "RC_SEND_ONLY", "--psn", 7, "--count", 3, "--send", "lo", "--set", "sport=61234"
    )
    frames = received(loopback, 61234, 3)
    want = [
        made.frame
        for made in craft(
            [{"op": "RC_SEND_ONLY", "psn": 7, "count": 3}],
            {"src": "127.0.0.1", "dst": "127.0.0.1", "sport": 61234}
            | {"src_mac": "00:00:00:00:00:00", "dst_mac": "00:00:00:00:00:00"},
        )
    ]
    assert frames == want
    assert done.stdout.startswith("3 packets, 366 bytes sent on lo in ")


def test_a_frame_above_the_mtu_says_so(root: None) -> None:
    done = run("craft", "--op", "RC_SEND_ONLY", "--payload", 65000, "--count", 2, "--send", "lo")
    assert done.stdout.startswith("2 packets")  # loopback's MTU is 65,536
    done = run("craft", "--op", "CNP", "--send", "nowhere", status=1)
    assert "no interface nowhere; there is lo" in done.stderr


# ---------------------------------------------------------------------- pace


@pytest.mark.parametrize(
    ("text", "gap_ns"),
    [("1000", 1_000_000), ("1k", 1_000_000), ("2.5kpps", 400_000), ("8Mbit", 1_000_000), ("1Gbit/s", 8_000)],
)
def test_a_rate_is_packets_or_bits_a_second(text: str, gap_ns: int) -> None:
    assert parse_rate(text).gap_ns(1000) == gap_ns


@pytest.mark.parametrize("text", ["", "0", "fast", "-1", "1 apple"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        parse_rate(text)


@settings(max_examples=examples(30))
@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=20), st.integers(0, 3_000_000))
def test_who_is_late_catches_up_and_never_comes_early(gaps: list[int], slow_ns: int) -> None:
    now, sent = 0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += round(seconds * 1e9)

    pacer, at = Pacer(lambda: now, sleep), 0
    for gap in gaps:
        at += gap
        pacer.wait(at)
        sent.append((at - gaps[0], now))
        now += slow_ns  # what sending takes
    for (planned, then), (_, before) in zip(sent[1:], sent, strict=False):
        assert then >= planned
        assert then in (planned, before + slow_ns)


def test_a_rate_is_told_in_words() -> None:
    assert str(Rate(1500)) == "1,500 packets/s"
    assert str(Rate(1e8, bits=True)) == "100,000,000 bit/s"
