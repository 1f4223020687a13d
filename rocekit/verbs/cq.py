"""A device's completion queues, through pyverbs: polled in a loop, or slept on."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Any, Final

from rocekit.endpoint.work import Completion
from rocekit.errors import VerbsError
from rocekit.verbs.open_device import OpenDevice
from rocekit.verbs.post import network_order
from rocekit.wire import WC_STATUSES

_WC_OPCODES: Final = (
    *("SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV"),
    *("RECV", "RECV_RDMA_WITH_IMM"),
)
_SUCCESS: Final = 0


class Completions:
    """The CQ of an endpoint, and if wanted an extended one for its sends.

    Args:
        datagrams: whether receives are of UD QPs, whose completions name the sender's QP.
        way: how a program waits for completions, one of ``CQ_WAYS``.

    Attributes:
        walks: whether one poll of the extended CQ takes several completions, by ``ibv_next_poll``.

    Raises:
        VerbsError: the device refused.
    """

    def __init__(
        self,
        device: OpenDevice,
        entries: int,
        *,
        way: str | None,
        extended: bool,
        timestamps: bool,
        walks: bool = True,
        datagrams: bool = False,
    ) -> None:
        self._device = device
        self._timestamps = timestamps
        self.walks = walks
        self._datagrams = datagrams
        cq = device.pyverbs.cq
        enums = device.pyverbs.enums
        self._opcodes = {int(getattr(enums, f"IBV_WC_{name}")): name for name in _WC_OPCODES}
        self._with_imm = int(enums.IBV_WC_WITH_IMM)
        self._receives = int(enums.IBV_WC_RECV)
        self._channel: Any = None
        if way != "poll":
            before = _descriptors()
            self._channel = device.ask("create a completion channel", lambda: cq.CompChannel(device.context))
            device.release(self._channel.close)
            # pyverbs does not give the descriptor; sleeping on it with a limit needs it.
            (self._fd,) = _descriptors() - before
            os.set_blocking(self._fd, way != "nonblocking")
        self.cq = device.ask(
            f"create a CQ of {entries}", lambda: cq.CQ(device.context, entries, channel=self._channel)
        )
        device.release(self.cq.close)
        self.extended: Any = None
        if extended:
            if self._channel is not None:
                raise VerbsError("pyverbs cannot sleep on an extended CQ: it needs --cq poll")
            # A field that is not requested here has no reader: calling it would end the process.
            flags = enums.IBV_WC_EX_WITH_QP_NUM
            if timestamps:
                flags |= enums.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
            wanted = cq.CqInitAttrEx(cqe=entries, wc_flags=flags)
            what = f"create an extended CQ{' with completion timestamps' * timestamps}"
            try:
                self.extended = device.ask(what, lambda: cq.CQEX(device.context, wanted))
            except VerbsError as error:
                if not timestamps:
                    raise
                raise VerbsError(f"{error}; --no-timestamps does without", errno=error.errno) from None
            device.release(self.extended.close)

    @property
    def for_sends(self) -> Any:
        """The CQ of send queues."""
        return self.cq if self.extended is None else self.extended

    def poll(self, most: int) -> list[Completion]:
        count, found = self.cq.poll(most)
        completions = [self._completion(wc) for wc in found] if count else []
        if self.extended is not None:
            completions += self._poll_extended(most)
        return completions

    def _poll_extended(self, most: int) -> list[Completion]:
        """``ibv_start_poll``, ``ibv_next_poll`` … ``ibv_end_poll``."""
        cq = self.extended
        attributes = self._device.pyverbs.cq.PollCqAttr()
        found: list[Completion] = []
        while len(found) < most and not cq.start_poll(attributes):
            found.append(self._extended_completion())
            while self.walks and len(found) < most and not cq.poll_next():
                found.append(self._extended_completion())
            cq.end_poll()
        return found

    def _extended_completion(self) -> Completion:
        """The completion that the extended CQ is at."""
        cq = self.extended
        status = WC_STATUSES.get(cq.status, str(cq.status))
        done = status == "SUCCESS"
        return Completion(
            cq.read_qp_num(),
            cq.wr_id,
            status,
            self._opcodes.get(cq.read_opcode()) if done else None,
            vendor_err=cq.read_vendor_err(),
            timestamp=cq.read_timestamp() if done and self._timestamps else None,
        )

    def _completion(self, wc: Any) -> Completion:
        status = WC_STATUSES.get(wc.status, str(wc.status))
        if status != "SUCCESS":
            # Only wr_id, status, qp_num and vendor_err are valid then (ibv_poll_cq(3)).
            return Completion(wc.qp_num, wc.wr_id, status, vendor_err=wc.vendor_err)
        imm = wc.imm_data if wc.wc_flags & self._with_imm else None
        return Completion(
            qpn=wc.qp_num,
            wr_id=wc.wr_id,
            status=status,
            opcode=self._opcodes.get(wc.opcode, str(wc.opcode)),
            byte_len=wc.byte_len,
            vendor_err=wc.vendor_err,
            imm=None if imm is None else network_order(imm),
            src_qpn=wc.src_qp if self._datagrams and wc.opcode >= self._receives else None,
        )

    def arm(self, *, solicited: bool = False) -> None:
        """``ibv_req_notify_cq``; ``solicited``: for solicited completions only."""
        self.cq.req_notify(solicited)

    def sleep(self, seconds: float, also: int | None) -> bool:
        """Sleep until the channel reports a completion, or ``also`` can be read; whether a completion came.

        ``ibv_get_cq_event`` of pyverbs would stop every thread of the process: poll() waits, and it is called
        only when the event is there.
        """
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if also is not None:
            poll.register(also, select.POLLIN)
        if not any(fd == self._fd for fd, _ in poll.poll(seconds * 1000)):
            return False
        self._channel.get_cq_event(self.cq)
        self.cq.ack_events(1)
        return True


def _descriptors() -> set[int]:
    """The descriptors of this process that report RDMA events."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if "infinibandevent" in str(entry.readlink()):
                found.add(int(entry.name))
        except OSError:  # that of the listing itself
            continue
    return found
