"""Live capture on a veth pair: how many packets `rocekit trace`, `tcpdump` and the two in a pipe drop.

    sudo .venv/bin/python benchmarks/live.py --rate 200000 --seconds 10

Makes a network namespace with a veth pair, sends generated RoCE packets at a steady rate into one end
(sendmmsg), and captures at the other: with `rocekit trace`, with `tcpdump -w /dev/null`, with
`tcpdump -w - | rocekit analyze -`, and with `rocekit top` on a terminal. Prints a row for each: packets sent,
received and dropped, and processor seconds. No packet is sent twice, because the analysis takes it for a
retransmission, which is a different load. `--packets 100000` measures that: it sends these packets again and
again. Needs root, and memory for all packets; nothing outside the namespace changes.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rocekit.craft.generate import Traffic, generate
from rocekit.files.pcap import FILE_HEADER, LARGEST_FRAME
from rocekit.files.record_loops import PCAP_COLUMNS, PCAP_RECORD, walk_pcap

ROCEKIT = str(Path(sys.executable).parent / "rocekit")
SETTLE_S = 1.0
TICK_S = 0.002


@dataclass(frozen=True)
class Row:
    """The result of one way of capturing."""

    name: str
    sent: int
    seconds: float
    received: int
    dropped: int
    cpu_s: float

    @property
    def line(self) -> str:
        rate = self.sent / self.seconds
        counts = f"{self.sent:,} | {self.received:,} | {self.dropped:,}"
        return f"| {self.name} | {rate:,.0f} | {counts} | {self.cpu_s:.1f} |"


HEAD = "| captured by | packets/s | sent | received | dropped | CPU s |\n|---|--:|--:|--:|--:|--:|"


class Sender:
    """Sends the frames of a pcap file through a packet socket, many with each system call."""

    def __init__(self, interface: str, path: Path) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self._socket.bind((interface, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._bytes = np.fromfile(path, np.uint8)
        room = len(self._bytes) // PCAP_RECORD
        headers = np.empty(PCAP_COLUMNS * room, np.int64)
        count, _ = walk_pcap(
            self._bytes.data, FILE_HEADER, len(self._bytes), False, LARGEST_FRAME, headers.data, room
        )
        places = headers[:count] - PCAP_RECORD
        # struct iovec and struct mmsghdr (64 bit): see recvmmsg(2) and readv(2).
        self._vectors = np.zeros(count, [("base", "u8"), ("length", "u8")])
        self._vectors["base"] = self._bytes.ctypes.data + PCAP_RECORD + places
        self._vectors["length"] = np.diff(np.append(places, len(self._bytes))) - PCAP_RECORD
        kinds = [("name", "u8"), ("name_length", "u8"), ("vector", "u8"), ("vectors", "u8"),
                 ("control", "u8"), ("control_length", "u8"), ("flags", "u8"), ("sent", "u8")]  # fmt: skip
        self._messages = np.zeros(count, kinds)
        self._messages["vector"] = self._vectors.ctypes.data + 16 * np.arange(count, dtype=np.uint64)
        self._messages["vectors"] = 1

    def send(self, rate: int, seconds: float) -> tuple[int, float]:
        """Send at ``rate`` packets a second; returns how many were sent, and in how many seconds."""
        many, sent, began = len(self._messages), 0, time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            due = int(now * rate) - sent
            if due <= 0:
                time.sleep(TICK_S)
                continue
            at = sent % many
            done = self._libc.sendmmsg(
                self._socket.fileno(),
                ctypes.c_void_p(self._messages.ctypes.data + 64 * at),
                min(due, many - at, 1024),
                0,
            )
            sent += max(0, done)
        return sent, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--bytes", type=int, default=1024, help="payload of the packets, a path MTU")
    parser.add_argument(
        "--packets",
        type=int,
        help="how many different packets to send, again and again; by default none is sent twice",
    )
    parser.add_argument("--pairs", type=int, default=64, help="QP pairs")
    parser.add_argument("--only", choices=tuple(WAYS), help="one way of capturing only")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        words = [sys.executable, __file__, *sys.argv[1:], "--inside"]
        sys.exit(subprocess.run(["unshare", "--net", *words], check=False).returncode)
    for command in (
        "link add send type veth peer name receive",
        "link set send up mtu 4200",
        "link set receive up mtu 4200",
        "link set lo up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    print(HEAD)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder, "x.pcap")
        packets = arguments.packets or int(arguments.rate * arguments.seconds * 1.01)
        sizes = (16 * arguments.bytes,)
        generate(path, Traffic(packets=packets, mtu=arguments.bytes, sizes=sizes, pairs=arguments.pairs))
        sender = Sender("send", path)
        path.unlink()
        for name, way in WAYS.items():
            if arguments.only in (None, name):
                print(way(sender, arguments.rate, arguments.seconds, Path(folder)).line, flush=True)


def trace(sender: Sender, rate: int, seconds: float, folder: Path) -> Row:
    """`rocekit trace`: the counts that it prints, which are the kernel's."""
    sockets = _sockets()
    with Path(folder, "output").open("wb") as output:
        process = subprocess.Popen(
            [ROCEKIT, "trace", "receive", "--format", "json"], stdout=output, stderr=subprocess.STDOUT
        )
        _wait_for_socket(sockets)
        sent, took = sender.send(rate, seconds)
        cpu_s = _end(process)
    document = json.loads(Path(folder, "output").read_text().splitlines()[-1])
    return Row("rocekit trace", sent, took, document["received"], document["dropped"], cpu_s)


def tcpdump(sender: Sender, rate: int, seconds: float, folder: Path) -> Row:
    sockets = _sockets()
    process = subprocess.Popen(
        ["tcpdump", "-i", "receive", "-w", "/dev/null"], stderr=subprocess.PIPE, text=True
    )
    _wait_for_socket(sockets)
    sent, took = sender.send(rate, seconds)
    time.sleep(SETTLE_S)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = process.stderr.read()
    return Row("tcpdump -w /dev/null", sent, took, *_counts(said), _used(process))


def piped(sender: Sender, rate: int, seconds: float, folder: Path) -> Row:
    """`tcpdump -w - | rocekit analyze -`: dropped is tcpdump's count, received and the time are rocekit's."""
    sockets = _sockets()
    first = subprocess.Popen(
        ["tcpdump", "-i", "receive", "-w", "-", "udp", "port", "4791"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with Path(folder, "output").open("wb") as output:
        second = subprocess.Popen([ROCEKIT, "analyze", "-"], stdin=first.stdout, stdout=output)
    assert first.stdout is not None
    assert first.stderr is not None
    first.stdout.close()
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(first.stderr.read() if first.stderr else ""))
    reader.start()
    _wait_for_socket(sockets)
    sent, took = sender.send(rate, seconds)
    time.sleep(SETTLE_S)
    first.send_signal(signal.SIGINT)
    reader.join()
    first.wait()
    _, dropped = _counts(said[0])
    cpu_s = _used(second)
    found = re.search(r"([\d,]+) frames?", Path(folder, "output").read_text())
    frames = -1 if found is None else int(found[1].replace(",", ""))
    return Row("tcpdump -w - \\| rocekit analyze -", sent, took, frames, dropped, cpu_s)


def top(sender: Sender, rate: int, seconds: float, folder: Path) -> Row:
    """`rocekit top` on its own terminal: the counts that it shows, dropped from its first line."""
    sockets = _sockets()
    us, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        [ROCEKIT, "top", "receive"],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
    )
    os.close(its)
    said = bytearray()

    def read() -> None:
        try:
            while part := os.read(us, 1 << 16):
                said.extend(part)
        except OSError:
            pass  # the terminal's other end is closed

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    _wait_for_socket(sockets)
    time.sleep(2 * SETTLE_S)
    sent, took = sender.send(rate, seconds)
    time.sleep(3 * SETTLE_S)
    os.write(us, b"q")
    cpu_s = _used(process)
    os.close(us)
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", bytes(said)).decode(errors="replace")
    drops = re.findall(r"([\d,]+) frames dropped by the kernel", plain)
    connections = re.findall(r"([\d,]+) connections", plain)
    name = f"rocekit top, {connections[-1] if connections else 'no'} connections"
    dropped = int(drops[-1].replace(",", "")) if drops else 0
    return Row(name, sent, took, sent - dropped, dropped, cpu_s)


WAYS = {"trace": trace, "tcpdump": tcpdump, "pipe": piped, "top": top}


def _sockets() -> int:
    """The number of packet sockets in this namespace."""
    return len(Path("/proc/net/packet").read_text().splitlines()) - 1


def _wait_for_socket(before: int, timeout_s: float = 60.0) -> None:
    """Wait until the program that was started captures."""
    end = time.monotonic() + timeout_s
    while _sockets() <= before and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(SETTLE_S)


def _counts(said: str) -> tuple[int, int]:
    found = [re.search(rf"(\d+) packets? {what}", said) for what in ("received by", "dropped by kernel")]
    received, dropped = (int(match[1]) if match else -1 for match in found)
    return received, dropped


def _end(process: subprocess.Popen[bytes]) -> float:
    time.sleep(SETTLE_S)
    process.send_signal(signal.SIGINT)
    return _used(process)


def _used(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> float:
    """Wait for a process; returns the processor seconds that it used."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
