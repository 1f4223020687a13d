"""What a capture has beside RoCE packets: said first where it has none, and where RoCE was not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from rocekit.files.frames import linktype_name
from rocekit.packets.decoder import Counts
from rocekit.packets.other_frames import CUT, ERF_INFINIBAND, FRAGMENTS, NOT_READ, NOT_ROCE, UNDECODED
from rocekit.wire.other_protocols import UDP_PORTS
from rocekit.wire.words import plural

NOTHING: Final = "No RoCE v2 packets: nothing to judge."
_CUT_PACKETS: Final = "UDP 4791 cut before the end of the BTH"
_SHOWN: Final = 8
_WAYS: Final = 4
_INFINIBAND: Final = 247
_ULTRA_ETHERNET: Final = UDP_PORTS[4793]

_HARDWARE: Final = (
    "A capture on a host has no RoCE of an RDMA NIC: these packets bypass the kernel. Mirror the switch port "
    "(SPAN, ERSPAN), or use the NIC's sniffer (mlx5: `tcpdump -i mlx5_0` with a libpcap that knows RDMA "
    "devices, or `ethtool --set-priv-flags IFACE sniffer on`; native InfiniBand: `ibdump`)."
)
_COUNTERS: Final = "`rocekit trace IFACE --counters` says whether the RDMA device moved packets."
#: What to do about kinds of frames, the most certain first.
_STEPS: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (
        UNDECODED,
        "RoCE is inside a tunnel that was not decoded: capture behind the tunnel's end, or cut the outer "
        "headers off (`editcap -C BYTES IN OUT`).",
    ),
    (
        frozenset({_CUT_PACKETS, CUT, *(kind for kind in NOT_READ if ", cut " in kind)}),
        "Frames are cut too short: capture at least 128 bytes of each (`tcpdump -s 128`; a mirror may have a "
        "cut length of its own).",
    ),
    (
        frozenset({"MACsec"}),
        "MACsec encrypts whole frames: capture where they are decrypted (on the host's MACsec interface, or "
        "at a port without MACsec).",
    ),
    (
        frozenset({"IPsec ESP", "IPsec behind NAT"}),
        "IPsec encrypts packets: capture where they are not encrypted.",
    ),
    (
        frozenset({FRAGMENTS}),
        "Later fragments have no ports, and RoCE in fragments is not read: set the path MTU so that packets "
        "fit into the interface's MTU.",
    ),
    (frozenset({_ULTRA_ETHERNET}), "UDP port 4793 is Ultra Ethernet's: rocekit reads RoCE only."),
    (
        frozenset({NOT_ROCE}),
        "The data at UDP port 4791 is probably another program's: no ICRC is valid, and most BTHs are "
        "impossible.",
    ),
    (frozenset({"TCP"}), "RDMA over TCP is iWARP, which rocekit does not read."),
)


class Contents(NamedTuple):
    """What was captured, by kind.

    Args:
        counts: of the decoder.
        skipped: frames whose link type cannot be read, by link type.
        live: whether this is an interface, whose filter passes only what may be RoCE.
        silent: ways (source, destination) of which there is no packet, though connections have some of the
            opposite way.
    """

    counts: Counts
    skipped: Mapping[int, int] = MappingProxyType({})
    live: bool = False
    silent: Sequence[tuple[str, str]] = ()

    @property
    def is_blank(self) -> bool:
        """Whether there is no RoCE packet whose BTH can be read: nothing can be judged."""
        return self.counts.roce_packets <= self.counts.cut_packets

    @property
    def kinds(self) -> dict[str, int]:
        """Frames that are no RoCE packets by kind, the most frequent first."""
        found = dict(self.counts.others)
        for linktype, count in self.skipped.items():
            found[linktype_name(linktype)] = count
        return _largest_first(found)

    @property
    def not_read(self) -> dict[str, int]:
        """Frames that have RoCE inside, or may have it, and were not read, by kind."""
        found = {kind: count for kind, count in self.kinds.items() if kind in NOT_READ}
        if self.counts.cut_packets:
            found[_CUT_PACKETS] = self.counts.cut_packets
        return _largest_first(found)

    @property
    def next_step(self) -> str | None:
        """What to do where nothing can be judged, or where RoCE was not read; None where all was read."""
        if not self.is_blank and not self.not_read:
            return None
        return " ".join(self._steps())

    def _steps(self) -> Iterator[str]:
        blank = self.is_blank
        there = {*self.kinds, *self.not_read} if blank else {*self.not_read}
        for kinds, step in _STEPS:
            if kinds & there:
                yield step
        if blank and (_INFINIBAND in self.skipped or ERF_INFINIBAND in there):
            yield "Native InfiniBand is not RoCE: rocekit does not read it."
        if blank and not there & UNDECODED and _CUT_PACKETS not in there:
            yield _HARDWARE
            if self.live:
                yield _COUNTERS

    def refusal(self, purpose: str) -> str | None:
        """Why there is nothing to do for a purpose, such as ``explain``; None if there are RoCE packets."""
        if not self.is_blank:
            return None
        return f"{NOTHING.replace('judge', purpose)} {self.held()} {self.next_step}"

    def held(self, when: str = "") -> str:
        """What a capture without RoCE packets holds.

        Args:
            when: the capture's duration and time, in words.
        """
        frames = self.counts.frames + sum(self.skipped.values())
        kinds = self.kinds
        if self.counts.roce_packets:
            kinds = _largest_first(kinds | {_CUT_PACKETS: self.counts.cut_packets})
        if not frames:
            return "No frame came that may be RoCE." if self.live else "The capture has no frames."
        return f"{plural(frames, 'frame')}{when}: {_listed(kinds)}."

    @property
    def notice(self) -> str | None:
        """What was not read of a capture that has RoCE packets too."""
        unread = self.not_read
        if self.is_blank or not unread:
            return None
        count = sum(unread.values())
        most = ", more than were read" if self.mostly_unread else ""
        return (
            f"Not judged: {plural(count, 'frame')} that may be RoCE and could not be read{most}: "
            f"{_listed(unread)}."
        )

    @property
    def one_direction(self) -> str | None:
        """That connections have packets of one direction only, and what follows; None if none has."""
        if self.is_blank or not self.silent:
            return None
        ways = [f"from {src} to {dst}" for src, dst in self.silent[:_WAYS]]
        if len(self.silent) > _WAYS:
            ways.append(f"of {len(self.silent) - _WAYS:,} more pairs of hosts")
        return (
            f"One direction only: no packet {', nor '.join(ways)}. Either the mirror shows one direction, or "
            "the other one takes another path, or that host sent nothing. What only its packets show is "
            "unknown."
        )

    @property
    def mostly_unread(self) -> bool:
        """Whether more frames that may be RoCE were not read than RoCE packets were."""
        return sum(self.not_read.values()) > self.counts.roce_packets - self.counts.cut_packets

    def to_dict(self) -> dict[str, Any]:
        """As keys of the JSON's ``capture``."""
        return {
            "other_frames": self.kinds,
            "not_read": self.not_read,
            "next_step": self.next_step,
            "one_direction": [{"src": src, "dst": dst} for src, dst in self.silent],
        }


def _largest_first(kinds: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0])))


def _listed(kinds: Mapping[str, int]) -> str:
    """``236 VXLAN, 30 TCP``: the most frequent kinds with their counts."""
    words = [f"{count:,} {kind}" for kind, count in kinds.items()]
    if len(words) > _SHOWN:
        rest = sum(list(kinds.values())[_SHOWN - 1 :])
        words = [*words[: _SHOWN - 1], f"{rest:,} of other kinds"]
    return ", ".join(words)
