"""RoCE packets behind tags, tunnels, labels and other links are read as they are without them."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from encapsulated import (
    BY_NAME,
    STEPS,
    Step,
    around,
    erspan2,
    ethernet,
    fits,
    gre,
    ipv4,
    layers,
    tag,
    udp,
    vxlan,
)
from handmade import Net, batch_of, roce_v1, transport
from hypothesis import given
from hypothesis import strategies as st

from rocekit.decode import ICRC_VALID, Decoder, Packets
from rocekit.errors import CaptureError
from rocekit.files.frames import SUPPORTED_LINKTYPES, unsupported_linktype
from rocekit.wire import OPCODE_NAMES
from rocekit.wire.encapsulations import KINDS, LAYERS, LINKS

WRITE = OPCODE_NAMES["RC_RDMA_WRITE_ONLY"]
BODY = transport(WRITE, bytes(range(64)), dest_qpn=17, psn=5, rkey=9, remote_va=1 << 40, dma_length=64)
NETS = (Net(), Net(version=6, src="fd00:9::1", dst="fd00:9::2"))
PACKET = NETS[0].wrap(BODY)
#: What tells nothing of the packet inside.
OUTSIDE = ("frame", "file", "time_ns", "encapsulation", "vni", "vlan", "priority")


def decode(*frames: bytes, linktype: int = 1) -> Packets:
    return Decoder().decode(batch_of(frames, linktype=linktype))


def other_kinds(frame: bytes, linktype: int) -> dict[str, int]:
    """What a capture of one frame is said to have instead of RoCE."""
    decoder = Decoder()
    decoder.decode(batch_of([frame], linktype=linktype))
    return dict(decoder.counts.others)


def inside(packets: Packets) -> list[dict[str, object]]:
    return [{name: v for name, v in row.items() if name not in OUTSIDE} for row in packets.rows()]


@pytest.mark.parametrize("net", NETS, ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_a_packet_is_read_in_each(step: Step, net: Net) -> None:
    packet = net.wrap(BODY)
    found = decode(around(packet, step))
    assert inside(found) == inside(decode(ethernet(packet)))
    assert found.icrc_state.tolist() == [ICRC_VALID]
    expected = layers(step)
    if step.name == "destination-options":
        expected.append("IP-in-IP")  # the option header stands between the two IP headers
        assert found.row(0)["encapsulation"] in (expected, expected[:1])
        return
    assert found.row(0)["encapsulation"] == (expected or None)


@given(data=st.data(), cut=st.integers(0, 80))
def test_any_stack_of_them_has_the_same_packet_inside(data: st.DataObject, cut: int) -> None:
    steps: list[Step] = []
    for _ in range(data.draw(st.integers(0, 6))):
        steps.append(data.draw(st.sampled_from([s for s in STEPS if not steps or fits(steps[-1], s)])))
    packet = data.draw(st.sampled_from(NETS)).wrap(BODY)
    frame = around(packet, *steps)
    found = decode(frame)
    assert inside(found) == inside(decode(ethernet(packet)))
    short, plain = decode(frame[: len(frame) - cut]), decode(ethernet(packet)[: 14 + len(packet) - cut])
    assert [(row["psn"], row["dest_qpn"]) for row in short.rows()] == [
        (row["psn"], row["dest_qpn"]) for row in plain.rows()
    ]


@given(st.binary(max_size=200), st.sampled_from(STEPS), st.sampled_from(sorted(SUPPORTED_LINKTYPES)))
def test_junk_inside_is_no_error(junk: bytes, step: Step, linktype: int) -> None:
    frame = around(PACKET, step)
    for cut in range(0, len(frame), 7):
        decode(frame[:cut] + junk, linktype=linktype)


def test_the_walk_ends() -> None:
    assert len(decode(around(PACKET, *[BY_NAME["vlan"]] * 20))) == 1
    assert len(decode(around(PACKET, *[BY_NAME["ip-in-ip"]] * 40))) == 0


def test_outer_fragments_are_not_read() -> None:
    whole = ipv4(17, udp(4789, vxlan(7, ethernet(PACKET))))
    for flags in (0x2000, 0x0001):
        assert not len(decode(ethernet(whole[:6] + struct.pack(">H", flags) + whole[8:])))


def test_roce_v1_behind_a_tag_and_a_tunnel() -> None:
    frame = ethernet(roce_v1(BODY), 0x8915)
    found = decode(around(b"", Step("v1", "ip", "ethernet", lambda _: frame), BY_NAME["vxlan"]))
    assert (found.row(0)["roce_version"], found.row(0)["icrc_state"]) == (1, "valid")
    assert found.row(0)["encapsulation"] == ["IPv4 192.0.2.1 → 192.0.2.2", "VXLAN VNI 7"]


def test_vni_and_vlan_are_columns() -> None:
    frames = [
        ethernet(PACKET),
        around(PACKET, BY_NAME["vlan"], BY_NAME["vxlan"]),
        around(PACKET, BY_NAME["nvgre"]),
    ]
    found = decode(*frames)
    assert found.vni.tolist() == [-1, 7, 0x123456]
    assert found.vlan.tolist() == [-1, 100, -1]


@pytest.mark.parametrize("mac", ["00", "40", "60", "4c", "6e", "02"])
@pytest.mark.parametrize("control_word", [b"", bytes(4), b"\0\0\0\x07"])
def test_ethernet_below_mpls_is_told_from_ip(mac: str, control_word: bytes) -> None:
    """No field says what follows the last label; the first byte of a MAC address may look like IP."""
    frame = bytes.fromhex(mac) + b"\x1b" + ethernet(PACKET)[2:]
    label = (18 << 12 | 1 << 8 | 64).to_bytes(4, "big")
    for inside in (frame, tag(frame, 0x8100, 5)):
        found = decode(ethernet(label + control_word + inside, 0x8847))
        names = [
            "MPLS 18",
            *(["control word"] if control_word else []),
            *(["VLAN 5"] if inside != frame else []),
        ]
        assert found.row(0)["encapsulation"] == names


class TestLinks:
    """Links other than Ethernet, Linux cooked and raw IP."""

    @pytest.mark.parametrize("linktype", [0, 108])
    @pytest.mark.parametrize("family", [b"\2\0\0\0", b"\0\0\0\2", b"\x1e\0\0\0"])
    def test_bsd_loopback(self, linktype: int, family: bytes) -> None:
        assert inside(decode(family + PACKET, linktype=linktype)) == inside(decode(ethernet(PACKET)))

    @pytest.mark.parametrize(("kind", "body"), [(1, ethernet(PACKET)), (101, PACKET), (12, PACKET)])
    def test_ppi(self, kind: int, body: bytes) -> None:
        field = struct.pack("<HHI", 30001, 4, 0)
        head = struct.pack("<BBHI", 0, 0, 8 + len(field), kind) + field
        assert inside(decode(head + body, linktype=192)) == inside(decode(ethernet(PACKET)))

    @pytest.mark.parametrize("kind", [2, 11, 16, 20])
    @pytest.mark.parametrize("extensions", [0, 1, 3])
    def test_erf_with_ethernet(self, kind: int, extensions: int) -> None:
        frame = ethernet(PACKET)
        more = b"".join(bytes([0x80 * (n > 1) | 5]) + bytes(7) for n in range(extensions, 0, -1))
        record = 16 + len(more) + 2 + len(frame) + 4
        head = struct.pack("<Q", 1 << 40) + struct.pack(
            ">BBHHH", kind | 0x80 * (extensions > 0), 4, record, 0, len(frame) + 4
        )
        found = decode(head + more + b"\0\0" + frame + b"\1\2\3\4", linktype=197)
        assert inside(found) == inside(decode(frame))

    def test_a_tunnel_on_each_link(self) -> None:
        outer = around(PACKET, BY_NAME["vxlan"])[14:]
        cooked = struct.pack(">HHH8sH", 0, 1, 6, bytes(8), 0x0800)
        for linktype, head in ((0, b"\2\0\0\0"), (101, b""), (113, cooked), (228, b"")):
            found = decode(head + outer, linktype=linktype)
            assert found.row(0)["encapsulation"] == ["IPv4 192.0.2.1 → 192.0.2.2", "VXLAN VNI 7"]

    def test_native_infiniband_is_refused_with_advice(self) -> None:
        error = unsupported_linktype(247, "x.pcap")
        assert isinstance(error, CaptureError)
        assert "native InfiniBand" in str(error)
        assert "Wireshark" in str(error)

    @pytest.mark.parametrize("extensions", [0, 1])
    def test_native_infiniband_in_erf_is_named_and_no_damaged_ip(self, extensions: int) -> None:
        record = struct.pack("<Q", 1 << 40) + struct.pack(">BBHHH", 21 | 0x80 * extensions, 4, 16 + 60, 0, 60)
        assert other_kinds(record + bytes(60), 197) == {"native InfiniBand in ERF records": 1}

    def test_record_types_that_are_not_read_are_named_so(self) -> None:
        erf = struct.pack("<Q", 1 << 40) + struct.pack(">BBHHH", 1, 4, 16 + 60, 0, 60)  # HDLC
        assert other_kinds(erf + bytes(60), 197) == {"ERF records of another type": 1}
        ppi = struct.pack("<BBHI", 0, 0, 8, 105)  # IEEE 802.11
        assert other_kinds(ppi + bytes(60), 192) == {"PPI records of another link type": 1}


class TestTable:
    def test_every_kind_that_is_named_has_a_row(self) -> None:
        named = {layer.then for layer in LAYERS} | set(LINKS.values())
        named |= {kind for layer in LAYERS for kind in (layer.numbers or {}).values()}
        assert named <= set(KINDS)

    def test_every_row_can_be_reached(self) -> None:
        reached = {layer.then for layer in LAYERS} | set(LINKS.values()) | {"control-word"}
        reached |= {kind for layer in LAYERS for kind in (layer.numbers or {}).values()}
        assert reached == set(KINDS)

    def test_numbers_fit(self) -> None:
        for layer in LAYERS:
            assert all(0 <= number < layer.space for number in layer.numbers or {})
            assert layer.numbers is None or layer.next_bytes


class TestTshark:
    """tshark reads the same frames."""

    pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="no tshark")

    def test_every_kind_it_knows(self, tmp_path: Path) -> None:
        steps = [step for step in STEPS if step.protocol]
        path = tmp_path / "x.pcap"
        with path.open("wb") as file:
            file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
            for second, step in enumerate(steps):
                frame = around(PACKET, step)
                file.write(struct.pack("<IIII", second, 0, len(frame), len(frame)) + frame)
        # What says nothing of the inner protocol is for the user to say, in tshark.
        options = ["-d", "mpls.label==18,pwethnocw", "-d", "mpls.label==19,pwethcw"]
        fields = ["frame.protocols", "infiniband.bth.psn", "infiniband.bth.destqp"]
        command = ["tshark", "-r", str(path), *options, "-Tfields", "-E", "occurrence=l"]
        command += [word for name in fields for word in ("-e", name)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        wrong = []
        for step, line in zip(steps, lines, strict=True):
            protocols, psn, _ = line.split("\t")
            if step.protocol not in protocols.split(":") or psn != "5":
                wrong.append((step.name, line))
        assert not wrong


def test_an_erspan_session_is_of_the_mirror_and_not_of_the_traffic() -> None:
    sessions = [ethernet(ipv4(47, gre(0x88BE, erspan2(ethernet(PACKET), session=n), seq=n))) for n in (1, 2)]
    other = ethernet(ipv4(47, gre(0x88BE, erspan2(ethernet(PACKET)), seq=1), src="192.0.2.77"))
    found = decode(*sessions, other, ethernet(PACKET))
    assert set(found.flow.tolist()) == {0}
    assert set(found.scope.tolist()) == {0}
