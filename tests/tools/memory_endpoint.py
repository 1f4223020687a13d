"""An RDMA stack in memory, for scenarios without a device: two endpoints in threads of one process.

It carries out a work request when it is posted, into the peer's memory, and refuses what a device would.
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from rocekit.endpoint import (
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Completion,
    Connection,
    Deadline,
    Endpoint,
    QpOptions,
    RecvWr,
    Region,
    Request,
    SendWr,
)
from rocekit.errors import VerbsError
from rocekit.journal import JournalWriter

NEEDED = {
    "RDMA_WRITE": REMOTE_WRITE,
    "RDMA_READ": REMOTE_READ,
    "ATOMIC_FETCH_AND_ADD": REMOTE_ATOMIC,
    "ATOMIC_CMP_AND_SWP": REMOTE_ATOMIC,
}
WC = {"RDMA_WRITE": "RDMA_WRITE", "RDMA_READ": "RDMA_READ", "SEND": "SEND"} | {
    "ATOMIC_FETCH_AND_ADD": "FETCH_ADD",
    "ATOMIC_CMP_AND_SWP": "COMP_SWAP",
}


class Fabric:
    """What connects the endpoints: listeners by address, memory by rkey.

    Args:
        spoil: changes the bytes of the n-th message on the way.
    """

    def __init__(self, spoil: Callable[[int, bytes], bytes] = lambda n, data: data) -> None:
        self.lock = threading.RLock()
        self.listeners: dict[tuple[str, int], MemoryEndpoint] = {}
        self.regions: dict[int, MemoryRegion] = {}
        self.numbers = itertools.count(17)
        self.messages = itertools.count()
        self.spoil = spoil

    def carry(self, data: bytes) -> bytes:
        return self.spoil(next(self.messages), data)


class MemoryRegion(Region):
    def __init__(self, fabric: Fabric, length: int, access: list[str]) -> None:
        self.bytes = bytearray(length)
        self.length = length
        self.access = access
        self.lkey = self.rkey = next(fabric.numbers)
        self.addr = self.rkey << 32
        fabric.regions[self.rkey] = self

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.bytes[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        assert offset + len(data) <= self.length
        self.bytes[offset : offset + len(data)] = data


class MemoryConnection(Connection):
    endpoint: MemoryEndpoint

    def __init__(self, endpoint: MemoryEndpoint, options: QpOptions) -> None:
        super().__init__(endpoint, next(endpoint.fabric.numbers))
        self.other: MemoryConnection | None = None
        self.posted: deque[RecvWr] = deque()
        self.queued: deque[SendWr] = deque()
        self.answer: queue.Queue[bytes | VerbsError] = queue.Queue()
        self.path_mtu = options.path_mtu or 4096
        self.recv_depth = options.recv_depth
        self.most_posted = 0
        self.target: MemoryEndpoint | None = None
        endpoint.connections[self.qpn] = self
        endpoint.resources.callback(self.disconnect, Deadline(1))

    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        with self.endpoint.fabric.lock:
            self.posted.extend(wrs)
            self.most_posted = max(self.most_posted, len(self.posted))
            assert len(self.posted) <= self.recv_depth
            if self.other is not None:
                self.other.work()
        return 0, 0

    def _post_send(self, wrs: Sequence[SendWr]) -> tuple[int, int]:
        with self.endpoint.fabric.lock:
            for at, wr in enumerate(wrs):
                if self.endpoint.refuse(wr):
                    return at, 22
                self.queued.append(wr)
            self.work()
        return 0, 0

    def work(self) -> None:
        """Carry out what is queued, up to a SEND that finds no receive: it waits, as under RNR retries."""
        if self.other is None:
            return  # not connected yet
        while self.queued and (self.queued[0].opcode != "SEND" or self.other.posted):
            wr = self.queued.popleft()
            status = self._carry_out(wr)
            if wr.signaled or status != "SUCCESS":
                opcode = WC[wr.opcode] if status == "SUCCESS" else None
                self.endpoint.done.append(Completion(self.qpn, wr.wr_id, status, opcode, wr.length))

    def _carry_out(self, wr: SendWr) -> str:
        assert self.other is not None
        fabric = self.endpoint.fabric
        (sge,) = wr.sges
        data = sge.region.read(sge.offset, sge.length)
        if wr.opcode == "SEND":
            receive = self.other.posted.popleft()
            receive.sges[0].region.write(receive.sges[0].offset, fabric.carry(data))
            self.other.endpoint.done.append(
                Completion(self.other.qpn, receive.wr_id, "SUCCESS", "RECV", len(data))
            )
            return "SUCCESS"
        assert wr.rkey is not None
        assert wr.remote_va is not None
        there = fabric.regions[wr.rkey]
        assert isinstance(sge.region, MemoryRegion)
        offset = wr.remote_va - there.addr
        if NEEDED[wr.opcode] not in there.access or not 0 <= offset <= there.length - wr.length:
            return "REM_ACCESS_ERR"
        if wr.opcode == "RDMA_WRITE":
            there.write(offset, fabric.carry(data))
            return "SUCCESS"
        if LOCAL_WRITE not in sge.region.access:
            return "LOC_PROT_ERR"
        original = there.read(offset, wr.length)
        sge.region.write(sge.offset, fabric.carry(original))
        if wr.opcode != "RDMA_READ":
            value = int.from_bytes(original, sys.byteorder)
            assert wr.swap_add is not None
            if wr.opcode == "ATOMIC_FETCH_AND_ADD":
                there.write(offset, (value + wr.swap_add).to_bytes(8, sys.byteorder))
            elif value == wr.compare:
                there.write(offset, wr.swap_add.to_bytes(8, sys.byteorder))
        return "SUCCESS"

    def _connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        assert self.target is not None
        self.target.asked.put(MemoryRequest(self.target, self, private_data))
        answer = self.answer.get(timeout=deadline.left())
        if isinstance(answer, VerbsError):
            raise answer
        return answer

    def _accept(self, private_data: bytes, deadline: Deadline) -> None:
        assert self.other is not None
        self.other.other = self
        self.other.answer.put(private_data)

    def _goodbye(self, deadline: Deadline) -> None:
        assert self.other is not None
        self.other.disconnected = True

    def to_error(self) -> None:
        self.outstanding.clear()


class MemoryRequest(Request):
    def __init__(self, endpoint: MemoryEndpoint, client: MemoryConnection, private_data: bytes) -> None:
        self._endpoint = endpoint
        self._client = client
        self.private_data = private_data

    def connection(self, options: QpOptions) -> MemoryConnection:
        made = MemoryConnection(self._endpoint, options)
        made.other = self._client
        return made

    def reject(self, private_data: bytes) -> None:
        self._client.answer.put(VerbsError(f"rejected: {private_data.decode()}"))


class MemoryEndpoint(Endpoint):
    """``refuse`` says which WRs the device refuses to take."""

    def __init__(
        self,
        fabric: Fabric,
        ip: str,
        journal: JournalWriter | None = None,
        refuse: Callable[[SendWr], bool] = lambda wr: False,
    ) -> None:
        super().__init__(f"mem-{ip}", ip, journal)
        self.fabric = fabric
        self.refuse = refuse
        self.done: deque[Completion] = deque()
        self.asked: queue.Queue[MemoryRequest] = queue.Queue()
        self.closed = False
        self.resources.callback(setattr, self, "closed", True)

    def _register(self, length: int, access: list[str]) -> Region:
        return MemoryRegion(self.fabric, length, access)

    def _poll(self, most: int) -> list[Completion]:
        with self.fabric.lock:
            return [self.done.popleft() for _ in range(min(most, len(self.done)))]

    def gone(self, *, expected: bool = False) -> Connection | None:
        time.sleep(0)  # both sides poll in one process: let the other
        return next((one for one in self.connections.values() if one.disconnected), None)

    def _dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> MemoryConnection:
        if (host, port) not in self.fabric.listeners:
            raise VerbsError("rejected: nobody listens")
        made = MemoryConnection(self, options)
        made.target = self.fabric.listeners[host, port]
        return made

    def _listen(self, port: int, backlog: int) -> None:
        self.fabric.listeners[self.ip, port] = self

    def _asked(self) -> MemoryRequest | None:
        try:
            return self.asked.get(timeout=0.01)
        except queue.Empty:
            return None
