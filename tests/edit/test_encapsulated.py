"""Redacting, changing and replaying packets behind tags, tunnels, labels and other links."""

from __future__ import annotations

import ipaddress
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from encapsulated import A6, B6, BY_NAME, STEPS, A, B, Step, around, ethernet, fits
from handmade import Net, batch_of, transport
from hypothesis import given
from hypothesis import strategies as st

from rocekit.decode import ICRC_VALID, Decoder
from rocekit.edit.redact import Redactor
from rocekit.edit.redact_frames import redact_batch
from rocekit.edit.replay import Replay
from rocekit.edit.rewrite import Changes
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.wire import OPCODE_NAMES

PACKET = Net(src="203.0.113.5", dst="203.0.113.6").wrap(
    transport(OPCODE_NAMES["RC_SEND_ONLY"], b"tells a secret..", dest_qpn=17, psn=5)
)
PARTS = {
    name: ipaddress.ip_address(name).packed
    for name in (A, B, A6, B6, "203.0.113.5", "203.0.113.6", "5f00:0:3::1")
}
SEGMENT = ipaddress.ip_address("5f00:0:2::1").packed
MACS = (bytes.fromhex("020000000001"), bytes.fromhex("020000000002"))
NEEDS_TSHARK = pytest.mark.skipif(shutil.which("tshark") is None, reason="no tshark")


def redacted(frame: bytes, linktype: int = 1) -> bytes:
    batch, decoder = batch_of([frame], linktype=linktype), Decoder()
    packets = decoder.decode(batch)
    return redact_batch(batch, packets, decoder.network, [], Redactor(b"x" * 32, PARTS)).frame(0)


def stacks(data: st.DataObject) -> list[Step]:
    steps: list[Step] = []
    for _ in range(data.draw(st.integers(0, 4))):
        steps.append(data.draw(st.sampled_from([s for s in STEPS if not steps or fits(steps[-1], s)])))
    return steps


def replayed(frames: list[bytes], changes: Changes, path: Path, linktype: int = 1) -> list[bytes]:
    with PcapngWriter(path, linktype) as writer:
        for second, frame in enumerate(frames):
            writer.write(frame, second * 1_000_000_000)
    return [one.frame for one in Replay(path, changes).frames()]


def wrong_checksums(frames: list[bytes], folder: Path) -> list[str]:
    """What tshark says of frames in which a checksum is wrong."""
    path = folder / "checked.pcap"
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for second, frame in enumerate(frames):
            file.write(struct.pack("<IIII", second, 0, len(frame), len(frame)) + frame)
    names = ("ip", "udp", "gre")
    command = ["tshark", "-r", str(path), "-Tfields", "-e", "frame.protocols"]
    command += [word for name in names for word in ("-e", f"{name}.checksum.status")]
    command += ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if any("0" in status.split(",") for status in line.split("\t")[1:])]


class TestRedaction:
    @given(data=st.data())
    def test_nothing_is_left_and_the_packet_is_found_in_the_same_layers(self, data: st.DataObject) -> None:
        steps = stacks(data)
        frame = around(PACKET, *steps)
        new = redacted(frame)
        assert len(new) == len(frame)
        for part in (*PARTS.values(), SEGMENT, *MACS, b"secret"):
            assert part not in new
        before, after = (Decoder().decode(batch_of([one])) for one in (frame, new))
        assert after.icrc_state.tolist() == [ICRC_VALID]
        ours, theirs = (p.wrappings[int(p.encapsulation[0])] for p in (before, after))
        assert (ours.short, ours.vlans, bool(ours.scope)) == (theirs.short, theirs.vlans, bool(theirs.scope))

    @NEEDS_TSHARK
    def test_checksums_are_right_again(self, tmp_path: Path) -> None:
        frames = [around(PACKET, step) for step in STEPS]
        assert not wrong_checksums(frames, tmp_path)
        assert not wrong_checksums([redacted(frame) for frame in frames], tmp_path)

    def test_a_wrong_outer_checksum_stays_wrong(self) -> None:
        frame = bytearray(around(PACKET, BY_NAME["geneve-checksum"]))
        frame[14 + 11] ^= 1
        frame[14 + 26] ^= 4
        again = Decoder().decode(batch_of([redacted(bytes(frame))]))
        assert len(again) == 1
        new = redacted(bytes(frame))
        assert sum(struct.unpack(">10H", new[14:34])) % 0xFFFF != 0

    def test_what_a_capture_s_card_adds_is_removed(self) -> None:
        field = struct.pack("<HHI", 30002, 4, 0xDEADBEEF)
        ppi = struct.pack("<BBHI", 0, 0, 8 + len(field), 1) + field
        new = redacted(ppi + ethernet(PACKET), linktype=192)
        assert b"\xef\xbe\xad\xde" not in new
        assert not any(mac in new for mac in MACS)
        assert len(Decoder().decode(batch_of([new], linktype=192))) == 1


class TestReplay:
    CHANGES = Changes(
        {A: "198.51.100.1", "203.0.113.6": "198.51.100.2", A6: "2001:db8:1::1"},
        {MACS[0].hex(":"): "02:00:00:00:00:99"},
        {(None, 17): 34},
    )

    @given(data=st.data())
    def test_addresses_change_inside_and_outside(
        self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        steps = stacks(data)
        (new,) = replayed(
            [around(PACKET, *steps)], self.CHANGES, tmp_path_factory.mktemp("replay") / "x.pcapng"
        )
        packets = Decoder().decode(batch_of([new]))
        row = packets.row(0)
        assert (row["src"], row["dst"], row["dest_qpn"]) == ("203.0.113.5", "198.51.100.2", 34)
        assert row["icrc_state"] == "valid"
        assert PARTS[A] not in new
        assert PARTS[A6] not in new
        assert MACS[0] not in new
        assert len(new) == len(around(PACKET, *steps))

    @NEEDS_TSHARK
    def test_checksums_are_right_again(self, tmp_path: Path) -> None:
        frames = replayed([around(PACKET, step) for step in STEPS], self.CHANGES, tmp_path / "x.pcapng")
        assert len(frames) == len(STEPS)
        assert not wrong_checksums(frames, tmp_path)

    def test_the_guard_is_told_where_frames_go(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pcapng"
        with PcapngWriter(path) as writer:
            writer.write(around(PACKET, BY_NAME["vxlan"]), 0)
        replay = Replay(path, Changes({B: "198.51.100.9"}))
        assert replay.destinations == ["198.51.100.9", "203.0.113.6"]
        assert [one.dst for one in replay.frames()] == ["198.51.100.9"]

    @pytest.mark.parametrize("step", [None, BY_NAME["vxlan"], BY_NAME["vlan"]])
    def test_other_links_become_ethernet(self, step: Step | None, tmp_path: Path) -> None:
        frame = ethernet(PACKET) if step is None else around(PACKET, step)
        erf = struct.pack("<Q", 1) + struct.pack(">BBHHH", 2, 4, 18 + len(frame) + 4, 0, len(frame) + 4)
        found = replayed([erf + b"\0\0" + frame + b"\1\2\3\4"], Changes(), tmp_path / "x.pcapng", 197)
        assert found == [frame]
        if step is None or step.name == "vxlan":
            (found_raw,) = replayed([frame[14:]], Changes(), tmp_path / "y.pcapng", 101)
            (loopback,) = replayed([b"\2\0\0\0" + frame[14:]], Changes(), tmp_path / "z.pcapng", 0)
            assert found_raw[12:] == loopback[12:] == frame[12:]


def test_a_slice_of_headers_keeps_what_is_around(tmp_path: Path) -> None:
    import rocekit
    from rocekit.edit.slice import Choice, cut

    path, out = tmp_path / "x.pcapng", tmp_path / "y.pcapng"
    with PcapngWriter(path) as writer:
        for n in range(3):
            writer.write(around(PACKET, BY_NAME["vlan"], BY_NAME["vxlan"]), n)
    cut(rocekit.analyze(path), [out], Choice(), headers_only=True)
    found = rocekit.analyze(out).connections
    assert [c.to_dict()["encapsulation"] for c in found] == [
        ["IPv4 192.0.2.1 → 192.0.2.2", "VXLAN VNI 7", "VLAN 100"]
    ]
    assert np.all(out.stat().st_size < path.stat().st_size)
