"""Frames from a live interface: a packet socket with a ring that the kernel fills, read in place.

The ring (TPACKET_V3) is a row of blocks. The kernel fills one, hands it over when it is full or a time has
passed, and continues with the next. A batch is the blocks handed over; they are read in place and returned
when the next batch is asked for. If all blocks are full, the kernel drops frames and counts them.

Sources: Linux Documentation/networking/packet_mmap.rst, packet(7).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import select
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import Struct
from types import MappingProxyType, TracebackType

import numpy as np
from numpy.typing import NDArray

from rocekit.errors import CaptureError
from rocekit.files.frames import (
    LARGEST_FRAME,
    LINKTYPE_ETHERNET,
    LINKTYPE_RAW,
    DamageLog,
    FrameBatch,
    empty_batch,
)
from rocekit.files.interface_filter import Instruction, both, every_frame, pack, roce_filter
from rocekit.files.record_loops import walk_ring
from rocekit.wire.network import DOT1Q

# <linux/if_packet.h>, <asm-generic/socket.h>, <linux/if_ether.h>, <linux/sockios.h>
_SOL_PACKET = 263
_ADD_MEMBERSHIP, _RX_RING, _STATISTICS, _VERSION, _RESERVE, _IGNORE_OUTGOING = 1, 5, 6, 10, 12, 23
_TPACKET_V3 = 2
_PROMISCUOUS = 1
_SO_ATTACH_FILTER = 26
_ETH_P_ALL = 3
_SIOCGIFHWADDR = 0x8927

_REQUEST = Struct("=7I")  # block size, blocks, frame size, frames, retire after (ms), private size, features
_BLOCK = Struct("=8x4I")  # status, packets, place of the first, length
_BLOCK_STATUS = Struct("=I")
_BLOCK_STATUS_AT = 8
_MINE, _KERNELS = 1, 0  # TP_STATUS_USER, TP_STATUS_KERNEL
_HEADER = 48  # struct tpacket3_hdr
_VLAN_VALID, _TPID_VALID = 0x10, 0x40
_VLAN_TAG, _MACS = 4, 12

# <linux/if_arp.h>: how frames of an interface begin.
_ETHERNET_TYPES = frozenset({1, 772})  # Ethernet, loopback
_RAW_IP_TYPES = frozenset({512, 519, 768, 769, 776, 778, 823, 65534})  # PPP, raw IP, tunnels, none
_INFINIBAND_TYPE = 32

# A block is used up after _RETIRE_MS, however few frames are in it: their number is the time that the ring
# holds at low rates. 256 blocks, the fewest of a whole ring, are 13 s.
_BLOCK_BYTES = 128 << 10
# The largest ring: headers of 2.6 s at 200,000 packets a second, because pairing ten thousand QPs at once
# takes a second. Whole packets of 1,024 bytes need twice as much.
_RING_BYTES = 128 << 20
_WHOLE_RING_BYTES = 256 << 20
_WHOLE_FROM = 1024  # a snaplen that asks for the larger ring
_MEMORY_SHARE = 16  # the part of the memory that a ring may take
_SMALL_RING_BYTES = 32 << 20  # on a machine with little memory: 2.5 s of 50,000 small packets a second
_LEAST_RING_BYTES = 2 << 20  # what to try at last when the kernel has no memory for more
_FRAME_BYTES = 2048  # only a divisor of the block: a frame may be as long as its block
_RETIRE_MS = 50  # longer, batches cost less each frame; a user does not notice the delay
_TICK_MS = 100
_HURRY_MS = 10
_BATCH_FRAMES = 32768  # then their blocks go back to the kernel
_LAST_S = 3 * _RETIRE_MS / 1000  # after the end, how long a block that is not full takes to be handed over
_BACKLOG_S = 1.0  # after the end, how long frames in the ring are read; the rest counts as dropped
_LATE_S = 2.0  # the same where the kernel's timers are late: an emulated machine, one with too much to do

_LEAST_SNAPLEN = 64
_MOST_SNAPLEN = LARGEST_FRAME

HEADERS = 160
"""Bytes of a frame that hold all headers: Ethernet's 14, two tags, IPv4 with all options, UDP, and the most
of RoCE's (40 with the BTH) with an ICRC make 134; short messages fit in whole."""


class LiveCapture:
    """The RoCE frames of an interface from now on; iterate for batches, empty ones if nothing comes.

    It has the attributes of :class:`rocekit.files.reader.CaptureReader`. The capture starts when this object
    is made.

    Args:
        interface: its name.
        promiscuous: also frames for other stations.
        snaplen: bytes to keep of each frame; None: ``HEADERS``, and management datagrams whole.
        all_frames: everything, not only what may be RoCE.
        tunnels: also tunnels and labels, in which RoCE may be.
        capture_filter: only frames that match this expression of pcap-filter(7), too.
        file: the capture's place among those analysed together.

    Attributes:
        hurry: whether to give the next batch, or an empty one, within 10 ms.

    Raises:
        CaptureError: no such interface, it is down, it carries neither Ethernet nor IP, or no right to
            capture, or the capture filter is wrong; from iterating, after all frames that came before: the
            interface went away.
        ValueError: ``snaplen`` under 64 or over ``LARGEST_FRAME``.
    """

    format = "live"
    size: int | None = None

    def __init__(
        self,
        interface: str,
        *,
        promiscuous: bool = False,
        snaplen: int | None = 65535,
        all_frames: bool = False,
        tunnels: bool = False,
        capture_filter: str | None = None,
        file: int = 0,
    ) -> None:
        management = None
        if snaplen is None:
            snaplen, management = HEADERS, _MOST_SNAPLEN
        if not _LEAST_SNAPLEN <= snaplen <= _MOST_SNAPLEN:
            raise ValueError(f"snaplen must be from {_LEAST_SNAPLEN} to {_MOST_SNAPLEN}, not {snaplen}")
        self.name = interface
        self.file = file
        self.snaplen = snaplen
        self.frames = 0
        self.bytes_read = 0
        self.damage = DamageLog()
        self.comments: Mapping[int, tuple[str, ...]] = MappingProxyType({})
        self.skipped: Mapping[int, int] = MappingProxyType({})
        self._received = self._dropped = 0
        self.hurry = False
        self._stopped, self._stopped_at = False, math.inf
        self._counted = False  # the last frame was read: what comes later is not counted
        self._owed = 0  # frames that had arrived when the end came
        index = _interface_index(interface)
        self._socket = _packet_socket(interface)
        try:
            kind = _hardware_type(self._socket, interface)
            self.linktype = LINKTYPE_ETHERNET if kind in _ETHERNET_TYPES else LINKTYPE_RAW
            ethernet = self.linktype == LINKTYPE_ETHERNET
            # Filter and ring before the socket is bound: no frame comes that has not passed them.
            program = (
                every_frame(snaplen)
                if all_frames
                else roce_filter(snaplen, ethernet=ethernet, management=management, tunnels=tunnels)
            )
            if capture_filter is not None:
                from rocekit.machine.libpcap import compiled

                program = both(compiled(capture_filter, interface, ethernet=ethernet), program)
            _attach(self._socket, program)
            if interface == "lo" or kind == 772:
                # Loopback shows each frame leaving and arriving; one is enough.
                self._socket.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
            self._ring = _make_ring(self._socket, interface, snaplen)
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._socket.bind((interface, _ETH_P_ALL))
            if promiscuous:
                request = Struct("=iHH8s").pack(index, _PROMISCUOUS, 0, b"")
                self._socket.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
            if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ENETDOWN:
                raise CaptureError(
                    f"the interface is down: `sudo ip link set {interface} up`", file=interface
                )
        except OSError as error:
            self._socket.close()
            raise CaptureError(f"cannot capture here: {error.strerror}", file=interface) from None
        except BaseException:
            self._socket.close()
            raise
        self._array = np.frombuffer(self._ring, np.uint8)
        self._view = memoryview(self._ring)
        self._block_bytes = _block_bytes(snaplen)
        self._blocks = len(self._ring) // self._block_bytes
        self._next = 0
        self._batches = self._read()

    # -- counters

    @property
    def received(self) -> int:
        """Frames that passed the kernel's filter so far, with those that it then dropped."""
        self._count()
        return self._received

    @property
    def dropped(self) -> int:
        """Frames that the capture lacks: the kernel dropped them because the ring was full, or had not handed
        them over when the capture ended.
        """
        self._count()
        return self._dropped

    def _count(self) -> None:
        # Reading the counters resets them, so they are summed here.
        if self._counted or self._socket.fileno() < 0:
            return
        try:
            packed = self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 12)
        except OSError:
            return
        received, dropped, _ = Struct("=III").unpack(packed)
        self._received += received
        self._dropped += dropped

    # -- reading

    def __iter__(self) -> Iterator[FrameBatch]:
        return self._batches

    def _read(self) -> Iterator[FrameBatch]:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLERR)
        poll.register(self._wake, select.POLLIN)
        pause = select.poll()
        pause.register(self._wake, select.POLLIN)
        next_at = 0.0
        failure: CaptureError | None = None
        last_look: float | None = None
        last = False  # whether a batch was read after the end
        while True:
            # Near the end, the clock is read before the ring, not after.
            if self._stopped and last_look is None:
                last_look = self._end()
            # Frames that came since are not waited for: under a flood there would be no end.
            if last_look is not None and self._is_over(last_look):
                break
            ready = self._ready()
            flooded = last or ready > self._blocks // 8
            if ready and flooded and time.monotonic() - self._stopped_at > _BACKLOG_S:
                break  # who ended it waits
            last = ready > 0 and last_look is not None
            if ready:
                early = next_at - time.monotonic()
                if early > 0 and ready < self._blocks // 8 and not self._stopped and last_look is None:
                    pause.poll(early * 1000)  # a batch has a fixed cost: wait for a larger one
                    continue
                began = time.monotonic()
                yield self._batch(ready)
                self._release(ready)
                next_at = began + (_HURRY_MS if self.hurry else _RETIRE_MS) / 1000
            elif last_look is not None:
                time.sleep(_RETIRE_MS / 4000)
            else:
                events = dict(poll.poll(_HURRY_MS if self.hurry else _TICK_MS))
                if events.get(self._socket.fileno(), 0) & ~select.POLLIN:
                    failure = self._failure()
                    if failure is not None:
                        last_look = self._end()
                elif not events:
                    self._count()
                    yield empty_batch(self.file)
        self._count()
        self._counted = True
        self._dropped += max(0, self._owed - self.frames)
        self._received = self.frames + self._dropped
        if failure is not None:
            raise failure

    def _end(self) -> float:
        """Note the frames that have arrived; returns until when to wait for them."""
        self._owed = self.received - self.dropped
        return time.monotonic() + _LAST_S

    def _is_over(self, last_look: float) -> bool:
        """Whether all frames that had arrived at the end were handed over, or will not be any more."""
        late = time.monotonic() - last_look
        return late >= 0 and (self.frames >= self._owed or late >= _LATE_S)

    def _ready(self) -> int:
        """How many blocks that the kernel has handed over make the next batch.

        At most a quarter of the ring: the kernel cannot use them until the batch after it is asked for.
        """
        ready = packets = 0
        while ready < max(1, self._blocks // 4) and packets < _BATCH_FRAMES:
            status, held, _, _ = _BLOCK.unpack_from(self._view, self._place(ready))
            if not status & _MINE:
                break
            ready += 1
            packets += held
        return ready

    def _place(self, block: int) -> int:
        """The offset of the block that is ``block`` after the next one."""
        return (self._next + block) % self._blocks * self._block_bytes

    def _release(self, blocks: int) -> None:
        for block in range(blocks):
            _BLOCK_STATUS.pack_into(self._view, self._place(block) + _BLOCK_STATUS_AT, _KERNELS)
        self._next = (self._next + blocks) % self._blocks

    def _batch(self, blocks: int) -> FrameBatch:
        """The frames of so many blocks, as columns; their bytes stay in the ring."""
        descriptions = [_BLOCK.unpack_from(self._view, self._place(block)) for block in range(blocks)]
        places = np.empty(sum(one[1] for one in descriptions), np.int64)
        count = 0
        for block, (_, packets, first, _) in enumerate(descriptions):
            count = walk_ring(self._view, self._place(block) + first, packets, places.data, count)
        every = np.ndarray((len(self._array) - _HEADER + 1,), f"V{_HEADER}", self._array, strides=(1,))
        headers = every[places]
        words = headers.view("=u4").reshape(count, _HEADER // 4)
        halves = headers.view("=u2").reshape(count, _HEADER // 2)
        offset = places + halves[:, 12]  # tp_mac
        caplen = words[:, 3].astype(np.int64)
        wirelen = words[:, 4].astype(np.int64)
        status = words[:, 5]
        tagged = np.flatnonzero(status & _VLAN_VALID)
        if len(tagged) and self.linktype == LINKTYPE_ETHERNET:
            tpid = np.where(status[tagged] & _TPID_VALID, halves[tagged, 18], DOT1Q)
            self._put_tags_back(offset[tagged], tpid, words[tagged, 8])
            offset[tagged] -= _VLAN_TAG
            caplen[tagged] += _VLAN_TAG
            wirelen[tagged] += _VLAN_TAG
        number = np.arange(self.frames + 1, self.frames + count + 1, dtype=np.int64)
        self.frames += count
        self.bytes_read += int(caplen.sum())
        return FrameBatch(
            file=self.file,
            buffer=self._array,
            offset=offset,
            caplen=caplen,
            wirelen=wirelen,
            time_ns=words[:, 1].astype(np.int64) * 1_000_000_000 + words[:, 2],
            number=number,
            linktype=np.full(count, self.linktype, np.uint16),
        )

    def _put_tags_back(
        self, offset: NDArray[np.int64], tpid: NDArray[np.int64], tci: NDArray[np.uint32]
    ) -> None:
        """Put back the VLAN tags that the kernel took off; the addresses move into the gap before them."""
        front = offset[:, None]
        self._array[front + np.arange(-_VLAN_TAG, _MACS - _VLAN_TAG)] = self._array[front + np.arange(_MACS)]
        tag = np.stack([tpid >> 8, tpid & 0xFF, tci >> 8 & 0xFF, tci & 0xFF], axis=1)
        self._array[front + np.arange(_MACS - _VLAN_TAG, _MACS)] = tag

    def _failure(self) -> CaptureError | None:
        """What the socket's error means; None if it has none."""
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not code:
            return None
        if self.name not in _interfaces():
            return CaptureError("the interface is gone: the capture ends here", file=self.name)
        if code == errno.ENETDOWN:
            return CaptureError("the interface went down: the capture ends here", file=self.name)
        return CaptureError(f"the capture ends here: {os.strerror(code)}", file=self.name)

    # -- the end

    def stop(self) -> None:
        """End the iteration after what has arrived by now; from any thread or a signal handler."""
        self._stopped, self._stopped_at = True, time.monotonic()
        try:
            os.eventfd_write(self._wake, 1)
        except (OSError, ValueError):
            pass

    def close(self) -> None:
        """Stop capturing. Batches must not be read after this."""
        if self._socket.fileno() < 0:
            return
        self._count()
        self._stopped = True
        self._socket.close()
        os.close(self._wake)
        self._batches = iter(())

    def __enter__(self) -> LiveCapture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def frames_carried(interface: str) -> int | None:
    """Frames that an interface has sent and received, as the kernel counts them; None if it does not say."""
    try:
        # Unlike /sys/class/net, this is always of the own network namespace.
        lines = Path("/proc/self/net/dev").read_text().splitlines()
        counts = [line.partition(":")[2].split() for line in lines if line.split(":")[0].strip() == interface]
        return int(counts[0][1]) + int(counts[0][9])  # received and sent packets
    except (OSError, ValueError, IndexError):
        return None


def is_local(address: str, interface: str) -> bool:
    """Whether an IP address is this host's own: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        place = (address, 0, 0, socket.if_nametoindex(interface)) if ":" in address else (address, 0)
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            own.bind(place)
    except OSError:
        return False
    return True


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _interface_index(interface: str) -> int:
    if interface == "any":
        raise CaptureError(
            f"'any' cannot be captured here: name one interface of {', '.join(_interfaces())}", file=interface
        )
    try:
        return socket.if_nametoindex(interface)
    except (OSError, ValueError):
        words = f"there is no such interface: this machine has {', '.join(_interfaces()) or 'none'}"
        raise CaptureError(words, file=interface) from None


def _packet_socket(interface: str) -> socket.socket:
    if not hasattr(socket, "AF_PACKET"):
        raise CaptureError(
            "live capture needs Linux; capture with another tool and read its file", file=interface
        )
    try:
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    except PermissionError:
        python = os.path.realpath(sys.executable)
        words = f"no right to capture: run with sudo, or once `sudo setcap cap_net_raw+ep {python}`"
        raise CaptureError(words, file=interface) from None
    except OSError as error:
        raise CaptureError(f"this system has no packet sockets: {error.strerror}", file=interface) from None


def _hardware_type(packets: socket.socket, interface: str) -> int:
    """The ARPHRD number of an interface whose frames can be read."""
    answer = fcntl.ioctl(packets, _SIOCGIFHWADDR, Struct("16s24x").pack(interface.encode()))
    kind: int = Struct("=16xH").unpack_from(answer)[0]
    if kind in _ETHERNET_TYPES or kind in _RAW_IP_TYPES:
        return kind
    what = "IP over InfiniBand" if kind == _INFINIBAND_TYPE else f"an interface of hardware type {kind}"
    words = (
        f"this is {what}, not Ethernet: RoCE packets are seen on the Ethernet interface of the RDMA device"
    )
    raise CaptureError(words, file=interface)


def _attach(packets: socket.socket, program: list[Instruction]) -> None:
    code = ctypes.create_string_buffer(pack(program))
    # struct sock_fprog: how many instructions, and where they are.
    packets.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, Struct("@HP").pack(len(program), ctypes.addressof(code))
    )


def _make_ring(packets: socket.socket, interface: str, snaplen: int) -> mmap.mmap:
    """Have the kernel make a ring for the socket, as large as it allows, and map it."""
    packets.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V3)
    packets.setsockopt(_SOL_PACKET, _RESERVE, _VLAN_TAG)
    block = _block_bytes(snaplen)
    size = _ring_bytes(snaplen, os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE)
    while size >= _LEAST_RING_BYTES:
        frames = size // _FRAME_BYTES
        request = _REQUEST.pack(block, size // block, _FRAME_BYTES, frames, _RETIRE_MS, 0, 0)
        try:
            packets.setsockopt(_SOL_PACKET, _RX_RING, request)
            return mmap.mmap(packets.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
        size = size // 2 // block * block
    raise CaptureError("the kernel has no memory for a capture ring: free some", file=interface)


def _block_bytes(snaplen: int) -> int:
    """The size of a block, in which the largest frame must fit."""
    block = _BLOCK_BYTES
    while block < 2 * snaplen and block < 4 * LARGEST_FRAME:
        block *= 2
    return block


def _ring_bytes(snaplen: int, memory: int) -> int:
    """The size of the ring to ask for on a machine with so much memory, in whole blocks."""
    most = _RING_BYTES if snaplen < _WHOLE_FROM else _WHOLE_RING_BYTES
    block = _block_bytes(snaplen)
    return min(most, max(memory // _MEMORY_SHARE, _SMALL_RING_BYTES)) // block * block
