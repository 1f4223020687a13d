"""One capture of several pairs of hosts: real captures of two hosts, moved to other addresses, side by side.

It has a connection made by the connection manager, losses, a flow of which only one direction was captured,
and a frame that is no RoCE. Hosts are moved so that the IPv4 checksums stay right; the ICRCs are made anew.
"""

from __future__ import annotations

from pathlib import Path

from capture_bytes import Frame, pcap
from encapsulated import tag
from places import PCAPS

from rocekit.files.reader import open_capture
from rocekit.wire.icrc import icrc_bytes

#: Where the hosts 10.9.0.1 and 10.9.0.2 of these captures go.
SOURCES = {
    "rping-clean": ("10.9.0.1", "10.9.0.2"),
    "ping-write-loss-behind": ("10.8.0.1", "10.10.0.2"),
    "blast-sr-rnr": ("10.7.0.1", "10.11.0.2"),
    "ib_write_bw-4qp-loss": ("10.6.0.1", "10.12.0.2"),
}
ONE_WAY = "blast-sr-rnr"
TAGGED = "ib_write_bw-4qp-loss"
_WERE = ("10.9.0.1", "10.9.0.2")
_ARP = bytes.fromhex("ffffffffffff0200000000010806") + bytes(46)


def frames_of(name: str) -> list[Frame]:
    """The frames of a capture of the repository, moved to other addresses and to the time 0."""
    found = []
    with open_capture(PCAPS / f"{name}.pcap") as reader:
        for batch in reader:
            for i, data in enumerate(batch.frames()):
                found.append((int(batch.time_ns[i]), data, int(batch.wirelen[i])))
    first = min(time_ns for time_ns, _, _ in found)
    frames = []
    for time_ns, data, wirelen in found:
        moved = data
        for was, now in zip(_WERE, SOURCES[name], strict=True):
            moved = moved[:26] + moved[26:34].replace(_packed(was), _packed(now)) + moved[34:]
        end = 14 + int.from_bytes(moved[16:18], "big")
        moved = moved[: end - 4] + icrc_bytes(moved[14 : end - 4], 20) + moved[end:]
        if name == TAGGED:
            moved, wirelen = tag(moved, 0x8100, 5), wirelen + 4
        if name != ONE_WAY or moved[26:30] == _packed(SOURCES[name][0]):
            frames.append(Frame(moved, 1_700_000_000_000_000_000 + time_ns - first, wirelen))
    return frames


def _packed(address: str) -> bytes:
    return bytes(int(part) for part in address.split("."))


def mixed(path: Path, names: tuple[str, ...] = tuple(SOURCES)) -> Path:
    """Write the capture of all of them, in the order of time."""
    frames = [Frame(_ARP, 1_700_000_000_000_000_000), *(f for name in names for f in frames_of(name))]
    path.write_bytes(pcap(sorted(frames, key=lambda f: f.time_ns), unit="ns"))
    return path
