"""Our reading beside tshark's: of captures that others made, and of frames made to find where the two differ.

What is said of tshark here was seen with version 4.0.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from handmade import Net, batch_of, ethernet, roce_v1, transport
from places import PCAPS

from rocekit.capture import PcapngWriter, open_capture
from rocekit.commands.verify import command
from rocekit.decode import Decoder
from rocekit.errors import CaptureError
from rocekit.verify import TsharkComparison, verify
from rocekit.verify import tshark as asking
from rocekit.wire import BTH, OPCODE_NAMES, OPCODES, Opcode
from rocekit.wire.cm import CM_ATTRIBUTE_IDS, CM_MESSAGES, IP_CM
from rocekit.wire.cm import MAD as MAD_HEADER

pytestmark = pytest.mark.usefixtures("tshark")

V4, V6 = Net(tclass=0xB9, hop_limit=9), Net(version=6, src="fd00:9::1", dst="fd00:9::2", flow_label=0x12345)
OPTIONS = replace(V4, options=b"\x01\x01\x01\x00")
EXTENSIONS = replace(
    V6, first_extension=0, options=bytes.fromhex("3c00010400000000") + bytes.fromhex("1101010c") + bytes(12)
)
SEND = transport(OPCODE_NAMES["RC_SEND_ONLY"], b"abcd", dest_qpn=17, psn=41)
#: Opcodes whose headers tshark 4.0 does not know, or takes for others.
UNKNOWN_TO_TSHARK = [
    o
    for o in OPCODES.values()
    if o.transport in ("RD", "XRC", "CNP") or o.operation in ("FLUSH", "ATOMIC_WRITE")
]
KNOWN_TO_TSHARK = [o for o in OPCODES.values() if o not in UNKNOWN_TO_TSHARK]


def compare(
    tmp_path: Path, frames: Sequence[bytes], wirelen: Sequence[int] | None = None
) -> TsharkComparison:
    path = tmp_path / "made.pcapng"
    with PcapngWriter(path) as writer:
        writer.write_batch(batch_of(frames, wirelen=wirelen))
    return verify(path)


def a_frame(chance: random.Random, opcode: Opcode, net: Net | None) -> bytes:
    """A packet with random fields; RoCE v1 where there is no ``net``."""
    fields = {
        f.name: chance.getrandbits(f.bits)
        for header in (BTH, *opcode.headers)
        for f in header.fields
        if not f.reserved and f.name not in ("opcode", "padcount", "version")
    }
    fields["dest_qpn"] |= 2  # not QP 0 or 1
    body = transport(
        opcode.value, chance.randbytes(chance.randrange(300)) if opcode.payload else b"", **fields
    )
    if net is None:
        return ethernet(roce_v1(body, tclass=5, hop_limit=7), 0x8915)
    tags = chance.choice([(), ((0x8100, 0x4007),), ((0x88A8, 0x2005), (0x8100, 0xE006))])
    return ethernet(net.wrap(body), None, *tags)


@pytest.mark.parametrize(
    "net", [V4, OPTIONS, V6, EXTENSIONS, None], ids=["v4", "options", "v6", "extensions", "v1"]
)
def test_every_opcode_tshark_knows_reads_the_same(tmp_path: Path, net: Net | None) -> None:
    chance = random.Random(1)
    frames = [a_frame(chance, opcode, net) for opcode in KNOWN_TO_TSHARK for _ in range(3)]
    comparison = compare(tmp_path, frames)
    assert [str(d) for d in comparison.disagreements] == []
    assert comparison.explained == {}
    assert comparison.packets == comparison.frames == len(frames)
    assert comparison.values > 15 * len(frames)


def test_what_tshark_does_not_know_is_named(tmp_path: Path) -> None:
    chance = random.Random(2)
    comparison = compare(tmp_path, [a_frame(chance, opcode, V4) for opcode in UNKNOWN_TO_TSHARK])
    assert comparison.agrees
    reasons = " ".join(comparison.explained)
    assert all(word in reasons for word in ("CNP", "RD", "XRC"))


def cm_mad(message: str, **fields: int | bytes) -> bytes:
    head = MAD_HEADER.pack(
        base_version=1,
        mgmt_class=7,
        class_version=2,
        method=3,
        transaction_id=0x1122334455667788,
        attribute_id=CM_ATTRIBUTE_IDS[message],
    )
    return head + CM_MESSAGES[message].pack(**fields)


def test_cm_messages_read_the_same(tmp_path: Path) -> None:
    chance = random.Random(3)
    frames: list[bytes] = []
    for message in ("REQ", "REQ", "REP", "RTU", "DREQ", "DREP", "REJ"):
        layout = CM_MESSAGES[message]
        numbers = {
            f.name: chance.getrandbits(f.bits) for f in layout.fields if not f.reserved and not f.is_bytes
        }
        data: dict[str, int | bytes] = {**numbers, "private_data": chance.randbytes(40)}
        if message == "REQ":
            version = 4 if not frames else 6
            ends = chance.randbytes(8 if version == 4 else 32)
            half = len(ends) // 2
            data["service_id"] = 0x0000_0000_0106_0000 | 7471
            data["private_data"] = IP_CM.pack(
                ip_version=version,
                source_port=40000,
                source_address=ends[:half].rjust(16, b"\0"),
                destination_address=ends[half:].rjust(16, b"\0"),
            ) + chance.randbytes(56)
        body = transport(OPCODE_NAMES["UD_SEND_ONLY"], cm_mad(message, **data), dest_qpn=1, src_qpn=1)
        frames.append(ethernet(V4.wrap(body)))
    comparison = compare(tmp_path, frames)
    assert [str(d) for d in comparison.disagreements] == []
    assert comparison.explained == {}


def test_packets_cut_by_the_snaplen_read_the_same_as_far_as_they_go(tmp_path: Path) -> None:
    chance = random.Random(4)
    whole = [a_frame(chance, opcode, net) for opcode in KNOWN_TO_TSHARK for net in (V4, V6, None)]
    cut = [frame[: chance.randrange(14, min(len(frame), 120))] for frame in whole]
    comparison = compare(tmp_path, cut, [len(frame) for frame in whole])
    assert [str(d) for d in comparison.disagreements] == []


def test_damaged_packets_differ_only_where_it_is_known_why(tmp_path: Path) -> None:
    chance = random.Random(5)
    frames = []
    for _ in range(1500):
        net = chance.choice([V4, V4, OPTIONS, V6, None])
        frame = bytearray(a_frame(chance, chance.choice(KNOWN_TO_TSHARK), net))
        frame[chance.randrange(12, min(len(frame), 110))] ^= 1 << chance.randrange(8)
        frames.append(bytes(frame))
    comparison = compare(tmp_path, frames)
    assert [str(d) for d in comparison.disagreements] == []
    # Few enough that the reasons do not hide anything.
    assert sum(comparison.explained.values()) < comparison.values // 100


def test_a_wrong_reading_of_ours_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Decoder.decode

    def off_by_one(self: Decoder, batch):  # type: ignore[no-untyped-def]
        packets = decode(self, batch)
        packets._lazy["psn"] = packets.psn + 1
        return packets

    monkeypatch.setattr(Decoder, "decode", off_by_one)
    comparison = compare(tmp_path, [ethernet(V4.wrap(SEND))])
    assert [d.to_dict() for d in comparison.disagreements] == [
        {"frame": 1, "field": "psn", "ours": 42, "theirs": 41}
    ]
    result = CliRunner().invoke(command, [str(tmp_path / "made.pcapng")])
    assert result.exit_code == 1
    assert "frame 1  psn  ours 42 (0x2a)  tshark 41 (0x29)" in result.output


def test_too_little_for_a_mad_is_named(tmp_path: Path) -> None:
    short = transport(OPCODE_NAMES["RC_SEND_ONLY"], b"abcd", dest_qpn=1)
    comparison = compare(tmp_path, [ethernet(V4.wrap(short))])
    assert comparison.agrees
    assert "MAD" in " ".join(comparison.explained)


def test_frames_that_only_tshark_takes_for_roce_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = bytearray(replace(V4, sport=4791).wrap(SEND))
    other[22:24] = (53211).to_bytes(2, "big")
    comparison = compare(tmp_path, [ethernet(bytes(other))])
    assert comparison.agrees
    assert list(comparison.explained) == ["tshark takes UDP source port 4791 for RoCE too"]


def test_a_field_another_version_does_not_have_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_FIELDS", (*asking._FIELDS, "infiniband.bth.of_the_future"))
    comparison = compare(tmp_path, [ethernet(V4.wrap(SEND))])
    assert comparison.left_out == {"infiniband.bth.of_the_future"}
    assert comparison.packets == 1
    assert comparison.agrees


def test_a_capture_cut_short_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    frame = ethernet(V4.wrap(SEND))
    compare(tmp_path, [frame] * 3)
    path = tmp_path / "made.pcapng"
    path.write_bytes(path.read_bytes()[:-60])
    comparison = verify(path)
    assert comparison.frames == 2
    assert comparison.agrees


def test_json_says_what_text_says(tmp_path: Path) -> None:
    compare(tmp_path, [ethernet(V4.wrap(SEND))])
    result = CliRunner().invoke(command, [str(tmp_path / "made.pcapng"), "--format", "json"])
    assert result.exit_code == 0
    document = json.loads(result.output)
    assert (document["frames"], document["packets"], document["disagreements"]) == (1, 1, 0)


def test_without_tshark_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(tmp_path, [])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CaptureError, match="apt-get install tshark"):
        verify(tmp_path / "made.pcapng")


def test_standard_input_cannot_be_read_twice() -> None:
    with pytest.raises(CaptureError, match="twice"):
        verify("-")


def test_captures_that_others_made_read_the_same(others: Path) -> None:
    for path in sorted(others.glob("*.pcap")):
        comparison = verify(path)
        assert (path.name, [str(d) for d in comparison.disagreements]) == (path.name, [])
        assert comparison.explained == {}
        assert comparison.packets > 0


@pytest.mark.parametrize("folder", ["", "field"])
def test_our_own_captures_read_the_same(folder: str, tmp_path: Path) -> None:
    """All of a folder as one capture: tshark takes longer to start than to read them."""
    together = tmp_path / "all.pcapng"
    of: list[str] = []
    with PcapngWriter(together) as writer:
        for path in sorted((PCAPS / folder).glob("*.pcap*")):
            if path.name == "mpls-ethernet.pcap":
                continue  # tshark must be told what is below an MPLS label
            with open_capture(path) as reader:
                for batch in reader:
                    writer.write_batch(batch)
                    of += [path.name] * len(batch)
    comparison = verify(together)
    assert [(of[d.frame - 1], str(d)) for d in comparison.disagreements] == []
    assert comparison.frames == len(of) > 1000
    assert comparison.packets > 0.95 * len(of)


def test_a_capture_that_is_cut_off_is_compared_as_far_as_it_goes(pcaps: Path, tmp_path: Path) -> None:
    """tshark too reads it to the last whole frame: they agree, and it is an error all the same."""
    cut = tmp_path / "cut.pcap"
    cut.write_bytes((pcaps / "ping-write-clean.pcap").read_bytes()[:9000])
    result = CliRunner().invoke(command, [str(cut)])
    assert "10 RoCE packets in 10 frames" in result.stdout
    assert "no disagreement" in result.stdout
    assert isinstance(result.exception, CaptureError)
    assert "the file ends in the middle of frame 11" in str(result.exception)
    told = json.loads(CliRunner().invoke(command, [str(cut), "--format", "json"]).stdout)
    assert (told["disagreements"], len(told["damage"])) == (0, 1)
