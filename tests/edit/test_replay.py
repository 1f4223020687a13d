"""A capture sent again is the same conversation under other names: nothing else about it changes."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from capture_bytes import Frame, pcap
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from places import PCAPS

import rocekit
from rocekit import cli, wire
from rocekit.analysis import Analysis
from rocekit.capture import open_capture
from rocekit.edit.replay import Replay
from rocekit.edit.rewrite import Changes, FrameLayout, rewrite
from rocekit.wire.build import build_frame, build_packet

CAPTURES = sorted(PCAPS.glob("*.pcap*"))
#: One name for each thing that these captures have, and its way back.
THERE = {
    "10.9.0.1": "172.16.5.6",
    "10.9.0.2": "192.0.2.200",
    "fd00:9::1": "2001:db8::77",
    "fd00:9::2": "fc00::1",
}
MACS = {"02:00:00:00:00:01": "02:aa:bb:cc:dd:01", "02:00:00:00:00:02": "06:11:22:33:44:55"}
START = 1_700_000_000_000_000_000


def frames_of(path: Path) -> list[tuple[bytes, int]]:
    with open_capture(path) as reader:
        return [
            (frame, int(time))
            for batch in reader
            for frame, time in zip(batch.frames(), batch.time_ns, strict=True)
        ]


def written(folder: Path, frames: list[tuple[bytes, int]], name: str = "x.pcap", **how: Any) -> Path:
    path = folder / name
    path.write_bytes(pcap([Frame(data, at) for data, at in frames], unit="ns", **how))
    return path


def replayed(path: Path, changes: Changes, **how: Any) -> list[tuple[bytes, int]]:
    replay = Replay(path, changes, **how)
    return [(one.frame, replay.extent.first_ns + one.at_ns) for one in replay.frames()]


def roce_only(path: Path) -> list[tuple[bytes, int]]:
    """Frames with a RoCE packet, the malformed ones too."""
    found = rocekit.analyze(path).packets.frame.tolist()
    every = frames_of(path)
    return [every[number - 1] for number in found]


# ---------------------------------------------------------------------- what is changed


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_without_changes_every_packet_is_what_it_was(path: Path) -> None:
    """Damaged ones and their wrong checksums too."""
    want = roce_only(path)
    times = [max(t for _, t in want[: i + 1]) for i in range(len(want))]
    assert replayed(path, Changes()) == [(data, at) for (data, _), at in zip(want, times, strict=True)]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_there_and_back_is_what_it_was(path: Path, tmp_path: Path) -> None:
    there = Changes(
        THERE, MACS, {(None, 0x11): 0x777, (None, 0x14): 0x11}, {(None, -1): 0x654321}, {0x591: 7}, 4096
    )
    back = Changes(
        {new: old for old, new in THERE.items()},
        {new: old for old, new in MACS.items()},
        {(None, 0x777): 0x11, (None, 0x11): 0x14},
        {(None, -1): -0x654321},
        {7: 0x591},
        -4096,
    )
    first = replayed(path, there)
    assert first != replayed(path, Changes())
    again = replayed(written(tmp_path, first), back)
    assert again == replayed(path, Changes())


def told(analysis: Analysis, shift: int = 0) -> list[tuple[object, ...]]:
    """What the analysis says, without names."""
    return [
        (
            *(t.operation, (t.first_psn - shift) & 0xFFFFFF, t.bytes, t.packets, t.status),
            *(t.retransmitted_packets, t.naks, t.rnr_naks, t.timeouts, t.duration_ns),
        )
        for t in analysis.transfers
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("ping-write-loss.pcapng", "ping-read-response-loss.pcap", "blast-sr-rnr.pcap", "atomic-loss.pcap"),
        *("blast-sr-corruption.pcap", "ping-sr-rejected.pcap", "rping-ipv6-clean.pcap"),
        *("ib_send_bw-ud-clean.pcap", "ib_write_bw-4qp-loss.pcap", "ping-write-dead.pcap"),
    ],
)
def test_the_conversation_is_the_same_under_other_names(name: str, pcaps: Path, tmp_path: Path) -> None:
    shift = 0x300000
    changes = Changes(THERE, MACS, psns={(None, -1): shift})
    path = written(tmp_path, roce_only(pcaps / name), "before.pcap")
    before = rocekit.analyze(path, journals=[])
    after = rocekit.analyze(written(tmp_path, replayed(path, changes)), journals=[])
    assert told(after, shift) == told(before)
    assert [c.ips for c in after.connections] == [
        [THERE[str(ip)] for ip in c.ips] for c in before.connections
    ]
    assert [c.paired_by for c in after.connections] == [c.paired_by for c in before.connections]
    assert [(f.rule, f.frames) for f in after.findings] == [(f.rule, f.frames) for f in before.findings]
    counted = [a.capture.to_dict() for a in (before, after)]
    for key in ("roce_packets", "bad_icrc", "malformed_packets", "unchecked_icrc"):
        assert counted[0][key] == counted[1][key], key


def test_what_a_cm_exchange_says_changes_with_the_packets(pcaps: Path, tmp_path: Path) -> None:
    path = pcaps / "ping-write-clean.pcap"
    (before,) = rocekit.analyze(path).connections
    qpns = {("10.9.0.1", before.qpns[0]): 0x901, ("10.9.0.2", before.qpns[1]): 0x902}
    changes = Changes(THERE, qpns=qpns, psns={(None, -1): 5})  # type: ignore[arg-type]
    analysis = rocekit.analyze(written(tmp_path, replayed(path, changes)))
    (after,) = analysis.connections
    assert after.paired_by == "cm"
    assert after.qpns == [0x901, 0x902]
    assert after.ips == [THERE["10.9.0.1"], THERE["10.9.0.2"]]
    for side in (0, 1):
        was, now = before.negotiated[side].starting_psn, after.negotiated[side].starting_psn
        assert was is not None
        assert now == (was + 5) & 0xFFFFFF
    asked = next(r for r in analysis.cm if r.message == "REQ")
    assert asked.cm.ip_cm is not None
    assert asked.cm.ip_cm["source_address"] == THERE["10.9.0.1"]
    assert not [f for f in analysis.findings if f.severity == "error"]


def test_answers_move_with_the_requests_of_their_qp(pcaps: Path, tmp_path: Path) -> None:
    path = pcaps / "ib_write_bw-4qp-loss.pcap"
    before = rocekit.analyze(path)
    one = before.connections[1]
    to = (one.ips[1], one.qpns[1])
    out = tmp_path / "x.pcap"
    run("replay", path, "--psn", f"{to[0]}/{to[1]}=+4000", "-w", out)
    after = rocekit.analyze(out)
    assert {t.status for t in after.transfers} == {t.status for t in before.transfers}
    for was, now in zip(before.transfers, after.transfers, strict=True):
        moved = 4000 if (was.responder["ip"], was.responder["qpn"]) == to else 0
        assert now.first_psn & 0xFFFFFF == was.first_psn + moved & 0xFFFFFF
    assert sum(t.naks for t in after.transfers) == sum(t.naks for t in before.transfers)


def test_keys_and_remote_addresses(tmp_path: Path) -> None:
    make: dict[str, Any] = {"src": "10.0.0.1", "dst": "10.0.0.2", "dest_qpn": 7}
    frames = [
        build_frame("RC_RDMA_WRITE_ONLY", rkey=5, remote_va=1 << 40, payload=b"abcd", **make),
        build_frame("RC_FETCH_ADD", rkey=5, remote_va=64, swap_add=1, **make),
        build_frame("RC_SEND_ONLY_WITH_INVALIDATE", invalidate_rkey=5, payload=b"abc", **make),
        build_frame("RC_RDMA_READ_REQUEST", rkey=6, remote_va=64, dma_length=10, **make),
        build_frame("UD_SEND_ONLY", src_qpn=9, qkey=3, payload=b"abc", **make),
    ]
    path = written(tmp_path, [(data, START + i) for i, data in enumerate(frames)])
    changes = Changes(rkeys={5: 0xABCDEF}, va=-64, qpns={("10.0.0.1", 9): 99, ("10.0.0.2", 9): 98})
    make["icrc"] = None
    assert [data for data, _ in replayed(path, changes)] == [
        build_frame("RC_RDMA_WRITE_ONLY", rkey=0xABCDEF, remote_va=(1 << 40) - 64, payload=b"abcd", **make),
        build_frame("RC_FETCH_ADD", rkey=0xABCDEF, remote_va=0, swap_add=1, **make),
        build_frame("RC_SEND_ONLY_WITH_INVALIDATE", invalidate_rkey=0xABCDEF, payload=b"abc", **make),
        build_frame("RC_RDMA_READ_REQUEST", rkey=6, remote_va=0, dma_length=10, **make),
        build_frame("UD_SEND_ONLY", src_qpn=99, qkey=3, payload=b"abc", **make),
    ]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("family", [4, 6])
def test_the_management_qps_stay_what_they_are(version: int, family: int) -> None:
    src, dst = ("10.0.0.1", "10.0.0.2") if family == 4 else ("fd00::1", "fd00::2")
    frame = build_frame("UD_SEND_ONLY", src=src, dst=dst, dest_qpn=1, src_qpn=1, roce_version=version)
    network = 40 if family == 6 or version == 1 else 20
    udp = 8 if version == 2 else 0
    place = FrameLayout(14, 14 + network + udp, len(frame), 6 if version == 1 else family, version)
    changes = Changes(qpns={(None, 1): 77}, psns={(None, 1): 3, (None, -1): 5})
    assert rewrite(frame, place, changes) == frame


@given(
    st.sampled_from([o for o in wire.OPCODES.values() if o.value != wire.CNP_OPCODE]),
    st.sampled_from([(1, 4), (1, 6), (2, 4), (2, 6)]),
    st.sampled_from([None, 7, (3, 4)]),
    st.integers(2, 0xFFFFFF),
    st.integers(0, 0xFFFFFF),
    st.binary(max_size=40),
)
def test_a_packet_changed_is_the_packet_made_so(
    opcode: wire.Opcode,
    kind: tuple[int, int],
    vlan: int | tuple[int, ...] | None,
    qpn: int,
    psn: int,
    payload: bytes,
) -> None:
    version, family = kind
    old = ("10.0.0.1", "10.0.0.2") if family == 4 else ("fd00::1", "fd00::2")
    new = ("172.16.9.9", "192.0.2.1") if family == 4 else ("2001:db8::5", "fe80::9")
    names = {f.name for header in opcode.headers for f in header.fields}

    def made(ends: tuple[str, str], qpn: int, psn: int, rkey: int) -> bytes:
        own: dict[str, Any] = {
            "rkey": rkey,
            "invalidate_rkey": rkey,
            "src_qpn": qpn,
            "remote_va": 1 << 33,
            "dma_length": 9,
        }
        return build_frame(
            opcode.value,
            src=ends[0],
            dst=ends[1],
            payload=payload if opcode.payload else b"",
            vlan=vlan,
            roce_version=version,
            dest_qpn=qpn,
            psn=psn,
            **{name: value for name, value in own.items() if name in names},
        )

    frame = made(old, qpn, psn, 5)
    tags = 0 if vlan is None else 4 if isinstance(vlan, int) else 8
    network = 14 + tags + (40 if version == 1 or family == 6 else 20) + (8 if version == 2 else 0)
    place = FrameLayout(14 + tags, network, len(frame), 6 if version == 1 else family, version)
    shift = 0xFFFFF0
    changes = Changes(
        dict(zip(old, new, strict=True)),
        qpns={(None, qpn): qpn ^ 2},
        psns={(None, -1): shift},
        rkeys={5: 0xFFFF0000},
    )
    assert rewrite(frame, place, changes) == made(new, qpn ^ 2, (psn + shift) & 0xFFFFFF, 0xFFFF0000)


@given(
    st.sampled_from([4, 6]),
    st.binary(max_size=65),
    st.sampled_from(["right", "zero"]) | st.integers(1, 0xFFFF),
    st.sampled_from(["right", "zero"]) | st.integers(1, 0xFFFF),
    st.none() | st.integers(0, 0xFFFFFFFF),
)
def test_a_checksum_that_was_right_is_right_and_a_wrong_one_wrong(
    family: int, payload: bytes, ip_sum: str | int, udp_sum: str | int, icrc: int | None
) -> None:
    """What is right, Scapy says."""
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6

    old = ("10.0.0.1", "10.0.0.2") if family == 4 else ("fd00::1", "fd00::2")
    new = ("172.16.9.9", "192.0.2.1") if family == 4 else ("2001:db8::5", "fe80::9")
    network = 20 if family == 4 else 40
    layer = IP if family == 4 else IPv6

    def with_sums(src: str, dst: str, psn: int) -> tuple[bytearray, int, int]:
        """The packet with both sums right, and both."""
        packet = bytearray(
            build_packet("RC_SEND_ONLY", src=src, dst=dst, dest_qpn=5, psn=psn, payload=payload, icrc=icrc)
        )
        whole = layer(bytes(packet))
        del whole[UDP].chksum
        if family == 4:
            del whole[IP].chksum
        built = layer(bytes(whole))
        return packet, built.chksum if family == 4 else 0, built[UDP].chksum

    def put(packet: bytearray, sums: tuple[int, int]) -> bytes:
        if family == 4:
            packet[10:12] = sums[0].to_bytes(2, "big")
        packet[network + 6 : network + 8] = sums[1].to_bytes(2, "big")
        return bytes(14) + bytes(packet)

    packet, right_ip, right_udp = with_sums(*old, 7)
    said = tuple(
        right if what == "right" else 0 if what == "zero" else int(what)
        for what, right in ((ip_sum, right_ip), (udp_sum, right_udp))
    )
    frame = put(packet, (said[0], said[1]))
    place = FrameLayout(14, 14 + network + 8, len(frame), family, 2)
    changes = Changes(dict(zip(old, new, strict=True)), psns={(None, -1): 3})
    found = rewrite(frame, place, changes)
    body = found[14:]
    again = layer(body)
    del again[UDP].chksum
    if family == 4:
        found_ip = int.from_bytes(body[10:12], "big")
        del again[IP].chksum
        right = layer(bytes(again)).chksum
        assert (found_ip == right) == (said[0] in (0, right_ip))
    found_udp = int.from_bytes(body[network + 6 : network + 8], "big")
    right = layer(bytes(again))[UDP].chksum
    if said[1] == 0:
        assert found_udp == 0
    elif said[1] == right_udp:
        assert found_udp == right
    else:
        assert found_udp not in (0, right)
    assert again.src == new[0]
    assert again.dst == new[1]


def test_a_packet_without_an_ethernet_header_gets_one(tmp_path: Path) -> None:
    packet = build_packet("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=7, payload=b"abcd")
    path = written(tmp_path, [(packet, START)], linktype=101)
    ((frame, _),) = replayed(path, Changes({"10.0.0.1": "10.0.0.3"}))
    assert frame == build_frame("RC_SEND_ONLY", src="10.0.0.3", dst="10.0.0.2", dest_qpn=7, payload=b"abcd")


# ---------------------------------------------------------------------- which, and when


def send(psn: int, **fields: Any) -> bytes:
    return build_frame("RC_SEND_ONLY", src="127.0.0.1", dst="127.0.0.1", dest_qpn=7, psn=psn, **fields)


def test_what_cannot_be_sent_as_it_was_is_left_out_and_counted(tmp_path: Path) -> None:
    whole = send(1, payload=bytes(100))
    frames = [Frame(whole, START), Frame(whole[:80], START, len(whole)), Frame(bytes(60), START)]
    frames.append(Frame(send(2, payload=bytes(100), fragment=0x2000), START))
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(frames, unit="ns"))
    done = run("replay", path, "-w", tmp_path / "y.pcap")
    assert done.stderr == "left out: 1 not RoCE, 1 a fragment, 1 cut by the snaplen\n"
    assert frames_of(tmp_path / "y.pcap") == [(whole, START)]


def test_a_filter_says_which(pcaps: Path, tmp_path: Path) -> None:
    path = pcaps / "ping-write-clean.pcap"
    run("replay", path, "--filter", "src == 10.9.0.1 and RETH", "-w", tmp_path / "y.pcapng")
    packets = rocekit.analyze(tmp_path / "y.pcapng").packets
    assert len(packets) == 10
    assert set(packets.opcode.tolist()) <= {6, 10}


@pytest.mark.parametrize(
    ("options", "times"),
    [
        ((), [0, 1000, 1000, 5000]),
        (("--speed", "2x"), [0, 500, 500, 2500]),
        (("--speed", "0.1"), [0, 10_000, 10_000, 50_000]),
        (("--speed", "max"), [0, 0, 0, 0]),
        (("--rate", "1M"), [0, 1000, 2000, 3000]),
    ],
)
def test_the_pace_is_the_capture_s_or_another(
    options: tuple[str, ...], times: list[int], tmp_path: Path
) -> None:
    """A clock that went back makes no packet earlier than the one before it."""
    path = written(tmp_path, [(send(i), START + at) for i, at in enumerate((0, 1000, 500, 5000))])
    run("replay", path, *options, "-w", tmp_path / "y.pcap")
    assert [at - START for _, at in frames_of(tmp_path / "y.pcap")] == times


# ---------------------------------------------------------------------- the command


def run(*words: object, status: int = 0, given: bytes | None = None) -> Result:
    done = CliRunner().invoke(cli.rocekit, [str(word) for word in words], input=given)
    assert done.exit_code == status, done.output
    return done


def test_without_a_word_more_nothing_is_sent(pcaps: Path) -> None:
    done = run("replay", pcaps / "ping-write-clean.pcap", "--ip", "10.9.0.2=192.0.2.1")
    assert "10.9.0.1 → 192.0.2.1" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("… and ")
    # CM datagrams go both ways, so both addresses are named.
    assert done.stderr == (
        "185 packets, 176,290 bytes in 941.7 ms, to 10.9.0.1, 192.0.2.1, not sent: "
        "--send IFACE sends, -w FILE writes.\n"
    )


def test_standard_input_is_a_capture_too(tmp_path: Path) -> None:
    path = written(tmp_path, [(send(1), START)])
    run("replay", "-", "--psn", "+5", "-w", tmp_path / "y.pcap", given=path.read_bytes())
    assert frames_of(tmp_path / "y.pcap") == [(send(6), START)]


@pytest.mark.parametrize(
    "options",
    [
        ("--ip", "10.9.0.1"),
        ("--ip", "10.9.0.1=here"),
        ("--ip", "10.9.0.1=fd00::1"),
        ("--mac", "02:00=02:00:00:00:00:01"),
        ("--qpn", "0x11=0x1000000"),
        ("--qpn", "here/0x11=1"),
        ("--psn", "much"),
        ("--rkey", "1=x"),
        ("--va", "up"),
        ("--speed", "0"),
        ("--speed", "fast"),
        ("--rate", "fast"),
        ("--filter", "psn =="),
        ("--send", "lo", "-w", "x.pcap"),
    ],
)
def test_a_wrong_option_is_a_wrong_command_line(options: tuple[str, ...], pcaps: Path) -> None:
    run("replay", pcaps / "ping-write-clean.pcap", *options, status=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ip", "10.9.0.7=10.0.0.1"), "no packet has the address 10.9.0.7; there is 10.9.0.1, 10.9.0.2"),
        (("--filter", "opcode == CNP"), "no packets to send"),
        (("--send", "nowhere"), "no interface nowhere; there is lo"),
        (("--send", "lo", "--ip", "10.9.0.2=192.0.2.1"), "--allow-remote "),
    ],
)
def test_what_cannot_be_done_is_one_line(options: tuple[str, ...], words: str, pcaps: Path) -> None:
    done = run("replay", pcaps / "ping-write-clean.pcap", *options, status=1)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rocekit: error: ")
    assert words in last


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--qpn", "0x999=1"), "--qpn: no packet names a QP 0x999; there is 0x"),
        (("--qpn", "10.9.0.7/0x12=1"), "--qpn: no packet names a QP 0x12 at 10.9.0.7; there is none"),
        (("--psn", "0x888=+5"), "--psn: no packet names a QP 0x888"),
        (("--rkey", "0x7777=1"), "--rkey: no packet has the rkey 0x7777; there is 0x"),
        (("--mac", "02:00:00:00:77:77=02:00:00:00:00:01"), "no packet has the MAC address 02:00:00:00:77:77"),
    ],
)
def test_what_no_packet_has_is_refused_and_nothing_is_written(
    options: tuple[str, ...], words: str, pcaps: Path, tmp_path: Path
) -> None:
    done = run("replay", pcaps / "ping-write-clean.pcap", *options, "-w", tmp_path / "y.pcap", status=1)
    assert words in done.stderr.splitlines()[-1]
    assert not (tmp_path / "y.pcap").exists()


def test_a_qp_that_only_a_cm_message_names_is_one(pcaps: Path, tmp_path: Path) -> None:
    """Nothing else of the connection is chosen: the REQ names its sender's QP."""
    capture = pcaps / "rping-clean.pcap"
    only = ("--filter", "frame == 1", "-w", tmp_path / "y.pcap")
    assert run("replay", capture, "--qpn", "10.9.0.1/0x17=0x99", *only)
    assert "no packet names" in run("replay", capture, "--qpn", "0x18=0x99", *only, status=1).stderr


def test_what_could_be_read_of_a_damaged_capture_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path, [(send(1), START), (send(2), START)])
    path.write_bytes(path.read_bytes()[:-20])
    done = run("replay", path, "-w", tmp_path / "y.pcap", status=1)
    assert "what could be read was used" in done.stderr
    assert frames_of(tmp_path / "y.pcap") == [(send(1), START)]


@pytest.fixture
def loopback(root: None) -> Iterator[socket.socket]:
    """What comes in on loopback."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as tap:
        tap.bind(("lo", 0x0800))
        tap.settimeout(10)
        yield tap


@pytest.mark.parametrize("how", [("--speed", "1000x"), ("--rate", "5k"), ("--speed", "max")])
def test_what_is_sent_arrives(how: tuple[str, ...], loopback: socket.socket, tmp_path: Path) -> None:
    sport = 49152 + os.getpid() % 16384  # tests run in several processes, and all see this interface
    path = written(tmp_path, [(send(i, sport=sport), START + i * 1000) for i in range(3)])
    done = run("replay", path, "--psn", "+10", *how, "--send", "lo")
    assert done.stdout.startswith("3 packets, ")
    found: list[bytes] = []
    while len(found) < 3:
        frame, address = loopback.recvfrom(1 << 16)
        if frame[34:38] == struct.pack("!HH", sport, 4791) and address[2] == 0:  # PACKET_HOST: it came
            found.append(frame)
    none = "00:00:00:00:00:00"
    assert found == [send(i + 10, sport=sport, src_mac=none, dst_mac=none) for i in range(3)]


def test_a_capture_of_nothing_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, [])
    assert "no packets to send" in run("replay", path, status=1).stderr
