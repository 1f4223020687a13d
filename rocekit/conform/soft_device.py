"""A soft device as the device of a drill, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from rocekit.conform.device import FEATURES, ConformDevice, RefusedError
from rocekit.conform.soft_cm import SoftCm
from rocekit.errors import VerbsError
from rocekit.soft.device import DeviceEvent, SoftDevice
from rocekit.soft.engine import qp_state
from rocekit.soft.engine.memory import MR, PD, Sge
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.queues import CQ, ReceiveQueue
from rocekit.soft.engine.windows import Binding, next_key
from rocekit.soft.engine.work import RecvWR, SendWR

_DEPTH: Final = 1024
_BIND_WR: Final = 1 << 32
_ATTRIBUTES: Final = {
    qp_state.INIT: ("access",),
    qp_state.RTR: ("path_mtu", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer", "tclass"),
    qp_state.RTS: ("sq_psn", "timeout", "retry_cnt", "rnr_retry", "max_rd_atomic"),
}
#: Which of them a QP of another transport has.
_OF: Final = {
    "UC": frozenset({"access", "path_mtu", "rq_psn", "tclass", "sq_psn"}),
    "UD": frozenset({"sq_psn"}),
}


class SoftConformDevice(ConformDevice):
    """A soft device.

    Args:
        ip: its address.
        now: the bench's clock.
    """

    def __init__(self, ip: str, now: Callable[[], int]) -> None:
        self.name = "soft"
        self.ip = ip
        self.features = frozenset(FEATURES)
        self._now = now
        self.device = SoftDevice("soft0", [ip])
        self._qp: Qp | None = None
        self._cq: CQ | None = None
        self._regions: dict[str, MR] = {}
        self._pds: dict[str, PD] = {}
        self._srq: ReceiveQueue | None = None
        self._peer_ip = ""
        self._cm: SoftCm | None = None
        self._notified = False

    def open(self, setup: dict[str, Any], peer_ip: str) -> dict[str, int]:
        device = self.device = SoftDevice("soft0", [self.ip])
        self._peer_ip = peer_ip
        self._pds = {"main": device.alloc_pd()}
        self._regions = {}
        names: dict[str, int] = {}
        for name, region in setup["memory"].items():
            pd = self._pds.setdefault(region["domain"], self._pds["main"])
            if region["domain"] != "main" and pd is self._pds["main"]:
                pd = self._pds[region["domain"]] = device.alloc_pd()
            addr = device.memory.alloc(region["length"], bytes.fromhex(region["content"]))
            mr = self._regions[name] = device.reg_mr(pd, addr, region["length"], region["access"])
            facts = {"addr": mr.addr, "length": mr.length, "lkey": mr.lkey, "rkey": mr.rkey}
            names |= facts if name == "main" else {f"{name}.{key}": value for key, value in facts.items()}
        self._cq = device.create_cq(4 * _DEPTH)
        pd = self._pds["main"]
        self._srq = device.create_srq(pd, _DEPTH) if setup["srq"] else None
        transport = setup["transport"]
        self._qp = device.create_qp(
            pd, transport, self._cq, max_send_wr=_DEPTH, max_recv_wr=_DEPTH, srq=self._srq
        )
        names["qpn"] = self._qp.qpn
        self._notified = False
        self._cm = SoftCm(device, self._qp, setup, peer_ip)
        path = [qp_state.INIT, qp_state.RTR, qp_state.RTS]
        for state in path[: path.index(setup["state"]) + 1] if setup["state"] in path else ():
            has = _OF.get(transport)
            given = {key: setup[key] for key in _ATTRIBUTES[state] if has is None or key in has}
            if state == qp_state.RTR and transport != "UD":
                given |= {"dest_ip": peer_ip, "dest_qpn": setup["peer_qpn"]}
            if state == qp_state.INIT and transport == "UD":
                given["qkey"] = setup["qkey"]
            self.modify(state=state, **given)
        return names

    def _made(self) -> Qp:
        assert self._qp is not None, "open() comes first"
        return self._qp

    def _sges(self, wr: dict[str, Any]) -> tuple[Sge, ...]:
        length = wr.get("length", 0)
        if not length:
            return ()
        region = self._regions[wr.get("region", "main")]
        return (Sge(region.addr + wr.get("at", 0), length, region.lkey),)

    def post(self, **wr: Any) -> None:
        sges = self._sges(wr)
        inline = None
        if wr.get("inline"):
            inline = b"".join(self.device.memory.read(s.addr, s.length) for s in sges)
            sges = ()
        main = self._regions["main"]
        made = SendWR(
            wr.get("wr_id", 1),
            wr["op"],
            sges,
            inline,
            wr.get("signaled", True),
            wr.get("solicited", False),
            wr.get("fenced", False),
            wr.get("remote_va", main.addr),
            wr.get("rkey", main.rkey),
            wr.get("imm", 0),
            wr.get("invalidate_rkey", 0),
            wr.get("compare", 0),
            wr.get("swap_add", 0),
            flush_length=wr.get("flush_length", 0),
            dest_ip=self._peer_ip,
            dest_qpn=wr.get("qpn", 0),
            qkey=wr.get("qkey", 0),
        )
        self._ask(lambda: self.device.post_send(self._made(), made, self._now()))

    def recv(self, **wr: Any) -> None:
        first, sges = wr.get("wr_id", 1), self._sges(wr)
        for i in range(wr.get("count", 1)):
            made = RecvWR(first + i, sges)
            if self._srq is not None:
                self.device.post_srq_recv(self._srq, made)
            else:
                self._ask(lambda made=made: self.device.post_recv(self._made(), made, self._now()))  # type: ignore[misc]

    def modify(self, **attributes: Any) -> None:
        self._ask(lambda: self.device.modify_qp(self._made(), self._now(), **attributes))

    @staticmethod
    def _ask(call: Callable[[], None]) -> None:
        try:
            call()
        except VerbsError as error:
            raise RefusedError(str(error), errno=error.errno) from None

    def poll(self) -> list[dict[str, Any]]:
        assert self._cq is not None
        found = []
        for wc in self._cq.poll(64):
            if wc.wr_id >= _BIND_WR:
                continue
            done = wc.status == "SUCCESS"
            found.append(
                {
                    "wr_id": wc.wr_id,
                    "status": wc.status,
                    "opcode": wc.opcode if done else None,
                    "byte_len": wc.byte_len if done else None,
                    "imm": wc.imm,
                    "src_qpn": wc.src_qpn,
                }
            )
        return found

    def read(self, region: str, offset: int, length: int) -> str:
        return self.device.memory.read(self._regions[region].addr + offset, length).hex()

    def fill(self, region: str, offset: int, content: str) -> None:
        self.device.memory.write(self._regions[region].addr + offset, bytes.fromhex(content))

    def state(self) -> str:
        return self._made().state

    def counters(self) -> dict[str, int]:
        return self.device.counters.as_dict()

    def bind(self, region: str, offset: int, length: int, access: list[str]) -> int:
        mr, qp = self._regions[region], self._made()
        mw = self.device.alloc_mw(self._pds["main"])
        rkey = next_key(mw.rkey)
        binding = Binding.to(mw, mr, mr.addr + offset, length, access)
        wr = SendWR(_BIND_WR, "BIND_MW", rkey=rkey, binding=binding, signaled=False)
        self._ask(lambda: self.device.post_send(qp, wr, self._now()))
        return rkey

    def deregister(self, region: str) -> None:
        self._ask(lambda: self.device.dereg_mr(self._regions[region]))

    def _program(self) -> SoftCm:
        assert self._cm is not None, "open() comes first"
        return self._cm

    def listen(self, port: int) -> None:
        self._ask(lambda: self._program().listen(port))

    def accept(self, **param: Any) -> None:
        self._ask(lambda: self._program().accept(param, self._now()))

    def reject(self) -> None:
        self._ask(lambda: self._program().reject(self._now()))

    def connect(self, port: int) -> None:
        self._ask(lambda: self._program().connect(port, self._now()))

    def disconnect(self) -> None:
        self._ask(lambda: self._program().disconnect(self._now()))

    def arm(self, *, solicited: bool = False) -> None:
        assert self._cq is not None, "open() comes first"
        self.device.request_notify(self._cq, solicited)

    def heard(self, events: Iterable[DeviceEvent]) -> None:
        """What the device reported, which the bench takes from it."""
        self._notified |= any(event.type == "COMPLETION" for event in events)

    def events(self) -> list[dict[str, Any]]:
        notified, self._notified = self._notified, False
        return [{"type": "COMPLETION", "status": 0}] * notified + self._program().events()

    def close(self) -> None:
        self._qp = None
