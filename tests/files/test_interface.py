"""The kernel filter lets through what may be RoCE; a live capture is what a file of the same frames would be.

Live tests run in a network namespace of their own, over a veth pair that ends with it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from encapsulated import STEPS, Step, around
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from rocekit.errors import CaptureError
from rocekit.files import interface
from rocekit.files.interface import HEADERS, LiveCapture
from rocekit.files.interface_filter import Instruction, every_frame, pack, roce_filter

# -- the filter, run by an interpreter written from the BPF paper


class OutOfBounds(Exception):
    """The program read behind the end of the frame: the kernel then rejects it."""


def run_filter(program: list[Instruction], frame: bytes) -> int:
    """Bytes of ``frame`` that the kernel would keep."""
    accumulator = index = 0

    def load(at: int, size: int) -> int:
        if at + size > len(frame):
            raise OutOfBounds
        return int.from_bytes(frame[at : at + size], "big")

    here = 0
    try:
        while True:
            opcode, true, false, constant = program[here]
            here += 1
            kind, operation, indexed = opcode & 7, opcode & 0xF0, opcode & 0x08
            if kind == 0:  # LD, absolute (0x20) or from the index register on (0x40)
                size = {0x00: 4, 0x08: 2, 0x10: 1}[opcode & 0x18]
                if opcode & 0xE0 == 0x80:
                    accumulator = len(frame)
                else:
                    accumulator = load(constant + (index if opcode & 0xE0 == 0x40 else 0), size)
            elif kind == 1:  # LDX
                assert opcode & 0xE0 == 0
                index = constant
            elif kind == 4:  # ALU
                operand = index if indexed else constant
                change = {
                    0x00: accumulator + operand,
                    0x10: accumulator - operand,
                    0x50: accumulator & operand,
                    0x60: accumulator << operand,
                }
                accumulator = change[operation] & 0xFFFFFFFF
            elif kind == 5:  # JMP
                operand = index if indexed else constant
                met = {
                    0x10: accumulator == operand,
                    0x30: accumulator >= operand,
                    0x40: bool(accumulator & operand),
                }[operation]
                here += true if met else false
            elif kind == 6:  # RET
                return min(constant, len(frame))
            else:
                assert opcode in (0x07, 0x87)  # TAX, TXA
                if opcode == 0x07:
                    index = accumulator
                else:
                    accumulator = index
    except OutOfBounds:
        return 0


def ethernet(ethertype: int, payload: bytes, vlans: tuple[int, ...] = ()) -> bytes:
    tags = b"".join(struct.pack(">HH", tpid, 100 + n) for n, tpid in enumerate(vlans))
    return b"\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02" + tags + struct.pack(">H", ethertype) + payload


def udp(port: int, size: int = 40) -> bytes:
    return struct.pack(">HHHH", 49152, port, 8 + size, 0) + bytes(size)


def ipv4(payload: bytes, *, protocol: int = 17, options: int = 0, fragment: int = 0) -> bytes:
    length = 20 + options + len(payload)
    addresses = bytes([10, 0, 0, 1, 10, 0, 0, 2])
    return (
        struct.pack(">BBHHHBBH", 0x45 + options // 4, 0, length, 1, fragment, 64, protocol, 0)
        + addresses
        + b"\x01" * options
        + payload
    )


def ipv6(payload: bytes, following: int = 17) -> bytes:
    addresses = ipaddress.ip_address("fd00::1").packed + ipaddress.ip_address("fd00::2").packed
    return struct.pack(">IHBB", 6 << 28, len(payload), following, 64) + addresses + payload


def extension(following: int, payload: bytes) -> bytes:
    return bytes([following, 0]) + bytes(6) + payload


MORE_FRAGMENTS = 0x2000

IP_PACKETS = {
    "RoCE v2 over IPv4": (True, 0x0800, ipv4(udp(4791))),
    "IPv4 with options": (True, 0x0800, ipv4(udp(4791), options=24)),
    "first fragment": (True, 0x0800, ipv4(udp(4791), fragment=MORE_FRAGMENTS)),
    "later fragment of UDP, which shows no port": (True, 0x0800, ipv4(bytes(64), fragment=185)),
    "RoCE v2 over IPv6": (True, 0x86DD, ipv6(udp(4791))),
    "hop-by-hop header": (True, 0x86DD, ipv6(extension(17, udp(4791)), 0)),
    "two extension headers": (True, 0x86DD, ipv6(extension(60, extension(17, udp(4791))), 43)),
    "fragment header": (True, 0x86DD, ipv6(extension(17, udp(4791)), 44)),
    "UDP to another port": (False, 0x0800, ipv4(udp(4792))),
    "UDP from the port, to another": (False, 0x0800, ipv4(struct.pack(">HHHH", 4791, 53, 48, 0) + bytes(40))),
    "another port behind options that hold 4791": (
        False,
        0x0800,
        ipv4(udp(53), options=4)[:20] + b"\x12\xb7" * 2,
    ),
    "TCP to port 4791": (False, 0x0800, ipv4(udp(4791), protocol=6)),
    "first fragment to another port": (False, 0x0800, ipv4(udp(53), fragment=MORE_FRAGMENTS)),
    "later fragment of TCP": (False, 0x0800, ipv4(bytes(64), protocol=6, fragment=185)),
    "IPv6 to another port": (False, 0x86DD, ipv6(udp(53))),
    "IPv6 TCP": (False, 0x86DD, ipv6(udp(4791), 6)),
    "multicast listener report": (False, 0x86DD, ipv6(extension(58, bytes(30)), 0)),
    "no header behind IPv6": (False, 0x86DD, ipv6(b"", 59)),
}
ETHERNET_FRAMES = {
    "RoCE v1": (True, 0x8915, bytes(60)),
    "pause": (True, 0x8808, b"\x01\x01" + bytes(44)),
    "ARP": (False, 0x0806, bytes(46)),
    "LLDP": (False, 0x88CC, bytes(46)),
    "length instead of a type": (False, 46, bytes(46)),
} | IP_PACKETS


@pytest.mark.parametrize(
    "vlans", [(), (0x8100,), (0x88A8,), (0x88A8, 0x8100), (0x9100, 0x8100), (0x8100, 0x8100)]
)
@pytest.mark.parametrize("name", ETHERNET_FRAMES)
def test_filter_lets_through_what_may_be_roce_tagged_or_not(name: str, vlans: tuple[int, ...]) -> None:
    wanted, ethertype, payload = ETHERNET_FRAMES[name]
    frame = ethernet(ethertype, payload, vlans)
    assert run_filter(roce_filter(65535), frame) == (len(frame) if wanted else 0)
    assert run_filter(roce_filter(50), frame) == (50 if wanted else 0)


@pytest.mark.parametrize("name", IP_PACKETS)
def test_filter_of_a_tunnel_begins_at_the_ip_header(name: str) -> None:
    wanted, _, packet = IP_PACKETS[name]
    assert run_filter(roce_filter(65535, ethernet=False), packet) == (len(packet) if wanted else 0)


def test_filter_passes_over_two_tags_and_no_more() -> None:
    frame = ethernet(0x0800, ipv4(udp(4791)), (0x8100, 0x8100, 0x8100))
    assert run_filter(roce_filter(65535), frame) == 0


def bth(qpn: int, rest: int = 300) -> bytes:
    return b"\x64\0\xff\xff\0" + qpn.to_bytes(3, "big") + bytes(4 + rest)


def over_udp(payload: bytes) -> bytes:
    return struct.pack(">HHHH", 49152, 4791, 8 + len(payload), 0) + payload


CARRIERS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "IPv4": (0x0800, lambda packet: ipv4(over_udp(packet))),
    "IPv4 with options": (0x0800, lambda packet: ipv4(over_udp(packet), options=40)),
    "IPv6": (0x86DD, lambda packet: ipv6(over_udp(packet))),
    "RoCE v1": (0x8915, lambda packet: ipv6(packet, 0x1B)),
}


@pytest.mark.parametrize("vlans", [(), (0x8100,), (0x88A8, 0x8100)])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_filter_keeps_management_datagrams_whole_and_of_others_the_headers(
    carrier: str, vlans: tuple[int, ...]
) -> None:
    ethertype, around = CARRIERS[carrier]
    for qpn, kept in {0: 400, 1: 400, 2: 130, 3: 130, 0x10001: 130, 0xFFFFFF: 130}.items():
        frame = ethernet(ethertype, around(bth(qpn, 500)), vlans)
        assert run_filter(roce_filter(130, management=400), frame) == kept, qpn
        assert run_filter(roce_filter(130), frame) == 130


@pytest.mark.parametrize("carrier", CARRIERS)
def test_filter_that_looks_for_management_datagrams_lets_short_packets_through(carrier: str) -> None:
    ethertype, around = CARRIERS[carrier]
    frame = ethernet(ethertype, around(bth(17, 0)))
    for length in range(len(frame) - 12, len(frame) + 1):
        assert run_filter(roce_filter(200, management=400), frame[:length]) == length


def test_filter_keeps_whole_what_stands_behind_extension_headers() -> None:
    frame = ethernet(0x86DD, ipv6(extension(17, over_udp(bth(1))), 60))
    assert run_filter(roce_filter(130, management=65535), frame) == len(frame)


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_filter_lets_tunnels_through_on_request(step: Step) -> None:
    frame = around(ipv4(over_udp(bth(17))), step)
    known = step.name in ("ethernet", "vlan", "qinq")
    assert run_filter(roce_filter(65535, tunnels=True), frame) == len(frame)
    assert run_filter(roce_filter(65535), frame) == (len(frame) if known else 0)
    if not known and step.name != "destination-options":
        assert run_filter(roce_filter(130, management=65535, tunnels=True), frame) == min(len(frame), 512)
        assert run_filter(roce_filter(130, tunnels=True), frame) == 130
        assert run_filter(roce_filter(65535, ethernet=False, tunnels=True), frame[14:]) == (
            len(frame) - 14
            if step.gives == "ip"
            else run_filter(roce_filter(65535, ethernet=False), frame[14:])
        )


@pytest.mark.parametrize("name", ETHERNET_FRAMES)
def test_filter_with_tunnels_lets_through_nothing_else(name: str) -> None:
    wanted, ethertype, payload = ETHERNET_FRAMES[name]
    frame = ethernet(ethertype, payload)
    assert run_filter(roce_filter(65535, tunnels=True), frame) == (len(frame) if wanted else 0)


def test_filter_of_everything_only_cuts() -> None:
    assert run_filter(every_frame(64), bytes(100)) == 64


@given(st.binary(max_size=100), st.booleans())
def test_filter_ends_on_any_bytes(frame: bytes, on_ethernet: bool) -> None:
    kept = run_filter(roce_filter(65535, ethernet=on_ethernet), frame)
    assert kept in (0, len(frame))
    assert run_filter(roce_filter(65535, ethernet=on_ethernet, management=65535), frame) == kept


@pytest.mark.parametrize("management", [None, 65535])
@pytest.mark.parametrize("on_ethernet", [True, False])
@pytest.mark.parametrize("tunnels", [True, False])
def test_filter_is_one_the_kernel_takes(on_ethernet: bool, management: int | None, tunnels: bool) -> None:
    program = roce_filter(96, ethernet=on_ethernet, management=management, tunnels=tunnels)
    assert len(pack(program)) == 8 * len(program)
    assert len(program) <= 4096  # BPF_MAXINSNS
    for here, (opcode, true, false, _) in enumerate(program):
        if opcode & 7 == 5:
            assert max(true, false) <= 255
            assert here + 1 + max(true, false) < len(program)


# -- what is refused


@pytest.fixture
def nobody() -> Iterator[None]:
    """Root is nobody, who has no capabilities, for as long as the test lasts."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
        allowed = True
    except PermissionError:
        allowed = False
    if not allowed:
        yield
    if root:
        os.seteuid(0)
    if allowed:
        pytest.skip("this user may capture (CAP_NET_RAW)")


def test_an_interface_that_does_not_exist_names_those_that_do() -> None:
    present = socket.if_nameindex()[0][1]
    with pytest.raises(CaptureError, match=f"no such interface: this machine has .*{present}"):
        LiveCapture("nope0")


@pytest.mark.parametrize("name", ["", "x" * 40, "a\0b", "../lo"])
def test_names_that_no_interface_can_have_are_refused_the_same_way(name: str) -> None:
    with pytest.raises(CaptureError, match="no such interface"):
        LiveCapture(name)


def test_any_is_refused_with_the_names_to_choose_from() -> None:
    with pytest.raises(CaptureError, match=r"'any'.*\blo\b"):
        LiveCapture("any")


def test_a_snaplen_without_room_for_headers_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="snaplen"):
        LiveCapture("lo", snaplen=10)


def test_without_the_right_to_capture_the_commands_that_give_it_are_named(nobody: None) -> None:
    with pytest.raises(CaptureError) as raised:
        LiveCapture("lo")
    assert f"`sudo setcap cap_net_raw+ep {os.path.realpath(sys.executable)}`" in str(raised.value)
    assert "run with sudo" in str(raised.value)


# -- live, over a veth pair


SETUP = """
import json, socket, subprocess, sys, threading, time
from rocekit.capture import LiveCapture, PcapngWriter, open_capture
from rocekit.errors import CaptureError

def run(*command):
    subprocess.run(command, check=True)

run("ip", "link", "add", "va", "type", "veth", "peer", "name", "vb")
for name in ("va", "vb", "lo"):
    run("ip", "link", "set", name, "up")
frames = [bytes.fromhex(text) for text in json.load(sys.stdin)]
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind(("vb", 0))

def send():
    for frame in frames:
        sender.send(frame)

def collect(capture, count):
    # What a capture shows of the frames sent (of any, when none are), until there are so many.
    threading.Timer(10, capture.stop).start()
    got = []
    for batch in capture:
        got += [frame.hex() for frame in batch.frames() if frame in frames or not frames]
        if len(got) >= count:
            capture.stop()
    return got

def tell(**what):
    print(json.dumps(what))
    sys.stdout.flush()
    import os
    os._exit(0)  # do not wait for timers
"""


def in_namespace(script: str, frames: list[bytes]) -> dict[str, Any]:
    """Runs a script after SETUP in a network namespace that ends with it; what it tells."""
    probe = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "type", "veth"], capture_output=True, timeout=240
    )
    if probe.returncode:
        pytest.skip(f"no veth pair in a network namespace: {probe.stderr.decode().strip()}")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", SETUP + textwrap.dedent(script)],
        input=json.dumps([frame.hex() for frame in frames]),
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


ROCE = ethernet(0x0800, ipv4(udp(4791)))
LIVE_FRAMES = [ethernet(kind, data) for _, kind, data in ETHERNET_FRAMES.values()]
WANTED = [ethernet(kind, data) for wanted, kind, data in ETHERNET_FRAMES.values() if wanted]


@pytest.mark.usefixtures("root")
def test_live_frames_are_those_sent_that_may_be_roce_in_order_and_counted() -> None:
    told = in_namespace(
        """
        capture = LiveCapture("va")
        before = time.time_ns()
        send()
        batches = []
        threading.Timer(0.3, capture.stop).start()
        rows = []
        for batch in capture:
            rows += zip(batch.number.tolist(), batch.time_ns.tolist(), batch.caplen.tolist(),
                        batch.wirelen.tolist(), batch.linktype.tolist(), [f.hex() for f in batch.frames()])
        tell(rows=rows, before=before, after=time.time_ns(), frames=capture.frames,
             received=capture.received, dropped=capture.dropped)
        """,
        LIVE_FRAMES,
    )
    rows = told["rows"]
    assert [bytes.fromhex(row[5]) for row in rows] == WANTED
    assert [row[0] for row in rows] == list(range(1, len(WANTED) + 1))
    assert [row[2:4] for row in rows] == [[len(frame)] * 2 for frame in WANTED]
    assert {row[4] for row in rows} == {1}
    times = [row[1] for row in rows]
    assert told["before"] <= min(times) <= max(times) <= told["after"]
    assert (told["received"], told["dropped"], told["frames"]) == (len(WANTED), 0, len(WANTED))


@pytest.mark.usefixtures("root")
def test_live_what_had_arrived_at_the_end_comes_however_late_the_kernel_hands_it_over() -> None:
    told = in_namespace(
        """
        import rocekit.files.interface
        rocekit.files.interface._LAST_S = 0.0
        capture = LiveCapture("va")
        send()
        capture.stop()
        tell(frames=sum(len(batch) for batch in capture))
        """,
        LIVE_FRAMES,
    )
    assert told["frames"] == len(WANTED)


@pytest.mark.usefixtures("root")
def test_live_vlan_tags_that_the_kernel_takes_off_are_put_back() -> None:
    kinds = [(0x8100,), (0x88A8,), (0x88A8, 0x8100), (0x8100, 0x8100)]
    tagged = [ethernet(0x0800, ipv4(udp(4791, size)), vlans) for size, vlans in enumerate(kinds * 2)]
    told = in_namespace(
        "capture = LiveCapture('va'); send(); tell(got=collect(capture, len(frames)))", tagged
    )
    assert [bytes.fromhex(frame) for frame in told["got"]] == tagged


@pytest.mark.usefixtures("root")
def test_live_tunnels_come_on_request() -> None:
    frames = [around(ipv4(over_udp(bth(17))), step) for step in STEPS]
    told = in_namespace(
        """
        capture = LiveCapture("va", tunnels=True)
        send()
        tell(got=collect(capture, len(frames)))
        """,
        frames,
    )
    assert [bytes.fromhex(frame) for frame in told["got"]] == frames


@pytest.mark.usefixtures("root")
def test_live_snaplen_cuts_and_all_frames_takes_all() -> None:
    frames = [ethernet(0x0800, ipv4(udp(4791, 1000))), ethernet(0x0806, bytes(46))]
    told = in_namespace(
        """
        short, everything = LiveCapture("va", snaplen=64), LiveCapture("va", all_frames=True)
        send()
        batch = next(batch for batch in short if len(batch))
        everything = collect(everything, len(frames))
        tell(caplen=batch.caplen.tolist(), wirelen=batch.wirelen.tolist(), everything=everything)
        """,
        frames,
    )
    assert (told["caplen"], told["wirelen"]) == ([64], [1042])
    assert [bytes.fromhex(frame) for frame in told["everything"]] == frames


@pytest.mark.usefixtures("root")
def test_live_headers_only_keeps_management_datagrams_whole() -> None:
    frames = [ethernet(0x0800, ipv4(over_udp(bth(qpn, 500)))) for qpn in (1, 17)]
    told = in_namespace(
        """
        capture = LiveCapture("va", snaplen=None)
        send()
        batch = next(batch for batch in capture if len(batch))
        tell(caplen=batch.caplen.tolist(), wirelen=batch.wirelen.tolist(), first=batch.frame(0).hex())
        """,
        frames,
    )
    assert told["caplen"] == [len(frames[0]), HEADERS]
    assert told["wirelen"] == [len(frames[0])] * 2
    assert bytes.fromhex(told["first"]) == frames[0]


@pytest.mark.usefixtures("root")
def test_live_gives_empty_batches_while_nothing_comes_and_ends_with_what_came() -> None:
    told = in_namespace(
        """
        capture = LiveCapture("va")
        batches = iter(capture)
        quiet = [len(next(batches)) for _ in range(3)]
        send()
        capture.stop()
        tell(quiet=quiet, after=[len(batch) for batch in batches])
        """,
        [ROCE] * 5,
    )
    assert told["quiet"] == [0, 0, 0]
    assert sum(told["after"]) == 5


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("how", "words"), [("del", "the interface is gone"), ("set", "the interface went down")]
)
def test_live_an_interface_that_goes_away_ends_the_capture_after_what_came(how: str, words: str) -> None:
    told = in_namespace(
        f"""
        capture = LiveCapture("va")
        send()
        run("ip", "link", "{how}", "va", *(["down"] if "{how}" == "set" else []))
        count, error = 0, None
        try:
            for batch in capture:
                count += len(batch)
        except CaptureError as raised:
            error = str(raised)
        tell(count=count, error=error)
        """,
        [ROCE] * 5,
    )
    assert told["count"] == 5
    assert words in told["error"]


@pytest.mark.usefixtures("root")
def test_live_interfaces_that_cannot_be_captured_say_why() -> None:
    told = in_namespace(
        """
        run("ip", "link", "add", "down0", "type", "veth", "peer", "name", "down1")
        try:
            LiveCapture("down0")
        except CaptureError as raised:
            tell(error=str(raised))
        """,
        [],
    )
    assert "is down: `sudo ip link set down0 up`" in told["error"]


@pytest.mark.usefixtures("root")
def test_live_loopback_shows_each_packet_once() -> None:
    told = in_namespace(
        """
        capture = LiveCapture("lo")
        program = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for number in range(5):
            program.sendto(bytes([number]) * 30, ("127.0.0.1", 4791))
        tell(got=[frame[-60:-58] for frame in collect(capture, 5)])
        """,
        [],
    )
    assert told["got"] == ["00", "01", "02", "03", "04"]


@pytest.mark.usefixtures("root")
def test_live_frames_written_while_capturing_are_the_same_when_read(tmp_path: Path) -> None:
    path = tmp_path / "live.pcapng"
    told = in_namespace(
        f"""
        capture = LiveCapture("va")
        writer = PcapngWriter({str(path)!r}, capture.linktype, interface_name=capture.name)
        send()
        live = []
        threading.Timer(0.3, capture.stop).start()
        for batch in capture:
            writer.write_batch(batch)
            live += zip(batch.time_ns.tolist(), [frame.hex() for frame in batch.frames()])
        writer.write_statistics(capture.received, capture.dropped)
        writer.close()
        reader = open_capture({str(path)!r})
        read = [row for batch in reader
                for row in zip(batch.time_ns.tolist(), [frame.hex() for frame in batch.frames()])]
        tell(same=read == live, count=len(read), dropped=reader.dropped)
        """,
        WANTED,
    )
    assert told == {"same": True, "count": len(WANTED), "dropped": 0}


@pytest.mark.usefixtures("root")
def test_live_a_full_ring_drops_and_says_how_many() -> None:
    told = in_namespace(
        """
        from rocekit.files import interface
        interface._WHOLE_RING_BYTES = 4 << 20
        capture = LiveCapture("va")
        sent = 20000
        for _ in range(sent):
            sender.send(frames[0])
        count = 0
        capture.stop()
        for batch in capture:
            count += len(batch)
        tell(count=count, received=capture.received, dropped=capture.dropped)
        """,
        [ethernet(0x0800, ipv4(udp(4791, 1000)))],
    )
    assert told["dropped"] > 10_000
    assert told["received"] == told["count"] + told["dropped"] == 20_000


@pytest.mark.usefixtures("root")
def test_live_ring_goes_round_many_times_without_losing_order() -> None:
    told = in_namespace(
        """
        import struct
        from rocekit.files import interface
        interface._WHOLE_RING_BYTES = 4 << 20
        capture = LiveCapture("va")
        sent = 20000
        def blast():
            for number in range(sent):
                sender.send(frames[0][:-4] + struct.pack(">I", number))
                while number > heard[0] + 1000:
                    time.sleep(0.001)
            capture.stop()
        heard = [0]
        thread = threading.Thread(target=blast)
        thread.start()
        numbers = []
        for batch in capture:
            numbers += [int.from_bytes(frame[-4:], "big") for frame in batch.frames()]
            heard[0] = len(numbers)
        tell(ordered=numbers == sorted(set(numbers)), count=len(numbers), dropped=capture.dropped)
        """,
        [ethernet(0x0800, ipv4(udp(4791, 1000)))],
    )
    # A busy machine may let the ring run full: what is lost is counted, and the rest stays in order.
    assert told["ordered"]
    assert told["count"] + told["dropped"] == 20_000
    assert told["count"] > 10_000


@pytest.mark.usefixtures("root")
def test_live_the_smallest_ring_holds_a_second_of_small_packets_that_nobody_reads() -> None:
    told = in_namespace(
        """
        from rocekit.files import interface
        interface._WHOLE_RING_BYTES = interface._SMALL_RING_BYTES
        for _ in range(10):
            capture = LiveCapture("va")
            began = time.monotonic()
            for _ in range(20):  # each time a block is handed over, though it is not full
                for _ in range(2500):
                    sender.send(frames[0])
                time.sleep(0.055)
            took = time.monotonic() - began
            capture.stop()
            count = sum(len(batch) for batch in capture)
            if took < 4:  # a busy machine may take longer than the ring is to hold
                break
        tell(count=count, received=capture.received, dropped=capture.dropped)
        """,
        [ethernet(0x0800, ipv4(udp(4791, 100)))],
    )
    assert told == {"count": 50_000, "received": 50_000, "dropped": 0}


@pytest.mark.usefixtures("root")
def test_live_what_the_kernel_did_not_hand_over_before_the_end_is_counted_as_dropped() -> None:
    told = in_namespace(
        """
        from rocekit.files import interface
        interface._LAST_S = interface._LATE_S = 0.0
        interface._RETIRE_MS = 5000
        capture = LiveCapture("va")
        send()
        capture.stop()
        count = sum(len(batch) for batch in capture)
        send()  # after the end: not counted
        tell(count=count, received=capture.received, dropped=capture.dropped)
        """,
        WANTED,
    )
    assert told == {"count": 0, "received": len(WANTED), "dropped": len(WANTED)}


@pytest.mark.parametrize("snaplen", [64, 160, 1024, 65535, 262144])
@pytest.mark.parametrize("memory", [256 << 20, 2_012_128 << 10, 16 << 30])
def test_a_ring_has_many_blocks_on_every_machine_and_a_frame_fits_into_one(snaplen: int, memory: int) -> None:
    block, ring = interface._block_bytes(snaplen), interface._ring_bytes(snaplen, memory)
    assert block > snaplen
    assert ring % block == 0
    assert ring // block * interface._RETIRE_MS >= 1_500  # ms until it is full when every block has one frame
    assert 32 << 20 <= ring <= max(32 << 20, memory // 16)
